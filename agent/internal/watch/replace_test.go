package watch

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
	"towline.dev/towline/pkg/plan"
)

// listing is a kind, and what it tells of a list.
type listing struct {
	*kind
	changed []string
	back    [][]Lost
	synced  int
}

func newListing() *listing {
	l := &listing{kind: newKind()}
	l.w.o.Changed = func(id fleet.ObjectID, _ string) { l.changed = append(l.changed, id.Name) }
	l.w.o.Gone = func(fleet.ObjectID, string, plan.Outcome) {}
	l.w.o.Synced = func(apply.Resource) { l.synced++ }
	l.w.o.WentBack = func(_ apply.Resource, lost []Lost) { l.back = append(l.back, lost) }
	return l
}

func object(name string, version uint64) *Fingerprint {
	return &Fingerprint{Namespace: "n", Name: name, UID: "uid-" + name, Version: version}
}

// list hands over a complete list.
func (l *listing) list(t *testing.T, version string, objects ...*Fingerprint) {
	t.Helper()
	var items []any
	for _, f := range objects {
		items = append(items, &item{print: f})
	}
	l.changed = nil
	if err := l.Replace(items, version); err != nil {
		t.Fatal(err)
	}
	slices.Sort(l.changed)
}

func (l *listing) has(t *testing.T, want ...*Fingerprint) {
	t.Helper()
	for _, f := range want {
		if got := l.prints[f.Key()]; got != f {
			t.Errorf("%s is %+v, want %+v", f.Name, got, f)
		}
	}
	if len(l.prints) != len(want) {
		t.Errorf("%d objects, want %d", len(l.prints), len(want))
	}
}

func TestListIsWhatThereIs(t *testing.T) {
	l := newListing()
	a, b := object("a", 5), object("b", 7)
	l.begin()
	l.list(t, "10", a, b)
	if l.synced != 1 {
		t.Errorf("told %d times that the kind is known", l.synced)
	}
	l.has(t, a, b)
	l.begin()
	a2 := object("a", 5)
	l.list(t, "20", a2, object("c", 15))
	if got := strings.Join(l.changed, " "); got != "b c" {
		t.Errorf("changed %q: a is as it was, b is gone, c is new", got)
	}
	if l.prints[a.Key()] != a {
		t.Error("what is as it was is kept twice")
	}
	if len(l.back) != 0 {
		t.Errorf("a store that goes on is told as restored: %+v", l.back)
	}
}

func TestWhatWasAnsweredSinceTheListBeganStays(t *testing.T) {
	l := newListing()
	l.begin()
	l.list(t, "10", object("a", 5), object("b", 6))
	l.begin()
	a, made, gone := object("a", 25), object("made", 26), object("gone", 15)
	for _, f := range []*Fingerprint{a, made, gone} {
		l.observe(f)
	}
	b := object("b", 18)
	l.list(t, "20", object("a", 5), b)
	l.has(t, a, b, made)
}

// TestEventThatWaitedIsNotPutBackByAList: a watch begins with the objects as its server had them, goes on with what changed, and says then that this
// makes up a list. An event among those that waits for a write is not in that list, and does not come again.
func TestEventThatWaitedIsNotPutBackByAList(t *testing.T) {
	for name, tc := range map[string]struct {
		answered bool
		list     uint64 // the version of the object in the list
		late     bool   // the list is complete before the write is answered
	}{
		"the write is answered, and in the list":        {true, 11, false},
		"the write is answered, and not in the list":    {true, 10, false},
		"the write fails":                               {false, 10, false},
		"the write is answered after the list":          {true, 10, true},
		"the list has what came right after the event":  {true, 13, false},
		"the list has what came after, and then answer": {true, 13, true},
	} {
		t.Run(name, func(t *testing.T) {
			w, k, _ := flying(t)
			k.w.o.Synced = func(apply.Resource) {}
			k.begin()
			replace(t, k, 10, 10)
			k.begin()
			done := w.Writing(k.resource, "n", "a")
			event(t, k, "MODIFIED", "12")
			land := func() {
				if tc.answered {
					k.observe(answer(11))
				}
				done()
			}
			if !tc.late {
				land()
			}
			replace(t, k, 13, tc.list)
			if tc.late {
				land()
			}
			if got, want := k.prints[Key{"n", "a"}].Version, max(12, tc.list); got != want {
				t.Errorf("version %d is known, want %d", got, want)
			}
		})
	}
}

