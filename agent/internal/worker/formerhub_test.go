package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// TestObjectThatAnotherAgentOfAFormerHubHas: a cluster went over from one hub to another, and later an agent of the first one comes to it
// again, beside the one that is there. What that takes (adopt: Always) from a module of the second hub is of the first one from then on,
// though the agent of the second hub had belonged to that one: what it wrote itself carries the label of its own hub.
func TestObjectThatAnotherAgentOfAFormerHubHas(t *testing.T) {
	for name, ends := range map[string]func(r *rig) (fleet.SyncStatus, []string){
		"a revision drops it": func(r *rig) (fleet.SyncStatus, []string) {
			s := r.bundle("shop", nil, configMap("stays", "k: v"))
			r.set([]fleet.Sync{s})
			return r.wait("shop", "through", isReady(s)), []string{"stays"}
		},
		"the module is deleted": func(r *rig) (fleet.SyncStatus, []string) {
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			return r.wait("shop", "removed", isRemoved), nil
		},
		"the module is orphaned": func(r *rig) (fleet.SyncStatus, []string) {
			r.set(nil, r.tombstone("shop", fleet.DeleteOrphan))
			return r.wait("shop", "removed", isRemoved), []string{"stays"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			theirs, ours := second(t), aloneRig(t)
			theirs.ns = ours.ns
			ours.rejoin(theirs.hub)
			ours.rejoin(ours.ns + "-now")
			s := ours.bundle("shop", nil, configMap("moves", "k: v"), configMap("stays", "k: v"))
			ours.set([]fleet.Sync{s})
			ours.ready(s)
			uid := ours.uidOf("v1", "configmaps", "moves")
			ours.stop() // its agent is away
			taken := theirs.bundle("shop", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, configMap("moves", "k: v"))
			theirs.set([]fleet.Sync{taken})
			theirs.ready(taken)
			theirs.stop()
			ours.start()
			end, left := ends(ours)
			u := ours.get("v1", "configmaps", "moves")
			if u == nil || u.GetUID() != uid || u.GetLabels()[fleet.HubLabel] != theirs.hub {
				t.Errorf("what the other hub's agent has is %v; said %q", u, end.Message)
			}
			if says := ours.eventOf("moves"); !strings.Contains(says, "did not delete it") || !strings.Contains(says, theirs.hub) {
				t.Errorf("of what stays an Event says %q", says)
			}
			for _, name := range left {
				if ours.get("v1", "configmaps", name) == nil {
					t.Errorf("%s is gone", name)
				}
			}
		})
	}
}

// TestAgentOfAFormerHubKeepsItsObjects: the same cluster, and the agent of the second hub searches for objects, for it has no records. What it
// comes by of the first hub is that one's, whose agent works beside it, though both have a module of the name: it lists none of it as its own,
// takes none without adopt: Always, and deletes none, neither with its module nor when the cluster leaves its fleet. Where no agent of the
// first hub is left it is what the agent wrote itself once.
func TestAgentOfAFormerHubKeepsItsObjects(t *testing.T) {
	for name, served := range map[string]bool{"whose agent works": true, "whose agent works, as is not seen at first": true, "which nobody serves any more": false,
		"which nobody serves any more, as is not seen at first": false} {
		t.Run(name, func(t *testing.T) {
			theirs, ours := second(t), aloneRig(t)
			theirs.ns = ours.ns
			var looks atomic.Int64
			late := strings.HasSuffix(name, "at first")
			has := theirs.bundle("shop", nil, configMap("listed", "k: v"), configMap("other", "k: v"))
			theirs.set([]fleet.Sync{has})
			theirs.ready(has)
			theirs.stop()
			ours.options = append(ours.options, func(o *Options) {
				o.Served = func(context.Context) (map[string]bool, error) {
					if late && looks.Add(1) < 3 {
						return nil, apierrors.NewForbidden(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, "", errors.New("roles are not read yet"))
					}
					return map[string]bool{theirs.hub: served}, nil
				}
			})
			ours.rejoin(theirs.hub)
			ours.rejoin(ours.ns + "-now")
			ours.eventually("the search is over", func() bool { return ours.m.searching() == "" })
			s := ours.bundle("shop", nil, configMap("listed", "k: ours"), configMap("own", "k: v"))
			ours.set([]fleet.Sync{s})
			x := ours.decided(s)
			if refused := x.Phase == fleet.PhaseFailed && strings.Contains(x.Message, "for the hub"); refused != served {
				t.Errorf("refused %t: %+v", refused, x)
			}
			ours.m.Leave(fleet.Leave{Objects: fleet.LeaveDelete})
			ours.wait("shop", "removed", isRemoved)
			for _, name := range []string{"listed", "other"} {
				if there := ours.get("v1", "configmaps", name) != nil; there != served {
					t.Errorf("%s is there: %t", name, there)
				}
			}
			if ours.get("v1", "configmaps", "own") != nil {
				t.Error("what is the module's stayed")
			}
		})
	}
}

