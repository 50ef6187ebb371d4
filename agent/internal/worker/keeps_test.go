package worker

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// counted are contents that count how often a bundle is read.
type counted struct {
	*memory
	reads int
}

func (c *counted) Bundle(d fleet.Digest) (fleet.Bundle, error) {
	c.reads++
	return c.memory.Bundle(d)
}

// TestWhatAModuleListsIsReadOnce: before an object is deleted thousands of others may be asked for, whether their module keeps them.
func TestWhatAModuleListsIsReadOnce(t *testing.T) {
	contents := &counted{memory: newMemory()}
	listed, dropped := fleet.ObjectID{Kind: "Secret", Namespace: "x", Name: "listed"}, fleet.ObjectID{Kind: "Secret", Namespace: "x", Name: "dropped"}
	shop := fleet.Sync{Module: fleet.ModuleRef{Project: "p", Name: "shop"}, Bundle: fleet.DigestOf([]byte("shop"))}
	lost := fleet.Sync{Module: fleet.ModuleRef{Project: "p", Name: "lost"}, Bundle: fleet.DigestOf([]byte("lost"))}
	contents.bundles[shop.Bundle] = fleet.Bundle{Entries: []fleet.BundleEntry{{ID: listed}}}
	m := &Manager{o: Options{Contents: contents}, desired: &desired{assemblage: fleet.Assemblage{Syncs: []fleet.Sync{shop, lost}}}}
	for range 100 {
		if !m.mayKeep(shop.Module, listed) || m.mayKeep(shop.Module, dropped) || !m.keeps(shop.Module, listed) || m.keeps(shop.Module, dropped) {
			t.Fatal("what is listed is kept, and nothing else")
		}
	}
	if contents.reads != 1 {
		t.Errorf("the bundle was read %d times", contents.reads)
	}
	if m.keeps(lost.Module, listed) || !m.mayKeep(lost.Module, listed) {
		t.Error("of what cannot be read nothing is known")
	}
}