// TestListIsNotOutdoneByAnEventOfBefore: an event that had waited since before the list began may be of a store that was put back since.
func TestListIsNotOutdoneByAnEventOfBefore(t *testing.T) {
	w, k, _ := flying(t)
	k.w.o.Synced = func(apply.Resource) {}
	k.w.o.WentBack = func(apply.Resource, []Lost) {}
	k.begin()
	replace(t, k, 100, 90)
	k.begin()
	done := w.Writing(k.resource, "n", "a")
	event(t, k, "MODIFIED", "95") // and the list that was being read comes to nothing
	k.begin()
	done()
	replace(t, k, 50, 40)
	if got := k.prints[Key{"n", "a"}].Version; got != 40 {
		t.Errorf("version %d is known, want that of the list", got)
	}
}

// replace hands over a complete list of one object.
func replace(t *testing.T, k *kind, version, object uint64) {
	t.Helper()
	if err := k.Replace([]any{&item{print: answer(object)}}, strconv.FormatUint(version, 10)); err != nil {
		t.Fatal(err)
	}
}

func TestAnswersThatAreHeardInAnotherOrder(t *testing.T) {
	l := newListing()
	l.begin()
	l.list(t, "10", object("a", 5))
	l.begin()
	newest := object("a", 12)
	l.observe(newest)
	l.observe(object("a", 11))
	l.list(t, "10", object("a", 5))
	l.has(t, newest)
}

// The definition of a kind may change right after an answer, and with it what the API server shows of the same version.
func TestListOfTheSameVersionIsNewerThanAnAnswer(t *testing.T) {
	paths := &apply.PathSet{}
	with := func(p *apply.PathSet, hash byte) *Fingerprint {
		f := object("a", 25)
		f.Paths, f.Values = p, apply.Values{Hash: apply.Hash{hash}}
		return f
	}
	for _, tt := range []struct {
		name string
		list *Fingerprint
		want bool
	}{
		{"a field is dropped", with(paths, 2), true},
		{"the same", with(paths, 1), false},
		{"not compared: the record came after it", with(nil, 0), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newListing()
			l.begin()
			l.list(t, "20")
			l.begin()
			answer := with(paths, 1)
			l.observe(answer)
			if i := decodeItem(t, l.kind, strings.NewReplacer(`"u1"`, `"uid-a"`, `"7"`, `"25"`).Replace(live)); i.print == answer {
				t.Error("an object of the list was not read")
			}
			want := answer
			if tt.want {
				want = tt.list
			}
			l.list(t, "30", tt.list)
			l.has(t, want)
			if told := len(l.changed) == 1; told != tt.want {
				t.Errorf("told of %v", l.changed)
			}
		})
	}
}

// A store that was restored from an older copy has lower versions, and gives their numbers again.
func TestListOfARestoredStoreIsTaken(t *testing.T) {
	l := newListing()
	l.begin()
	l.list(t, "100", object("a", 90), object("vanished", 95), object("same", 10))
	l.observe(object("a", 101))
	l.begin()
	a, again := object("a", 40), object("again", 30)
	a.lost = true
	l.list(t, "50", a, again, object("same", 10))
	if got := strings.Join(l.changed, " "); got != "a again vanished" {
		t.Errorf("changed %q", got)
	}
	if l.prints[a.Key()] != a || l.prints[again.Key()] != again || len(l.prints) != 3 {
		t.Errorf("has %+v", l.prints)
	}
	want := Lost{l.id(a.Key()), a.UID, 40}
	if len(l.back) != 1 || len(l.back[0]) != 1 || l.back[0][0] != want {
		t.Errorf("told %+v, want %+v", l.back, want)
	}
	l.begin()
	written := object("a", 60)
	l.observe(written)
	l.list(t, "55", object("a", 40), again, object("same", 10))
	if l.prints[a.Key()] != written {
		t.Errorf("a is %+v, not what was just answered", l.prints[a.Key()])
	}
	if len(l.back) != 1 {
		t.Errorf("told again: %+v", l.back)
	}
}

// An answer whose event did not come before the store went back must not stand for another write of the same number.
func TestNumberThatIsGivenAgainIsAnotherWrite(t *testing.T) {
	l := newListing()
	l.begin()
	l.list(t, "6", object("a", 6))
	before := &Fingerprint{Namespace: "n", Name: "a", UID: "u1", Version: 7}
	l.observe(before)
	l.begin()
	l.list(t, "3", object("a", 2))
	if i := decodeItem(t, l.kind, live); i.print == before {
		t.Error("the event of another write was taken for the answer of before")
	}
}

