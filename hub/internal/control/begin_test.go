package control

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// A small rollout begins in the commit that cuts its revision. What is too large for that commit, or cannot be written in
// it, begins in the run that follows, with the same result.
func TestRolloutBeginsWithItsRevision(t *testing.T) {
	for _, tc := range []struct {
		name     string
		clusters int
		value    int // bytes of a value that each cluster gets
		at       int // clusters assigned by the cut itself
	}{
		{"small", 3, 0, 3},
		{"none", 0, 0, 0},
		{"more than a transaction moves", inlineDesired + 1, 0, 0},
		{"more bytes than a transaction takes", 20, 60 << 10, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLeader(t)
			l.o.Source = oneFile{}
			pending := rolloutRecord(1, string(rollout.Pending))
			pending.Rollout.Revision = 0
			m := moduleRecord()
			if tc.value > 0 {
				m.Module.Spec.Bindings = []*towlinev1.Binding{{Name: "LONG", Value: proto.String(strings.Repeat("v", tc.value))}}
			}
			l.put(func(w store.Writer) {
				w.Put(store.ModuleKey(shop), m)
				w.Put(store.RolloutKey(shop, 1), pending)
				for i := range tc.clusters {
					name := fmt.Sprintf("c-%03d", i)
					w.Put(store.ClusterKey(fleet.ClusterName(name)), clusterRecord(name))
				}
			})
			assigned := func() (n int) {
				l.read(func(r store.Reader) {
					_, cut, _ := store.Get[*storev1.RevisionRecord](r, store.RevisionKey(shop, 1))
					for i := range tc.clusters {
						d, e, ok := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(fleet.ClusterName(fmt.Sprintf("c-%03d", i)), shop))
						if ok && d.GetSync().GetRevision() == 1 {
							n++
						}
						if ok && tc.at > 0 && e.ModRevision != cut.ModRevision {
							t.Errorf("assigned at %d, cut at %d", e.ModRevision, cut.ModRevision)
						}
					}
				})
				return n
			}
			l.must(l.resolve(t.Context(), shop))
			if got := assigned(); got != tc.at {
				t.Errorf("%d clusters are assigned by the cut, want %d", got, tc.at)
			}
			l.must(l.reconcileModule(t.Context(), shop))
			if got := assigned(); got != tc.clusters {
				t.Errorf("%d clusters are assigned after the run that follows, want %d", got, tc.clusters)
			}
		})
	}
}
