package cli

import (
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// Whoever confirms what is not asked any more is told what may have become of it, and which command shows what is asked instead: an id is of
// one list.
func TestConfirmOfAListThatChangedSaysSo(t *testing.T) {
	hold := func(id, cluster string, items ...string) *v1.Hold {
		return &v1.Hold{Id: id, Kind: "Confirm", Project: "default", Module: "shop", Cluster: cluster, Code: "DropsMostObjects", Digest: "d-" + id, Items: items}
	}
	for name, tt := range map[string]struct {
		holds []*v1.Hold
		says  []string
	}{
		"nothing waits": {nil, []string{"hold prune-1: there is none of that id: it was confirmed or has ended, or what it listed has changed", "towline get holds -A"}},
		"another list": {[]*v1.Hold{hold("leave-1", ""), hold("prune-2", "c1", "ConfigMap shop/a")},
			[]string{"what it listed has changed", "hold prune-2 (Confirm) of module shop in cluster c1", "towline describe hold prune-2"}},
		"several": {[]*v1.Hold{hold("prune-2", "c1"), hold("prune-3", "c2")}, []string{"2 others wait: towline get holds -A"}},
		"a hold":  {[]*v1.Hold{{Id: "freeze-1", Kind: "Freeze", Module: "shop"}}, []string{"towline get holds -A"}},
	} {
		t.Run(name, func(t *testing.T) {
			hub := &fakeHub{holds: tt.holds}
			got := hub.run(t, run{}, "confirm", "prune-1")
			for _, says := range tt.says {
				if got.code == exitOK || !strings.Contains(got.err, says) {
					t.Errorf("exit %d, %s, want %q", got.code, got.err, says)
				}
			}
			if asked[*v1.ConfirmHoldRequest](hub) != nil {
				t.Error("something was confirmed")
			}
		})
	}
}

// What changes between the list that is shown and the word of it is said, with what there is more and less.
func TestConfirmOfAListThatChangesMeanwhile(t *testing.T) {
	shown := &v1.Hold{Id: "prune-1", Kind: "Confirm", Project: "default", Module: "shop", Cluster: "c1", Code: "DropsMostObjects", Digest: "d1", Items: []string{"ConfigMap shop/a", "ConfigMap shop/b"}}
	other := &v1.Hold{Id: "prune-9", Kind: "Confirm", Project: "default", Module: "shop", Cluster: "c2", Code: "DropsMostObjects", Digest: "d9", Items: []string{"ConfigMap shop/z"}}
	refused := fleet.Errorf(fleet.ErrNotFound, "hold prune-1 not found")
	for name, tt := range map[string]struct {
		then []*v1.Hold
		err  error
		says string
	}{
		"another list": {[]*v1.Hold{other, {Id: "prune-2", Kind: "Confirm", Project: "default", Module: "shop", Cluster: "c1", Code: "DropsMostObjects", Digest: "d2", Items: []string{"ConfigMap shop/b", "ConfigMap shop/c"}}}, refused,
			"hold prune-1: what it lists has changed since it was shown: 1 more, as ConfigMap shop/c; 1 not any more, as ConfigMap shop/a; nothing is confirmed; look at it again: towline describe hold prune-2"},
		"the same, asked anew":  {[]*v1.Hold{shown}, fleet.Errorf(fleet.ErrConflict, "hold prune-1 was changed meanwhile"), "hold prune-1 was asked anew meanwhile, with the same list; nothing is confirmed; again: towline confirm prune-1"},
		"somebody confirmed it": {[]*v1.Hold{other}, refused, "hold prune-1: there is none of that id: it was confirmed or has ended"},
		"the hub is away":       {[]*v1.Hold{other}, fleet.Errorf(fleet.ErrUnavailable, "the hub is away"), "the hub is away"},
	} {
		t.Run(name, func(t *testing.T) {
			hub := &fakeHub{holds: []*v1.Hold{shown, other}}
			hub.confirms = func() error {
				hub.holds = tt.then
				return tt.err
			}
			if got := hub.run(t, run{}, "confirm", "prune-1"); got.code == exitOK || !strings.Contains(got.err, tt.says) || strings.Contains(got.out, "confirmed") {
				t.Errorf("exit %d, %s%s, want %q", got.code, got.out, got.err, tt.says)
			}
		})
	}
}