// TestListThatSaysAnotherHealth: a status that a list shows otherwise under the number of before, as a restored store may, or one whose definition
// drops other fields now, is what counts. That an operator's word on a change of a label is not awaited stays so.
func TestListThatSaysAnotherHealth(t *testing.T) {
	l := newListing()
	healthy := func() *Fingerprint {
		f := object("a", 7)
		f.Health, f.Generation = fleet.HealthHealthy, 2
		return f
	}
	was := healthy()
	l.begin()
	l.list(t, "10", was)
	l.begin()
	waits := healthy()
	waits.Health, waits.Reason = fleet.HealthProgressing, health.ReasonOldGeneration
	waits.grace = &grace{ends: time.Now().Add(time.Hour), after: health.Result{Health: fleet.HealthHealthy}}
	l.list(t, "20", waits)
	l.has(t, was)
	l.begin()
	fails := healthy()
	fails.Health, fails.Reason = fleet.HealthDegraded, "Failed"
	l.list(t, "30", fails)
	l.has(t, fails)
	if len(l.changed) != 1 {
		t.Errorf("told of %v", l.changed)
	}
}

func TestVersionAloneIsNoProof(t *testing.T) {
	paths := &apply.PathSet{}
	r := &apply.Record{Paths: paths, Base: apply.Values{Hash: apply.Hash{1}}, Algorithm: apply.Algorithm}
	r.ResourceVersion = 7
	for _, tt := range []struct {
		name string
		f    Fingerprint
		want plan.Match
	}{
		{"other values under the number of our write", Fingerprint{Version: 7, Paths: paths, Values: apply.Values{Hash: apply.Hash{2}}}, plan.MatchUnsettled},
		{"values not read", Fingerprint{Version: 7}, plan.MatchUnknown},
		{"our values under another number", Fingerprint{Version: 3, Paths: paths, Values: apply.Values{Hash: apply.Hash{1}}}, plan.MatchYes},
		{"older values of ours", Fingerprint{Version: 3, Paths: paths, Values: apply.Values{Hash: apply.Hash{2}}}, plan.MatchUnsettled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.f.Match(r, false); got != tt.want {
				t.Errorf("match %v, want %v", got, tt.want)
			}
		})
	}
}

// A GET that did not find an object is heard late: what the watch has shown since it was asked is there, and a list that is as new as that would
// keep any later answer from being taken.
func TestLateAnswerForgetsNothingThatCameSince(t *testing.T) {
	l := newListing()
	s := Single{Key: Key{Namespace: "n", Name: "a"}}
	l.w.singles = map[Single]*kind{s: l.kind}
	before, _ := l.w.SeeOne(s)
	a := object("a", 5)
	l.list(t, "7", a)
	l.w.ForgetOne(s, before)
	l.has(t, a)
	before, _ = l.w.SeeOne(s)
	l.w.ForgetOne(s, before)
	l.has(t)
}

// TestAnswerInAnotherVersionIsNoRestoredStore: two versions of a kind are watched, as an HPA's, and an object is written in the one while the other one
// is listed, as of before. A list that began after the answer tells of a store that was put back.
func TestAnswerInAnotherVersionIsNoRestoredStore(t *testing.T) {
	for name, after := range map[string]bool{"answered while it is read": false, "answered before": true} {
		l := newListing()
		written := l.resource
		written.Version = "v2"
		l.w.kinds = map[apply.Resource]*kind{l.resource: l.kind, written: emptyKind(l.w, written)}
		id := fleet.ObjectID{Kind: "ConfigMap", Namespace: "n", Name: "a"}
		write := func() {
			object := map[string]any{"apiVersion": "v2", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "n", "name": "a", "uid": "uid-a", "resourceVersion": "101"}}
			l.w.Answered(written, object, &apply.Record{Record: plan.Record{ID: id, UID: "uid-a", ResourceVersion: 101}})
		}
		if after {
			write()
		}
		l.begin()
		if !after {
			write()
		}
		shown := object("a", 90)
		shown.lost = true // 90 is older than the record's 101
		l.list(t, "95", shown)
		if told := len(l.back) != 0; told != after {
			t.Errorf("%s: told as put back: %+v", name, l.back)
		}
	}
}
