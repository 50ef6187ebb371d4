package control

import (
	"context"
	"fmt"
	"maps"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// otherCatalog is a second one, which may list what the first has.
var otherCatalog = fleet.ModuleRef{Project: fleet.DefaultProject, Name: "other"}

// coursesOfRestores are of a store that is made from a backup of before.
func coursesOfRestores() []course {
	before := func(w *interleaved) {
		w.bothPut()
		w.calms()
		w.backsUp()
		w.shapes(moduleOne, shape{objects: 3})
	}
	return []course{
		{"restored from before a put, accepted", 0, before, func(w *interleaved) {
			w.restores()
			w.calms()
			w.accepts(&towlinev1.AcceptRestoreRequest{})
		}},
		{"restored from before a put, put, accepted", 0, before, func(w *interleaved) {
			w.restores()
			w.shapes(moduleOne, shape{objects: 4})
			w.calms()
			w.accepts(&towlinev1.AcceptRestoreRequest{})
		}},
		{"restored from before a delete, accepted", 0, func(w *interleaved) {
			w.bothPut()
			w.calms()
			w.backsUp()
			w.deletesIt(moduleOne, false)
		}, func(w *interleaved) {
			w.restores()
			w.calms()
			w.accepts(&towlinev1.AcceptRestoreRequest{})
		}},
	}
}

// coursesOfSources are of a source that is followed.
func coursesOfSources() []course {
	before := func(w *interleaved) {
		w.followsSource(4)
		w.shapes(moduleTwo, shape{objects: 1})
	}
	return []course{
		{"a source has something else", 0, before, func(w *interleaved) { w.refreshes(3) }},
		{"a source has most no more, confirmed", 0, before, func(w *interleaved) {
			w.refreshes(1)
			w.calms()
			w.letsGo()
		}},
		{"a source has something else, and what it had before", 0, before, func(w *interleaved) {
			w.refreshes(3)
			w.calms()
			w.refreshes(4)
		}},
	}
}

// coursesOfMoves are of what changes hands.
func coursesOfMoves() []course {
	listed := func(w *interleaved) {
		w.catalogPut()
		w.putsOther()
	}
	return []course{
		{"an object moves to another module", 0, (*interleaved).bothPut, func(w *interleaved) {
			w.shapes(moduleTwo, shape{objects: 1, also: "one-3"})
			w.shapes(moduleOne, shape{objects: 3})
		}},
		{"an object moves to another module, which takes it up later", 0, (*interleaved).bothPut, func(w *interleaved) {
			w.shapes(moduleOne, shape{objects: 3})
			w.shapes(moduleTwo, shape{objects: 1, also: "one-3"})
		}},
		{"a module moves to another catalog, which has it first", 0, listed, func(w *interleaved) {
			w.otherLists()
			w.unlists(moduleOne)
		}},
		{"a module moves to another catalog, which has it later", 0, listed, func(w *interleaved) {
			w.unlists(moduleOne)
			w.calms()
			w.otherLists()
		}},
		{"a module moves to another catalog, which a person has take it", 0, listed, func(w *interleaved) {
			w.otherLists()
			w.resyncsOther()
			w.unlists(moduleOne)
		}},
		{"the same cluster joins again", 0, (*interleaved).bothPut, func(w *interleaved) {
			w.removes("b", "keep", false)
			w.calms()
			w.joinsAgain("b")
		}},
		{"the same cluster joins again at once", 0, (*interleaved).bothPut, func(w *interleaved) {
			w.shapes(moduleOne, shape{objects: 4})
			w.joinsAgain("b")
		}},
	}
}

// followsSource has the first module follow a source that has so many objects.
func (w *interleaved) followsSource(objects int) {
	w.has(objects)
	m := w.spec(moduleOne, 1, "", "")
	m.Spec.Source = &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.test/" + moduleOne.Name + ".git"}, Follow: &towlinev1.Follow{Interval: "24h"}}
	w.call("put one, which follows a source", func(ctx context.Context) error {
		_, err := w.api.PutModule(ctx, &towlinev1.PutModuleRequest{Module: m, Take: true})
		return err
	})
}

// has has the source of the first module have so many objects.
func (w *interleaved) has(objects int) {
	w.note("the source of one has %d objects", objects)
	files := map[string][]byte{}
	for name, text := range w.spec(moduleOne, objects, "", "").GetSpec().GetSource().GetInline().GetFiles() {
		files[name] = []byte(text)
	}
	w.source = files
}

// refreshes has the source of the first module have something else, of which its server tells.
func (w *interleaved) refreshes(objects int) {
	w.has(objects)
	_ = w.Called(moduleOne)
}

// putsOther puts the other catalog, which lists nothing that is anywhere.
func (w *interleaved) putsOther() {
	files := w.files
	w.files = map[string][]byte{}
	w.lists(w.spec(fleet.ModuleRef{Project: otherCatalog.Project, Name: "four"}, 1, "nowhere", ""))
	w.files, w.others = files, w.files
	c := &towlinev1.Catalog{ApiVersion: fleet.APIVersion, Kind: "Catalog", Metadata: &towlinev1.Metadata{Name: otherCatalog.Name, Project: otherCatalog.Project}, Spec: &towlinev1.CatalogSpec{
		Source: &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.test/other.git"}}, Prune: true}}
	w.call("put the other catalog", func(ctx context.Context) error {
		_, err := w.api.PutCatalog(ctx, &towlinev1.PutCatalogRequest{Catalog: c})
		return err
	})
}

// otherLists has the other catalog list the first module, with three objects.
func (w *interleaved) otherLists() {
	w.number++
	files := w.files
	w.files = maps.Clone(w.others)
	w.lists(w.spec(moduleOne, 3, "", ""))
	w.files, w.others = files, w.files
	w.note("the other catalog lists %s", moduleOne.Name)
	_ = w.CatalogCalled(otherCatalog)
}

func (w *interleaved) resyncsOther() {
	w.call("resync the other catalog, take true", func(ctx context.Context) error {
		_, err := w.api.ResyncCatalog(ctx, &towlinev1.ResyncCatalogRequest{Project: otherCatalog.Project, Name: otherCatalog.Name, Take: true})
		return err
	})
}

// joinsAgain has the Kubernetes cluster that has a name join once more.
func (w *interleaved) joinsAgain(name fleet.ClusterName) {
	w.joinsAs(name, func() bool { return true })
}

// toldOfMore are about what the courses above are of.
func toldOfMore() []told {
	return []told{
		{"the source has something else", func(w *interleaved) { w.refreshes(2) }},
		{"the same b joins again", func(w *interleaved) { w.joinsAgain("b") }},
		{"accept the restore", func(w *interleaved) { w.accepts(&towlinev1.AcceptRestoreRequest{}) }},
		{"resume the restore", func(w *interleaved) {
			w.call("resume the restore", func(ctx context.Context) error {
				_, err := w.api.ResumeRestore(ctx, &towlinev1.ResumeRestoreRequest{})
				return err
			})
		}},
		{"the other catalog goes", func(w *interleaved) {
			w.call("delete the other catalog", func(ctx context.Context) error {
				_, err := w.api.DeleteCatalog(ctx, &towlinev1.DeleteCatalogRequest{Project: otherCatalog.Project, Name: otherCatalog.Name, Cascade: true})
				return err
			})
		}},
		{"put two, which lists what one has", func(w *interleaved) { w.shapes(moduleTwo, shape{objects: 1, also: "one-3"}) }},
	}
}

// withObject has a module list one more object.
func withObject(m *towlinev1.Module, name string) {
	m.GetSpec().GetSource().GetInline().GetFiles()["b.yaml"] = fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"%s\", namespace: default}\n", name)
}
