package client_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"towline.dev/towline/pkg/client"
)

// TestWordsAreSaidWhole: whatever of a word the request of its verb has a field for is in the request, above all which module
// is meant.
func TestWordsAreSaidWhole(t *testing.T) {
	var asked proto.Message
	see := func(_ context.Context, _ string, req, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
		asked = req.(proto.Message)
		return nil
	}
	c := dial(t, &hub{}, client.Options{DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(see)}})
	for _, verb := range []string{"pause", "resume", "approve", "reject", "abort", "retry", "skip", "pin", "unpin", "promote", "override", "rollback"} {
		asked = nil
		_, err := c.Steer(t.Context(), client.Word{Project: "web", Module: "shop", Number: 7, ModuleUID: "u", Verb: verb, Clusters: []string{"a"}, Stage: "canary",
			Gate: "approval", Revision: 3, Scope: "failed", Until: timestamppb.Now(), Shorten: true, Reason: "why", RequestID: "r"})
		if err != nil || asked == nil {
			t.Errorf("%s: %v", verb, err)
			continue
		}
		m := asked.ProtoReflect()
		for i := range m.Descriptor().Fields().Len() {
			f := m.Descriptor().Fields().Get(i)
			if !m.Has(f) {
				t.Errorf("%s: %s is left out", verb, f.Name())
			}
		}
	}
	if _, err := c.Steer(t.Context(), client.Word{Verb: "wave"}); err == nil {
		t.Error("a verb that there is not is taken")
	}
}