// TestObjectThatAnotherHubTookIsLeftToIt: an agent of another hub takes an object (adopt: Always) from one that is at work. That one does not take
// it back: not as drift, nor for another revision, nor when it starts anew. It says whose the object is, and has it again when the other lets go.
func TestObjectThatAnotherHubTookIsLeftToIt(t *testing.T) {
	theirs, ours := second(t), aloneRig(t)
	theirs.ns = ours.ns
	ours.restart(func(o *Options) {
		o.Served = func(context.Context) (map[string]bool, error) { return map[string]bool{theirs.hub: true}, nil }
	})
	ours.eventually("the search is over", func() bool { return ours.m.searching() == "" })
	s := ours.bundle("shop", nil, configMap("moves", "k: v"), configMap("stays", "k: v"))
	ours.set([]fleet.Sync{s})
	ours.ready(s)
	uid := ours.uidOf("v1", "configmaps", "moves")
	taken := theirs.bundle("site", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, configMap("moves", "k: theirs"))
	theirs.set([]fleet.Sync{taken})
	theirs.ready(taken)
	isTheirs := func(what string) {
		t.Helper()
		ours.wait("shop", what, func(x fleet.SyncStatus) bool {
			return x.Phase == fleet.PhaseFailed && strings.Contains(x.Message, "is managed by Towline for the hub")
		})
		if u := ours.get("v1", "configmaps", "moves"); u.GetLabels()[fleet.HubLabel] != theirs.hub || ours.data("moves", "k") != "theirs" {
			t.Errorf("%s: %v", what, u.Object)
		}
	}
	isTheirs("it is taken")
	s = ours.bundle("shop", nil, configMap("moves", "k: v2"), configMap("stays", "k: v2"))
	if p := ours.preview(s); !slices.ContainsFunc(p.Objects, func(o fleet.PreviewedObject) bool { return o.ID.Name == "moves" && o.Action == fleet.PreviewRefuse }) {
		t.Errorf("the preview says %+v", p)
	}
	ours.set([]fleet.Sync{s})
	ours.eventually("the rest is as the revision has it", func() bool { return ours.data("stays", "k") == "v2" })
	isTheirs("another revision")
	ours.stop()
	ours.forget()
	ours.start()
	ours.m.Set(ours.current, nil)
	isTheirs("a restart")
	theirs.mu.Lock()
	site := theirs.statuses[taken.Module]
	theirs.mu.Unlock()
	if !site.Ready || site.Corrections != 0 {
		t.Errorf("the other agent says %+v", site)
	}
	theirs.set(nil, theirs.tombstone("site", fleet.DeleteOrphan))
	theirs.wait("site", "removed", isRemoved)
	ours.ready(s)
	if ours.uidOf("v1", "configmaps", "moves") != uid || ours.data("moves", "k") != "v2" {
		t.Error("it is not the module's again")
	}
}

// TestLookAtOtherAgentsThatFails: an error is no answer, and is asked again soon; a look does not end with the one that asked for it.
func TestLookAtOtherAgentsThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hubs
		fails, looks := true, 0
		o := &Options{Served: func(ctx context.Context) (map[string]bool, error) {
			if looks++; fails {
				return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", errors.New("roles are not read yet"))
			}
			return map[string]bool{"first": true}, ctx.Err()
		}}
		served, err := h.serves(t.Context(), o, "first")
		if f := apply.Explain(fleet.ObjectID{Kind: "ConfigMap", Name: "c"}, err); err == nil || !f.Transient || !f.Unreached() {
			t.Errorf("after an error it is known to be served, or that counts as a word about the object: %t, %v", served, err)
		}
		fails = false
		<-time.After(servedAgain)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 2 {
			if served, err := h.serves(ended, o, "first"); !served || err != nil {
				t.Errorf("served %t: %v", served, err)
			}
		}
		if looks != 2 {
			t.Errorf("looked %d times", looks)
		}
	})
}
