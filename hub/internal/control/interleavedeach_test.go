package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// Beside what happens at random, each of some words is said once before each commit of the leader in each of some plain courses of things. What comes of
// it must be what comes of the same word right before the leader's act of which that commit is, or right after it: a word that is said while the leader
// decides is as good as one that it knew, or as one that came later.

// moment is when a word is said: before a commit of the leader, or before an act of it or after that; or in the middle of the act of an agent, which has
// done then what it was told, and whose report of that is lost. Each is counted from 1 on.
type moment struct{ commit, act, after, lost int }

// single is a word that is said once.
type single struct {
	counts bool
	now    moment
	acts   []int // of which act each commit is; below 0: it is no commit, but a source that is fetched in that act
	at     moment
	what   func(*interleaved)
	was    bool // it was said
	during bool
}

func (s *single) commits(w *interleaved) {
	if s.counts && !s.during {
		s.now.commit++
		s.acts = append(s.acts, s.now.act)
		s.says(w, moment{commit: s.now.commit})
	}
}

// fetches counts as a commit that a source has been read, and what it has is not known yet to who asked.
func (s *single) fetches(w *interleaved) {
	if s.counts && !s.during {
		s.now.commit++
		s.acts = append(s.acts, -s.now.act)
		s.says(w, moment{commit: s.now.commit})
	}
}

func (s *single) begins(w *interleaved) {
	if s.counts && !s.during {
		s.now.act++
		s.says(w, moment{act: s.now.act})
	}
}

func (s *single) ends(w *interleaved) {
	if s.counts && !s.during {
		s.says(w, moment{after: s.now.act})
	}
}

// loses reports that the report of an agent is lost that has done what it was told.
func (s *single) loses(w *interleaved) bool {
	at := moment{lost: s.now.act}
	if s.counts && !s.during && s.at == at {
		s.says(w, at)
		return true
	}
	return false
}

func (s *single) says(w *interleaved, now moment) {
	if s.what == nil || s.was || now != s.at {
		return
	}
	s.was, s.during = true, true
	defer func() { s.during = false }()
	w.note("... in between %+v:", now)
	w.depth++
	s.what(w)
	w.follows()
	w.depth--
}

// outcome is what a course of things comes to.
type outcome struct {
	found, state string
	log          []string
	said         bool
	acts         []int
}

// runSingle runs a course with a word at a moment.
func runSingle(t *testing.T, of course, at moment, what func(*interleaved)) (out outcome) {
	synctest.Test(t, func(t *testing.T) {
		w := newInterleaved(t, &tape{list: []byte{of.room}})
		for _, name := range wovenClusters {
			w.joins(name)
		}
		w.depth++
		of.before(w)
		w.calms()
		w.note("----")
		w.single = single{counts: true, at: at, what: what}
		of.course(w)
		w.calms()
		w.single.counts = false
		out = outcome{found: w.found, state: w.stateOf(), said: w.single.was, acts: w.single.acts}
		if w.depth--; w.found == "" && at.commit > 0 {
			w.rests()
			out.found = w.found
		}
		out.log = w.log
	})
	return out
}

// calms has all go on until nothing is due any more.
func (w *interleaved) calms() {
	for range 60 {
		before := w.last.Revision()
		for range 100 {
			if w.found != "" || !w.leader() {
				break
			}
		}
		for _, name := range wovenClusters {
			w.acts(name)
		}
		w.follows()
		next := w.wakes()
		// A catalog is looked for each second while a restored store stands, and nothing comes of that.
		if w.found != "" || w.last.Revision() == before && (next.IsZero() || time.Until(next) > time.Minute || record.Stands(store.Untracked(w.last))) {
			return
		}
		if d := time.Until(next); !next.IsZero() && d > 0 && d <= time.Minute {
			<-time.After(d)
		}
	}
	w.finds("all: does not calm down")
}

