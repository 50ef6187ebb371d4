package hub_test

import (
	"fmt"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// A change of what objects say goes to who can take it as a move, with dictionaries or without, and to others as an index; all of
// them end with the same. One that has lost what it held, and so the dictionary, gets all of it again.
func TestMovesOfAFleet(t *testing.T) {
	w := newWorld(t, true)
	old := wire.Missing(wire.Features(), []string{wire.FeatureMoves, wire.FeatureDictionaries})
	agents := map[string]simagent.Options{
		"dictionary": {Keep: true},
		"plain":      {Keep: true, Features: wire.Missing(wire.Features(), []string{wire.FeatureDictionaries})},
		"old":        {Keep: true, Features: old},
	}
	for name, o := range agents {
		w.enroll(name, nil)
		w.connectWith(name, o)
	}
	put := func(text string) {
		t.Helper()
		var files strings.Builder
		for i := range 5 {
			fmt.Fprintf(&files, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d, namespace: default}\ndata: {a: a text that stays}\n", i)
		}
		fmt.Fprintf(&files, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: changes, namespace: default}\ndata: {a: %s}\n", text)
		got := w.put(&towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "web"}, Spec: &towlinev1.ModuleSpec{
			Source:    &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": files.String()}}},
			Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}})
		w.await("web", got.GetRevision())
	}
	moves := func(want map[string]int64) {
		t.Helper()
		digest := w.agents["old"].Held().Syncs[0].Bundle
		for name, n := range want {
			a := w.agents[name]
			if a.Moves.Load() != n || a.Held().Syncs[0].Bundle != digest {
				t.Errorf("agent %s: %d moves, bundle %s; want %d, %s", name, a.Moves.Load(), a.Held().Syncs[0].Bundle.Short(), n, digest.Short())
			}
		}
	}
	put("one")
	moves(map[string]int64{"dictionary": 0, "plain": 0, "old": 0})
	put("two")
	moves(map[string]int64{"dictionary": 1, "plain": 1, "old": 0})
	w.agents["dictionary"].Forget()
	before := w.agents["dictionary"].Contents.Load()
	put("three")
	moves(map[string]int64{"dictionary": 2, "plain": 2, "old": 0})
	if n := w.agents["dictionary"].Contents.Load() - before; n != 8 {
		t.Errorf("the agent that lost all got %d contents again, want the bundle, its policies and 6 objects", n)
	}
}
