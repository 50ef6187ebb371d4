package control

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
)

// manyModules are files of so many modules, in folders with long names.
func manyModules(n int) map[string]string {
	files := map[string]string{}
	for i := range n {
		name := fmt.Sprintf("%s-%d", strings.Repeat("n", 50), i)
		files[strings.Repeat("a-long-folder/", 20)+name+".yaml"] = "{apiVersion: towline.dev/v1, kind: Module, metadata: {name: " + name + "}, spec: {namespace: default, placement: {selector: {}}, source: {inline: {files: {a.yaml: a}}}}}"
	}
	return files
}

// refusedLater finds each plan in order, and then something wrong with a file.
type refusedLater struct{ planned }

func (*refusedLater) PlanCatalog(context.Context, record.CatalogLook) (catalog.Plan, error) {
	return catalog.Plan{}, &record.CatalogProblems{List: []string{"a.yaml:1: is refused"}}
}

// TestCatalogOfMoreModulesThanAreKept: the files of a catalog have more modules than its state has room for. Nothing is put or deleted, the state says how
// many it may have and is stored, so that the source is not fetched again and again; and as nobody knows which those are, nobody prunes what may stand there.
func TestCatalogOfMoreModulesThanAreKept(t *testing.T) {
	for name, broken := range map[string]bool{"in order": false, "beside a file that cannot be read": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatcher(t)
				if n := w.looks(time.Second); n != 1 {
					t.Fatalf("%d looks", n)
				}
				w.is(nil, []string{"shop"})
				w.source.files = manyModules(2000)
				if broken {
					w.source.files["a/slip.yaml"] = "<<<<<<< HEAD\n"
				}
				w.recurses(2)
				if n := w.looks(4 * time.Minute); n != 1 {
					t.Errorf("the source was fetched %d times", n)
				}
				s := w.storedState()
				if p := s.GetStatus().GetProblems(); s.GetStatus().GetReason() != catalog.ReasonInvalidFiles || !broken && !strings.Contains(p[0], "2000 modules") {
					t.Errorf("%v", s.GetStatus())
				}
				w.is(fmt.Errorf("nobody knows"), []string{"shop"})
				w.source.files = map[string]string{"readme.txt": "a path that is wrong"}
				w.recurses(3)
				w.looks(time.Second)
				w.is(fmt.Errorf("nobody knows"), []string{"shop"})
				w.source.files = manyModules(1)
				w.recurses(4)
				w.looks(time.Second)
				w.is(nil, []string{strings.Repeat("n", 50) + "-0"})
			})
		})
	}
}

// TestConfirmEndsWhereTheFilesListMoreThanIsKept: files that list more than is kept may list what a person confirmed to go.
func TestConfirmEndsWhereTheFilesListMoreThanIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		w.looks(time.Second)
		confirmed := w.storedState()
		confirmed.Confirmed = []string{"module web, u1"}
		w.leader.put(func(tx store.Writer) { tx.Put(store.CatalogStateKey(w.ref), confirmed) })
		w.restarts()
		w.source.files = manyModules(2000)
		w.recurses(2)
		w.looks(4 * time.Minute)
		if s := w.storedState(); s.GetStatus().GetReason() != catalog.ReasonInvalidFiles || len(s.GetConfirmed()) > 0 {
			t.Errorf("%v stays confirmed: %v", s.GetConfirmed(), s.GetStatus())
		}
	})
}

// TestCatalogWithALinkThatWasCopiedAsText: what a folder of the files leads to is not there any more, since its link was copied as text. Its modules
// may be the catalog's still, so that no set that has one of them prunes it.
func TestCatalogWithALinkThatWasCopiedAsText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		w.source.files["teams/cart.yaml"] = strings.Replace(w.source.files["shop.yaml"], "name: shop", "name: cart", 1)
		w.prunesBelow(2)
		w.looks(time.Second)
		w.is(nil, []string{"cart", "shop"})
		delete(w.source.files, "teams/cart.yaml")
		w.source.files["teams"] = "../teams"
		w.prunesBelow(3)
		w.looks(time.Second)
		if s := w.storedState().GetStatus(); s.GetReason() != catalog.ReasonInvalidFiles {
			t.Errorf("%v", s)
		}
		w.is(fmt.Errorf("nobody knows"), []string{"cart", "shop"})
		delete(w.source.files, "teams")
		w.prunesBelow(4)
		w.looks(time.Second)
		w.is(nil, []string{"shop"})
	})
}

// prunesBelow puts the catalog as one that reads folders below, too, and prunes.
func (w *watcher) prunesBelow(generation int64) {
	w.recurses(generation)
	w.leader.put(func(tx store.Writer) {
		rec, _, _ := store.Get[*storev1.CatalogRecord](tx, store.CatalogKey(w.ref))
		rec.Catalog.Spec.Prune = true
		tx.Put(store.CatalogKey(w.ref), rec)
	})
}

// is checks whether somebody knows what the files of the catalog are, and which they were last.
func (w *watcher) is(unknown error, lists []string) {
	w.t.Helper()
	s := w.storedState()
	var rec *storev1.CatalogRecord
	_ = w.view(w.t.Context(), func(r store.Reader) error {
		rec, _, _ = store.Get[*storev1.CatalogRecord](r, store.CatalogKey(w.ref))
		return nil
	})
	if record.CatalogNeverRead(rec, s) != (unknown != nil) {
		w.t.Errorf("nobody knows what it has: %t", unknown == nil)
	}
	if got := s.GetLists(); fmt.Sprint(got) != fmt.Sprint(lists) {
		w.t.Errorf("it lists %v, not %v", got, lists)
	}
}

// recurses puts the catalog as one that reads folders below, too.
func (w *watcher) recurses(generation int64) {
	w.says(generation, false)
	w.leader.put(func(tx store.Writer) {
		rec, _, _ := store.Get[*storev1.CatalogRecord](tx, store.CatalogKey(w.ref))
		rec.Catalog.Spec.Recursive = true
		tx.Put(store.CatalogKey(w.ref), rec)
	})
}

// TestCatalogListsOnlyNames: what a file gives as the name of a module and is none is not kept, whatever else is wrong with the files.
func TestCatalogListsOnlyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		w.o.Catalogs = &refusedLater{}
		w.source.files["more.yaml"] = strings.Replace(w.source.files["shop.yaml"], "name: shop", "name: "+strings.Repeat("A", 1<<20), 1)
		w.looks(time.Second)
		w.is(nil, []string{"shop"})
	})
}

// TestSearchOfFilesEnds: what looks for modules in files that cannot be applied ends when the hub does not lead any more.
func TestSearchOfFilesEnds(t *testing.T) {
	w := newWatcher(t)
	x, err := w.readCatalogue(t.Context(), w.ref)
	if err != nil {
		t.Fatal(err)
	}
	x.next = &storev1.CatalogState{CatalogUid: "u", Status: &towlinev1.CatalogStatus{}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.namesOthers(ctx, x, map[string][]byte{"shop.yaml": []byte("<<<<<<< HEAD\n")}, catalog.ReasonInvalidFiles); err == nil {
		t.Error("it went on")
	}
}