// stateOf is all that people depend on, without the numbers that tell one order from the next.
func (w *interleaved) stateOf() string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, name := range wovenClusters {
		rec := clusterOf(w.last, name)
		add("%s: there %t, since the beginning %t, zone %q cordoned %t removing %q held %t", name, rec != nil, rec.GetUid() <= "uid-3", rec.GetCluster().GetMetadata().GetLabels()["zone"], rec.GetCluster().GetSpec().GetCordoned(), rec.GetRemoving(), held(w.last, name))
	}
	for _, ref := range wovenModules {
		m := moduleOf(w.last, ref)
		add("%s: there %t deleting %q owner %q", ref.Name, m != nil, m.GetDeleting(), m.GetModule().GetMetadata().GetChangedBy())
		if m != nil {
			got, err := w.api.GetModule(w.ctx, &towlinev1.GetModuleRequest{Project: ref.Project, Name: ref.Name})
			w.must(err)
			s := got.GetModule().GetStatus()
			add("  %s %s %s: %d clusters, %d healthy, %d updated", w.putOf(ref, s.GetRevision()), s.GetRolloutState(), s.GetRolloutReason(), s.GetClusters(), s.GetHealthy(), s.GetUpdated())
		}
		for _, ro := range rollouts.List(w.last, ref) {
			is := rollouts.StateOf(ro)
			of := w.putOf(ref, ro.GetRollout().GetRevision())
			if is == rollout.Superseded {
				of = "put" // whether its revision was cut by then depends on the moment
			}
			add("  rollout of %s: %s %s", of, is, ro.GetRollout().GetStatus().GetReason())
		}
		for _, name := range wovenClusters {
			d, _, _ := store.Get[*storev1.DesiredRecord](w.last, store.DesiredKey(name, ref))
			o, _, _ := store.Get[*storev1.ObservedRecord](w.last, store.ObservedKey(name, ref))
			k, has := w.kubes[name], 0
			if k != nil {
				has = len(k.has[ref])
			}
			add("  in %s: %s; %s %s; has %d", name, w.plainly(ref, d), o.GetStatus().GetPhase(), o.GetStatus().GetReason(), has)
		}
	}
	n := len(out) // what follows has no order
	for _, h := range all[*storev1.HoldRecord](w.last, store.HoldPrefix) {
		x := h.GetHold()
		add("%s %s of %q in %q, %d items", x.GetKind(), x.GetCode(), x.GetModule(), x.GetCluster(), len(x.GetItems()))
	}
	add("%d with orders to delete trackers", len(all[*storev1.RecycleRecord](w.last, store.RecyclePrefix)))
	add("%d answers", len(all[*storev1.ConfirmRecord](w.last, store.ConfirmPrefix)))
	for key, c := range all[*storev1.CatalogRecord](w.last, store.CatalogPrefix) {
		add("%s: deleting %t, prune %t, suspend %t", key, c.GetDeleting(), c.GetCatalog().GetSpec().GetPrune(), c.GetCatalog().GetSpec().GetSuspend())
	}
	slices.Sort(out[n:])
	return strings.Join(out, "\n")
}

// putOf names a revision by the put of its module that it is of: how many were cut before it depends on when each was put.
func (w *interleaved) putOf(ref fleet.ModuleRef, number int64) string {
	rev, _, ok := store.Get[*storev1.RevisionRecord](w.last, store.RevisionKey(ref, number))
	if !ok {
		return "nothing"
	}
	again := 0
	for _, other := range all[*storev1.RevisionRecord](w.last, store.RevisionPrefix+ref.String()+"/") {
		if x := other.GetRevision(); x.GetModuleGeneration() == rev.GetRevision().GetModuleGeneration() && x.GetNumber() < number {
			again++
		}
	}
	return fmt.Sprintf("put %d.%d", rev.GetRevision().GetModuleGeneration(), again)
}

// plainly is what is assigned, without the numbers of the orders.
func (w *interleaved) plainly(ref fleet.ModuleRef, d *storev1.DesiredRecord) string {
	var out []string
	if dead := d.GetTombstone(); dead != nil {
		out = append(out, fmt.Sprintf("goes %s hold %t final %t", dead.GetPolicy(), dead.GetHold(), d.GetFinal()))
	}
	if s := d.GetSync(); s != nil {
		out = append(out, fmt.Sprintf("%s hold %t confirmed %t", w.putOf(ref, s.GetRevision()), s.GetHold(), s.GetPruneConfirmed()))
	}
	for _, y := range d.GetSync().GetYields() {
		out = append(out, fmt.Sprintf("yields %v to %s, of which %v end", y.GetOrdinals(), y.GetOwner(), y.GetEnding()))
	}
	for _, h := range record.HeirsOf(d) {
		out = append(out, fmt.Sprintf("leaves %v to %s, unknown %t", h.GetKeys(), h.GetModule(), h.GetUnknown()))
	}
	if d.GetProblem() != "" {
		out = append(out, fmt.Sprintf("%s problem %s", w.putOf(ref, d.GetProblemRevision()), d.GetProblem()))
	}
	if d.GetNextRevision() != 0 {
		out = append(out, fmt.Sprintf("then %s", w.putOf(ref, d.GetNextRevision())))
	}
	return strings.Join(out, ", ")
}
