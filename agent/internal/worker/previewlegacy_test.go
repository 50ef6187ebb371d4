package worker

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// revisions are those of a module, each previewed before it is applied.
type revisions struct {
	*rig
	last int64
}

// next has the module list these ConfigMaps, and nothing else. It returns what the preview says of what is not listed, by name, and fails
// if anything else is done then.
func (r *revisions) next(what string, policies []fleet.Policy, names ...string) map[string]string {
	r.t.Helper()
	var objects []string
	for _, n := range names {
		objects = append(objects, configMap(n, fmt.Sprint("k: v", r.last)))
	}
	s := r.bundle("shop", policies, objects...)
	r.last++
	s.Revision = r.last
	said := map[string]string{}
	var p fleet.Preview
	r.eventually(what+": the agent knows what it has", func() (known bool) {
		var err error
		if p, err = r.m.Preview(r.t.Context(), s, r.store); err != nil && !errors.Is(err, fleet.ErrUnavailable) {
			r.t.Fatal(err)
		}
		return err == nil
	})
	for _, o := range p.Objects {
		if o.Action == fleet.PreviewDelete || o.Action == fleet.PreviewKeep || o.Action == fleet.PreviewRelease {
			said[o.ID.Name] = strings.TrimSpace(o.Action + " " + o.Reason)
		}
	}
	there := r.named()
	r.set([]fleet.Sync{s})
	r.ready(s)
	var did map[string]string
	defer func() {
		if !maps.Equal(said, did) {
			r.t.Errorf("%s: the preview says %v, what was done is %v", what, said, did)
		}
	}()
	r.eventually(what+": what the preview says is so", func() bool {
		did = map[string]string{}
		r.mu.Lock()
		status := r.statuses[s.Module]
		r.mu.Unlock()
		for _, e := range status.Extras {
			did[e.ID.Name] = fleet.PreviewKeep + " " + e.Reason
		}
		now := r.named()
		for name := range there {
			if !now[name] {
				did[name] = fleet.PreviewDelete
			}
		}
		return maps.Equal(said, did) && status.Extra() == len(status.Extras)
	})
	return said
}

// named are the ConfigMaps of modules.
func (r *rig) named() map[string]bool {
	r.t.Helper()
	list, err := r.res("v1", "configmaps", r.ns).List(r.t.Context(), metav1.ListOptions{LabelSelector: fleet.HubLabel})
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string]bool{}
	for _, u := range list.Items {
		out[u.GetName()] = u.GetDeletionTimestamp() == nil
	}
	return out
}

// legacy are policies that keep, or do not keep, what is dropped of these names; none: of all.
func legacy(keep bool, names ...string) fleet.Policy {
	return fleet.Policy{Match: fleet.PolicyMatch{Names: names}, KeepLegacy: &keep}
}

// TestPreviewOfLegacy: what keepLegacy has stay and go is said before, and is what is done: of what a revision drops, of what one before
// had dropped, when the policy goes with its objects, and when it is turned off.
func TestPreviewOfLegacy(t *testing.T) {
	r := &revisions{rig: newRig(t)}
	keep, never := legacy(true, "old", "older"), fleet.Policy{Match: fleet.PolicyMatch{Names: []string{"older"}}, Prune: fleet.PruneNever}
	const kept, gone = fleet.PreviewKeep + " KeptLegacy", fleet.PreviewDelete
	for _, x := range []struct {
		what     string
		policies []fleet.Policy
		names    []string
		want     map[string]string
	}{
		{"the first", []fleet.Policy{keep}, []string{"a", "b", "old", "older"}, nil},
		{"drops one that is kept, and one that is not", []fleet.Policy{keep}, []string{"a", "older"}, map[string]string{"old": kept, "b": gone}},
		{"drops another one", []fleet.Policy{keep}, []string{"a"}, map[string]string{"old": kept, "older": kept}},
		{"lists one again", []fleet.Policy{keep}, []string{"a", "old"}, map[string]string{"older": kept}},
		{"drops the policy with its objects", nil, []string{"a"}, map[string]string{"old": kept, "older": kept}},
		{"says false of one", []fleet.Policy{legacy(false, "old")}, []string{"a"}, map[string]string{"old": gone, "older": kept}},
		{"says false of all, but one is never deleted", []fleet.Policy{never, legacy(false)}, []string{"a"}, map[string]string{"older": fleet.PreviewKeep + " Kept"}},
		{"says false of all", []fleet.Policy{{Prune: fleet.PruneOnUpdate, KeepLegacy: new(bool)}}, []string{"a"}, map[string]string{"older": gone}},
	} {
		if got := r.next(x.what, x.policies, x.names...); !maps.Equal(got, x.want) {
			t.Errorf("%s: the preview says %v, want %v", x.what, got, x.want)
		}
	}
}

