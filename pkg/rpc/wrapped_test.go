package rpc_test

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// TestStatusOfWhomTheHubAsked: the hub asks others in its turn, such as the etcd that its store is in, and wraps what gRPC says of those. To who
// asked the hub that is the hub's own word: it is reached, and has answered, so that nobody looks for it elsewhere.
func TestStatusOfWhomTheHubAsked(t *testing.T) {
	lost := status.Error(codes.Unavailable, "etcdserver: no leader")
	for _, err := range []error{
		fmt.Errorf("verbs/default/shop/3: %w", lost),
		fmt.Errorf("verbs/default/shop/3: %w: %w", fleet.ErrUnavailable, lost),
		fmt.Errorf("verbs/default/shop/3: %w", rpc.FromStatus(lost)),
	} {
		got := rpc.FromStatus(status.Convert(rpc.ToStatus(err)).Err())
		if !errors.Is(got, fleet.ErrUnavailable) || got.Error() != err.Error() || rpc.Unanswered(got) || fleet.HintOf(got).RetryAfter == 0 {
			t.Errorf("%q reads %q, unanswered %v", err, got, rpc.Unanswered(got))
		}
	}
	if got := rpc.ToStatus(lost); got != lost {
		t.Errorf("a status itself became %v", got)
	}
}
