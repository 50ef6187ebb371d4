package rpc_test

import (
	"errors"
	"testing"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// An answer that is kept tells a client the same as one that is given at once.
func TestAnswersAreKept(t *testing.T) {
	about := fleet.Object{Kind: "Cluster", Name: "c1"}
	for _, said := range []error{
		fleet.Forbids(about, "cluster c1 is cordoned"),
		fleet.NotFound(about, "cluster c1 not found"),
		fleet.Invalid("clusters", "names too many"),
		errors.New("something else"),
	} {
		packed, err := rpc.Pack(said)
		if err != nil {
			t.Fatal(err)
		}
		kept := rpc.Unpack(packed)
		a, b := rpc.ToStatus(said), rpc.ToStatus(kept)
		if !proto.Equal(status.Convert(a).Proto(), status.Convert(b).Proto()) || kept.Error() != said.Error() {
			t.Errorf("%v is kept as %v: %v", said, kept, b)
		}
	}
	for _, broken := range [][]byte{nil, {0xff}} {
		if err := rpc.Unpack(broken); !errors.Is(err, fleet.ErrCorrupt) {
			t.Errorf("%x: %v", broken, err)
		}
	}
}
