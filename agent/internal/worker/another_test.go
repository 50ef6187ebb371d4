package worker

import (
	"context"
	"maps"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// The agent made an object again and died before it noted its UID: that is the module's all the same. A tombstone takes it
// along, and what a revision omits waits for a person.
func TestCrashAfterAnObjectWasMadeAgain(t *testing.T) {
	for _, how := range []string{"restored", "recreated"} {
		for _, then := range []string{"tombstone", "revision", "move"} {
			t.Run(how+" "+then, func(t *testing.T) {
				r := newRig(t)
				object, resource, apiVersion := configMap("once", "k: v"), "configmaps", "v1"
				if how == "recreated" {
					object, resource, apiVersion = jobOf("x:1"), "jobs", "batch/v1"
				}
				s := r.bundle("shop", recreate, configMap("a", "k: v"), object)
				r.set([]fleet.Sync{s})
				r.ready(s)
				uid := r.uidOf(apiVersion, resource, "once")
				if err := r.m.inventory.Sync(context.Background()); err != nil {
					t.Fatal(err)
				}
				files := r.store.copy()
				if how == "restored" {
					r.delete(apiVersion, resource, "once")
				} else {
					s = r.bundle("shop", recreate, configMap("a", "k: v"), jobOf("x:2"))
					r.set([]fleet.Sync{s})
				}
				r.eventually("it is made again", func() bool {
					u := r.get(apiVersion, resource, "once")
					return u != nil && u.GetUID() != uid
				})
				r.killed(files)
				r.start()
				if then == "move" {
					if how == "recreated" {
						object = jobOf("x:2")
					}
					next := r.bundle("next", recreate, object)
					r.set([]fleet.Sync{next}, r.tombstone("shop", fleet.DeleteDelete))
					r.ready(next)
					if mark := r.get(apiVersion, resource, "once").GetAnnotations()[fleet.OwnerAnnotation]; !strings.HasPrefix(mark, "default/next@") {
						t.Errorf("it carries the mark %s", mark)
					}
					return
				}
				if then == "tombstone" {
					r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
					r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
					if r.get(apiVersion, resource, "once") != nil {
						t.Error("the module is removed, and what it made is still there")
					}
					return
				}
				s = r.bundle("shop", recreate, configMap("a", "k: v"))
				r.set([]fleet.Sync{s})
				status := r.wait("shop", "ready", func(x fleet.SyncStatus) bool {
					return x.Ready && x.Generation == s.Generation && (x.Waiting() > 0 || x.Extra() == 0)
				})
				if r.get(apiVersion, resource, "once") == nil || status.Waiting() != 1 {
					t.Errorf("what the module made is not said to wait: %+v", status)
				}
			})
		}
	}
}

func (s *memory) copy() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.files)
}

// killed ends the agent as if it had died when its files were these.
func (r *rig) killed(files map[string][]byte) {
	r.stop()
	r.store.mu.Lock()
	r.store.files = files
	r.store.mu.Unlock()
	r.forget()
}
