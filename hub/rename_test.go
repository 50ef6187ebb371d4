package hub_test

import (
	"errors"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// TestRenameInOneApply: a module is put under another name, and the old one is deleted after that, as belongs to the same batch: the new one waits
// for what the old one has, and is in no conflict from its first word on. Where the deletion is refused the old one keeps that, and it is one.
func TestRenameInOneApply(t *testing.T) {
	for name, refused := range map[string]bool{"it is deleted": false, "its deletion is refused": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.join("c", nil, nil)
			w.await("one", w.put(listing("one", "a", "m")).GetRevision())
			renamed := listing("new", "a", "m")
			if !refused {
				rollsBack(renamed)
			}
			_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: renamed, Batch: "x", Deletes: true})
			must(t, err)
			w.awaits("new", "c", "one")
			if refused {
				needs := listing("needs", "z")
				needs.Spec.DependsOn = []*towlinev1.Dependency{{Module: "one"}}
				w.put(needs)
			}
			_, err = w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "one", Batch: "x"})
			if refused {
				if !errors.Is(err, fleet.ErrPrecondition) {
					t.Fatal(err)
				}
				w.conflicted("new", "c", "one")
				return
			}
			must(t, err)
			w.succeeds("new", 1)
			w.awaitTracker("new", "c", "ready", ready)
			w.gone("one")
		})
	}
}

// TestRenameInACatalogOrASet: the rollout of the new name succeeds, with a strategy that does not forgive a failure, so that a command which waits
// for it ends well.
func TestRenameInACatalogOrASet(t *testing.T) {
	const unforgiving = "  rollout: {onFailure: Rollback}\n"
	file := func(name string) string { return asFile(name, unforgiving, inline("a", "m")) }
	t.Run("catalog", func(t *testing.T) {
		w := newCatalogWorld(t)
		for _, name := range []string{"one", "two", "three"} {
			w.repo.Branch("main", map[string]any{"modules/it.yaml": file(name), "modules/other.yaml": asFile("other", "", inline("z"))})
			if name == "one" {
				w.putCatalog(w.catalog())
				w.applied(1)
			} else {
				w.synced("Applied")
			}
			w.succeeds(name, 1)
		}
		w.gone("two")
	})
	t.Run("set", func(t *testing.T) {
		w := newWorld(t, true)
		w.join("c", nil, nil)
		towline := w.cli()
		for _, name := range []string{"one", "two", "three"} {
			out, err := towline(file(name), "apply", "-f", "-", "--set", "team", "--prune", "--wait", "--timeout", "30s")
			if err != nil || name != "one" && !strings.Contains(out, "pruned") {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		}
	})
}
