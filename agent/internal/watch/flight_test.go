package watch

import (
	"strings"
	"testing"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// flying is a watcher of one kind that has seen one object, and counts the changes that it tells of.
func flying(t *testing.T) (w *Watcher, k *kind, changes *int) {
	t.Helper()
	k, changes = newKind(), new(int)
	k.w.o.Changed = func(fleet.ObjectID, string) { *changes++ }
	k.w.o.Gone = func(fleet.ObjectID, string, plan.Outcome) {}
	k.w.kinds = map[apply.Resource]*kind{k.resource: k}
	k.keep(&Fingerprint{Namespace: "n", Name: "a", UID: "u1", Version: 6})
	return k.w, k, changes
}

// event decodes a change of the object as the stream does, and hands it to the store.
func event(t *testing.T, k *kind, kind, version string) *item {
	t.Helper()
	object := strings.Replace(live, `"7"`, `"`+version+`"`, 1)
	_, raw, ok := split([]byte(`{"type":"` + kind + `","object":` + object + "}\n"))
	if !ok {
		t.Fatal("not split")
	}
	i := decodeItem(t, k, string(raw))
	if i.version != version {
		t.Errorf("version %q of the item, want %q", i.version, version)
	}
	var err error
	if kind == "DELETED" {
		err = k.Delete(i)
	} else {
		err = k.Update(i)
	}
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func answer(version uint64) *Fingerprint {
	return &Fingerprint{Namespace: "n", Name: "a", UID: "u1", Version: version}
}

func TestOwnEventThatIsFasterThanTheAnswerIsNotDecoded(t *testing.T) {
	w, k, changes := flying(t)
	done := w.Writing(k.resource, "n", "a")
	if i := event(t, k, "MODIFIED", "7"); i.print != nil {
		t.Error("the event was decoded while the write was under way")
	}
	f := answer(7)
	k.observe(f)
	done()
	if k.prints[Key{"n", "a"}] != f || *changes != 0 || len(k.answers) != 0 || len(k.flying) != 0 {
		t.Errorf("known %+v, %d changes told, %d answers and %d writes kept", k.prints[Key{"n", "a"}], *changes, len(k.answers), len(k.flying))
	}
}

// The event that an object is gone may be faster than the answer to a write before that, and than an event that waits for
// the answer: neither brings the object back.
func TestObjectThatIsGoneIsNotBroughtBack(t *testing.T) {
	for name, meanwhile := range map[string]string{"by the answer": "", "by an event that waited": "9"} {
		t.Run(name, func(t *testing.T) {
			w, k, changes := flying(t)
			done := w.Writing(k.resource, "n", "a")
			if meanwhile != "" {
				event(t, k, "MODIFIED", meanwhile)
			}
			event(t, k, "DELETED", "10")
			if meanwhile == "" {
				k.observe(answer(8))
			}
			done()
			if f := k.prints[Key{"n", "a"}]; f != nil || *changes != 1 {
				t.Errorf("%+v is there, %d changes told", f, *changes)
			}
			k.observe(answer(10)) // it had lost our label, no more
			if f := k.prints[Key{"n", "a"}]; f == nil || f.Version != 10 {
				t.Errorf("what has no label any more is not there: %+v", f)
			}
		})
	}
}

func TestForeignEventDuringAWriteIsTakenAfterIt(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after []string // events before and after the answer, of version 8
		answered      bool
		version       uint64
		changes       int
	}{
		"before our write":             {[]string{"7"}, []string{"8"}, true, 8, 0},
		"after our write":              {[]string{"8", "9"}, nil, true, 9, 1},
		"after the answer":             {[]string{"8"}, []string{"9"}, true, 9, 1},
		"and the write fails":          {[]string{"7"}, nil, false, 7, 1},
		"nothing comes, nothing fails": {nil, nil, true, 8, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w, k, changes := flying(t)
			done := w.Writing(k.resource, "n", "a")
			for _, v := range tc.before {
				event(t, k, "MODIFIED", v)
			}
			if *changes != 0 {
				t.Error("told of a change while the write was under way")
			}
			if tc.answered {
				k.observe(answer(8))
			}
			done()
			for _, v := range tc.after {
				event(t, k, "MODIFIED", v)
			}
			if got := k.prints[Key{"n", "a"}].Version; got != tc.version || *changes != tc.changes {
				t.Errorf("version %d known, %d changes told; want %d and %d", got, *changes, tc.version, tc.changes)
			}
		})
	}
}

func TestDeletionAndOtherObjectsDoNotWait(t *testing.T) {
	w, k, changes := flying(t)
	other := w.Writing(k.resource, "n", "b")
	event(t, k, "MODIFIED", "7")
	other()
	done := w.Writing(k.resource, "n", "a")
	event(t, k, "DELETED", "8")
	if k.prints[Key{"n", "a"}] != nil || *changes != 2 {
		t.Errorf("%d changes told, want the change and the deletion", *changes)
	}
	done()
	if k.prints[Key{"n", "a"}] != nil {
		t.Error("the deleted object came back")
	}
}

func TestTwoWritesOfOneObject(t *testing.T) {
	w, k, changes := flying(t)
	first, second := w.Writing(k.resource, "n", "a"), w.Writing(k.resource, "n", "a")
	event(t, k, "MODIFIED", "7")
	first()
	if *changes != 0 {
		t.Error("told of a change while the second write was under way")
	}
	second()
	if *changes != 1 || k.prints[Key{"n", "a"}].Version != 7 {
		t.Errorf("%d changes told", *changes)
	}
	w.Writing(apply.Resource{Kind: "Unwatched"}, "n", "a")()
}

// A controller writes the status of a new object before we hear the answer that it was made: what it wrote is compared to our
// write once that is known, and nobody has to read the object for that.
func TestChangeOfAnObjectThatIsBeingMade(t *testing.T) {
	w, k, changes := flying(t)
	k.prints = map[Key]*Fingerprint{}
	var record *apply.Record
	k.w.o.Record = func(fleet.ObjectID) *apply.Record { return record }
	done := w.Writing(k.resource, "n", "a")
	event(t, k, "ADDED", "7")
	event(t, k, "MODIFIED", "8")
	record = &apply.Record{Record: plan.Record{ID: fleet.ObjectID{Name: "a"}, UID: "u1", ResourceVersion: 7}, Paths: &apply.PathSet{}}
	f := answer(7)
	f.Paths = record.Paths
	k.observe(f)
	done()
	if f := k.prints[Key{"n", "a"}]; f == nil || f.Version != 8 || f.Paths != record.Paths {
		t.Errorf("known: %+v", f)
	}
	if *changes != 2 || len(k.flying) != 0 {
		t.Errorf("%d changes told, %d writes kept", *changes, len(k.flying))
	}
}
