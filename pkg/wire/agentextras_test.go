package wire

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// withExtras is a status of n leftovers with names as generators make them.
func withExtras(n int, message func(int) string) fleet.SyncStatus {
	random := rand.New(rand.NewPCG(1, 2))
	s := fleet.SyncStatus{Module: shop("web"), Generation: 5, Phase: fleet.PhaseRemoving, ExtraCount: n, HeldCount: n / 3}
	for i := range n {
		s.Extras = append(s.Extras, fleet.ExtraObject{Version: "v1", Reason: "Removing", Message: message(i), Held: i < n/3,
			ID:    fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: fmt.Sprintf("settings-%08x-%08x", random.Uint32(), random.Uint32())},
			State: fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}})
	}
	return s
}

func same(int) string { return "goes when its turn comes" }

func TestManyExtrasTravelCompressed(t *testing.T) {
	for _, n := range []int{0, 1, 16, 17, 5000} {
		want := withExtras(n, same)
		raw := SyncStatusToProto(want)
		if (len(raw.GetExtrasZstd()) > 0) != (n > 16) {
			t.Errorf("%d: compressed to %d bytes", n, len(raw.GetExtrasZstd()))
		}
		got, err := SyncStatusFromProto(raw)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%d: %v (-want +got)\n%s", n, err, diff)
		}
		short, err := SyncSummaryFromProto(raw)
		if err != nil || short.Extra() != n || short.Waiting() != n/3 || len(short.Extras) != 0 {
			t.Errorf("%d: the summary counts %d, lists %d: %v", n, short.Extra(), len(short.Extras), err)
		}
	}
}

// TestAllExtrasOfALargeModuleFit: as many as a bundle may have are listed in one frame, by identity.
func TestAllExtrasOfALargeModuleFit(t *testing.T) {
	const frame = 1 << 20
	long := strings.Repeat("why ", 50)
	for name, message := range map[string]func(int) string{
		"same words": same,
		"own words":  func(i int) string { return fmt.Sprintf("%s %x", long, rand.New(rand.NewPCG(3, uint64(i))).Uint64()) },
	} {
		got, err := SyncStatusFromProto(FitSyncStatus(SyncStatusToProto(withExtras(assemble.MaxBundleObjects, message)), frame))
		if err != nil || len(got.Extras) != assemble.MaxBundleObjects || got.Waiting() != assemble.MaxBundleObjects/3 {
			t.Errorf("%s: %d are listed, %d held: %v", name, len(got.Extras), got.Waiting(), err)
		}
	}
}

// TestCountsAreExactWhateverFits: a frame that is too small loses identities, and no counts.
func TestCountsAreExactWhateverFits(t *testing.T) {
	for _, limit := range []int{1 << 10, 10 << 10, 50 << 10} {
		m := FitSyncStatus(SyncStatusToProto(withExtras(5000, same)), limit)
		if n := proto.Size(m); n > limit {
			t.Errorf("%d bytes, more than %d", n, limit)
		}
		got, err := SyncStatusFromProto(m)
		if err != nil || got.Extra() != 5000 || got.Waiting() != 5000/3 || len(got.Extras) == 5000 {
			t.Errorf("%d bytes: %d, of which %d are listed and %d wait: %v", limit, got.Extra(), len(got.Extras), got.Waiting(), err)
		}
	}
}
