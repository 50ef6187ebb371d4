package worker

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// What a revision dropped stays while its prune waits; if somebody deletes it meanwhile, it is not listed any more.
func TestALeftoverThatSomebodyDeletedIsForgotten(t *testing.T) {
	r := newRig(t)
	r.foreign("taken", "k", "theirs")
	s := r.bundle("shop", nil, configMap("a", "k: one"), configMap("dropped", "k: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	s = r.bundle("shop", nil, configMap("a", "k: one"), configMap("taken", "k: one"))
	r.set([]fleet.Sync{s})
	lists := func(n int) func(fleet.SyncStatus) bool {
		return func(x fleet.SyncStatus) bool {
			return x.Generation == s.Generation && x.Phase == fleet.PhaseFailed && len(x.Extras) == n
		}
	}
	r.wait("shop", "failed with a leftover", lists(1))
	if err := r.res("v1", "configmaps", r.ns).Delete(t.Context(), "dropped", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.wait("shop", "without the leftover", lists(0))
}

// Nor is it listed any more when somebody takes our marks from it: then it is theirs, and will not go. The agent may have
// been away when that happened.
func TestALeftoverThatIsNotOursAnyMoreIsForgotten(t *testing.T) {
	for name, patch := range map[string]string{
		"without the label":      `{"metadata":{"labels":{"towline.dev/hub":null}}}`,
		"without the annotation": `{"metadata":{"annotations":{"towline.dev/owner":null}}}`,
	} {
		for _, away := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, away %v", name, away), func(t *testing.T) {
				r := newRig(t)
				r.foreign("taken", "k", "theirs")
				s := r.bundle("shop", nil, configMap("a", "k: one"), configMap("dropped", "k: one"), configMap("other", "k: one"))
				r.set([]fleet.Sync{s})
				r.ready(s)
				s = r.bundle("shop", nil, configMap("a", "k: one"), configMap("taken", "k: one"))
				r.set([]fleet.Sync{s})
				lists := func(n int) func(fleet.SyncStatus) bool {
					return func(x fleet.SyncStatus) bool {
						return x.Generation == s.Generation && x.Phase == fleet.PhaseFailed && len(x.Extras) == n
					}
				}
				r.wait("shop", "failed with leftovers", lists(2))
				if away {
					r.stop()
				}
				r.patch("v1", "configmaps", "dropped", "ana", patch)
				if away {
					r.start()
					r.set([]fleet.Sync{s})
				}
				r.wait("shop", "without the leftover that was taken", func(x fleet.SyncStatus) bool {
					return lists(1)(x) && x.Extras[0].ID.Name == "other"
				})
				if k := r.data("dropped", "k"); k != "one" {
					t.Errorf("dropped %q", k)
				}
			})
		}
	}
}

// What the agent deleted itself, and a finalizer held for a while, was deleted by nobody else.
func TestWhatWeDeletedIsNobodyElsesDoing(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.loud = true
	r.start()
	s := r.bundle("shop", nil, configMap("a", "k: one"), configMap("dropped", "k: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "dropped", "ana", `{"metadata":{"finalizers":["example.com/wait"]}}`)
	s = r.bundle("shop", nil, configMap("a", "k: one"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "with an object on its way out", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && len(x.Extras) == 1 && x.Extras[0].Reason == "Terminating"
	})
	r.patch("v1", "configmaps", "dropped", "ana", `{"metadata":{"finalizers":null}}`)
	r.wait("shop", "without the leftover", func(x fleet.SyncStatus) bool { return len(x.Extras) == 0 && x.Ready })
	if strings.Contains(r.heard.String(), "somebody else") {
		t.Errorf("somebody else is said to have deleted it:\n%s", r.heard.String())
	}
}

// A removal that finds the label taken from an object leaves it, and says so.
func TestRemovalSaysWhatItLeaves(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftIgnore}}, configMap("a", "k: one"), configMap("b", "k: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "a", "ana", withoutLabel)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	x := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "a") == nil {
		if x.Message != "" {
			t.Errorf("deleted, and said to be left: %s", x.Message)
		}
		t.Fatal("an object without our label was deleted")
	}
	if !strings.Contains(x.Message, "ConfigMap "+r.ns+"/a (somebody took the label "+fleet.HubLabel) {
		t.Errorf("it is left without a word: %q", x.Message)
	}
}

// An object that was handed over belongs to the module that got it, also before that could write it: with the module it
// goes.
func TestAnObjectHandedOverGoesWithItsNewModule(t *testing.T) {
	r := newRig(t)
	first := r.bundle("first", nil, configMap("x", "k: first"), configMap("own", "k: first"))
	r.set([]fleet.Sync{first})
	r.ready(first)
	second := r.bundle("second", nil, configMap("x", "k: second"))
	r.store.mu.Lock()
	for _, e := range r.store.bundles[second.Bundle].Entries {
		delete(r.store.objects, e.Digest) // second cannot be written
	}
	r.store.mu.Unlock()
	first = r.bundle("first", nil, configMap("own", "k: first"))
	r.set([]fleet.Sync{first, second})
	r.ready(first)
	r.eventually("x belongs to second", func() bool {
		rec := r.m.inventory.Get(fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "x"})
		return rec != nil && rec.Module == second.Module
	})
	r.set([]fleet.Sync{first}, r.tombstone("second", fleet.DeleteDelete))
	r.wait("second", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "x") != nil {
		t.Error("x is left without an owner")
	}
}

// What never became ours is nothing of ours to list when a revision drops it, whatever keeps the prune waiting.
func TestWhatNeverBecameOursIsNoLeftover(t *testing.T) {
	r := newRig(t)
	r.foreign("taken", "k", "theirs")
	r.foreign("too", "k", "theirs")
	s := r.bundle("shop", nil, configMap("a", "k: one"), configMap("taken", "k: one"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed })
	s = r.bundle("shop", nil, configMap("a", "k: one"), configMap("too", "k: one"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "failed without a leftover", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Phase == fleet.PhaseFailed && len(x.Extras) == 0
	})
	if r.data("taken", "k") != "theirs" || r.marked("taken") {
		t.Error("a foreign object was touched")
	}
}

// TestReleaseWhoseAnswerIsLostIsTold: the agent takes its marks off an object that is to be left, and the answer to that is lost. It says that it left
// the object, as where the answer comes, and not that somebody else took them.
func TestReleaseWhoseAnswerIsLostIsTold(t *testing.T) {
	messages := map[bool]string{}
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost %v", lost), func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"left"}}, Delete: fleet.DeleteOrphan}}
			s := r.bundle("shop", policies, configMap("a", "k: v"), configMap("left", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.count.upset(func(q *http.Request) error {
				if !lost || q.Method != http.MethodPatch || !strings.HasSuffix(q.URL.Path, "/configmaps/left") {
					return nil
				}
				x, err := r.count.next.RoundTrip(q)
				if err == nil {
					_ = x.Body.Close()
				}
				return errors.New("connection reset by a test")
			})
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			messages[lost] = strings.ReplaceAll(r.wait("shop", "removed", isRemoved).Message, r.ns, "$NS")
			if left := r.get("v1", "configmaps", "left"); left == nil || left.GetLabels()[fleet.HubLabel] != "" {
				t.Fatalf("it is not left: %v", left)
			}
			if strings.Contains(messages[lost], "somebody") || strings.Contains(r.heard.String(), "object is not ours any more") {
				t.Errorf("says %q", messages[lost])
			}
		})
	}
	if messages[true] != messages[false] {
		t.Errorf("says %q, and with an answer %q", messages[true], messages[false])
	}
}
