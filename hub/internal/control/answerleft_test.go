package control

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
)

// A person answers a question in the moment in which it ends, because nobody wants to know that any more, or with the module or the cluster that it is
// about: the answer goes with it, and is not left for good.
func TestAnswerGoesWithAQuestionThatEndsInThatMoment(t *testing.T) {
	for name, ends := range map[string]func(*leader) error{
		"it is asked no more": func(l *leader) error { return l.rolloutHolds(t.Context(), shop, nil) },
		"the module goes":     func(l *leader) error { return l.forgetModule(t.Context(), shop, "") },
		"the cluster goes": func(l *leader) error {
			_, err := l.forgetCluster(t.Context(), "a")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := &meanwhile{Backend: memory.New()}
			l := newLeaderOn(t, b)
			asked := &towlinev1.Hold{Id: "leave-1", Kind: record.HoldConfirm, Code: fleet.HoldLeaves, Project: shop.Project, Module: shop.Name, Digest: "d"}
			if name == "the cluster goes" {
				asked.Code, asked.Cluster = fleet.HoldDrops, "a"
			}
			l.put(func(w store.Writer) {
				m, c := moduleRecord(), clusterRecord("a")
				m.Deleting, c.Removing, c.Joined = fleet.DeleteDelete, "keep", nil
				w.Put(store.ModuleKey(shop), m)
				w.Put(store.ClusterKey("a"), c)
				w.Put(store.HoldPrefix+asked.GetId(), &storev1.HoldRecord{Hold: asked})
			})
			b.happens = func() {
				l.writes(func(w store.Writer) {
					w.Put(store.ConfirmPrefix+asked.GetId(), &storev1.ConfirmRecord{Digest: asked.GetDigest()})
				})
			}
			l.must(ends(l))
			l.read(func(r store.Reader) {
				for _, key := range []string{store.HoldPrefix + asked.GetId(), store.ConfirmPrefix + asked.GetId()} {
					if _, left := r.Get(key); b.happens != nil || left {
						t.Errorf("%s is left", key)
					}
				}
			})
		})
	}
}