// Whatever revisions follow each other, with whatever policies of keepLegacy and prune, and whether the agent starts again or loses its
// state between them: what the preview says of what is not listed is what is done.
func TestPreviewOfLegacyAtRandom(t *testing.T) {
	atRandom(t, 2, legacyAtRandom)
}

func legacyAtRandom(rig *rig, rnd *rand.Rand) {
	r := &revisions{rig: rig}
	names := []string{"a", "b", "c", "d", "e", "f"}
	some := func() (out []string) {
		for _, n := range names {
			if rnd.IntN(2) == 0 {
				out = append(out, n)
			}
		}
		return out
	}
	for range 14 {
		var policies []fleet.Policy
		for range rnd.IntN(4) {
			p := legacy(rnd.IntN(3) > 0, some()...)
			switch rnd.IntN(4) {
			case 0:
				p.Prune = []string{fleet.PruneNever, fleet.PruneOnModuleDelete, fleet.PruneOnUpdate}[rnd.IntN(3)]
			case 1:
				p.KeepLegacy, p.Prune = nil, fleet.PruneNever
			}
			policies = append(policies, p)
		}
		listed := append([]string{"always"}, some()...)
		what := fmt.Sprintf("revision %d lists %v by %s", r.last+1, listed, policiesText(policies))
		switch rnd.IntN(6) {
		case 0:
			what += ", after a restart"
			r.stop()
			r.start()
			r.set(r.current.Syncs)
		case 1:
			if len(r.current.Syncs) > 0 {
				what += ", after the state was lost"
				r.loseState()
				r.set(r.current.Syncs)
			}
		}
		r.t.Log(what)
		r.next(what, policies, listed...)
		if r.t.Failed() {
			return
		}
	}
}

func policiesText(list []fleet.Policy) string {
	var out []string
	for _, p := range list {
		text := fmt.Sprintf("%v:", p.Match.Names)
		if p.KeepLegacy != nil {
			text += fmt.Sprintf(" keepLegacy %t", *p.KeepLegacy)
		}
		out = append(out, strings.TrimSpace(text+" "+p.Prune))
	}
	return strings.Join(slices.Clip(out), "; ")
}

// While the agent searches the cluster for what it has there, nothing goes, and what is not found yet would be left out: it is not said then
// what would be done.
func TestPreviewWaitsForTheSearch(t *testing.T) {
	r := newRig(t)
	s := r.becomes(nil, configMap("a", "k: v"), configMap("b", "k: v"))
	next := r.bundle("shop", nil, configMap("a", "k: v"))
	r.blind("secrets")
	r.loseState()
	r.forget()
	r.set([]fleet.Sync{s})
	r.ready(s)
	if p, err := r.m.Preview(t.Context(), next, r.store); !errors.Is(err, fleet.ErrUnavailable) || !strings.Contains(err.Error(), "searched for") {
		t.Errorf("while the search goes on: %v, %+v", err, p)
	}
	r.count.upset(nil)
	r.eventually("the search is over", func() bool { return r.m.searching() == "" })
	r.says(r.preview(next), "1 unchanged", "Delete ConfigMap b")
}
