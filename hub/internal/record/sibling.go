package record

import (
	"context"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/wire"
)

// letting is the module that lets something go, as those are held against it that have its source. Who saw what first is a matter of the
// store's revisions: clocks are set back, and those of two hubs differ.
type letting struct {
	ref    fleet.ModuleRef
	rec    *storev1.ModuleRecord // nil: it cannot be read, or is gone
	newest *storev1.RevisionRecord
	took   map[string]*storev1.RevisionRecord // the newest of its revisions, by what they are of: one of before may be in a cluster still
	at     int64                              // the store's revision since which it lets go: its newest was cut, or what came after that
	anew   bool                               // something did: it was deleted, or goes back to a revision, or begins one that was there already
	looked *storev1.FollowRecord              // what is known of the looks at its source
	reason string                             // why it does not take up what is there; empty: it does
	sees   string                             // what the ref came to for it last
	since  int64                              // the store's revision at which the last look began of which something came; 0: not known
	waits  bool                               // for its put to have a revision
}

func newLetting(r store.Reader, ref fleet.ModuleRef) *letting {
	r = store.Untracked(r)
	out := &letting{ref: ref, took: map[string]*storev1.RevisionRecord{}}
	rec, put, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	out.rec = rec
	_, first := rollouts.First(r, ref)
	var cut store.Entry
	store.Scan(r, store.RevisionPrefix+ref.String()+"/", func(rev *storev1.RevisionRecord, e store.Entry) bool {
		if rev.GetRevision().GetNumber() >= first {
			out.newest, cut = rev, e
			out.took[wire.Upstream(rev.GetRevision().GetSpec().GetSource())] = rev
		}
		return true
	})
	out.decided(r, put, cut)
	if rec != nil {
		out.looked, out.reason, out.sees = Followed(r, ref, rec), said(r, ref, rec).GetReason(), seenRef(r, ref, rec)
		out.waits = rollouts.Unresolved(r, ref) != nil
	}
	if out.reason == "" {
		out.since = began(r, out.looked)
	}
	return out
}

// decided finds since when it lets go. A retry, and a put that finds what the newest revision has, begin that anew, long after it was cut; so
// does what goes back.
func (l *letting) decided(r store.Reader, put, cut store.Entry) {
	made := func(e store.Entry) int64 {
		if e.CreateRevision == 0 { // in the transaction that asks
			return r.Revision() + 1
		}
		return e.CreateRevision
	}
	if l.newest != nil {
		l.at = made(cut)
	}
	if ro := rollouts.Driven(r, l.ref); ro != nil {
		if begun, there := r.Get(store.RolloutKey(l.ref, ro.GetRollout().GetNumber())); there && made(begun) > l.at {
			l.at, l.anew = made(begun), true
		}
		if back := ro.GetBackSince(); back != 0 {
			if l.anew = true; back <= r.Revision()+1 { // else it is of before a restore
				l.at = max(l.at, back)
			}
		}
	}
	if l.rec.GetDeleting() != "" {
		l.at, l.anew = max(l.at, put.ModRevision), true
	}
}

// began is the revision of the store since which a look has seen what there is; 0: that is not known, as after a restore.
func began(r store.Reader, f *storev1.FollowRecord) int64 {
	if hub, _, _ := store.Get[*storev1.Hub](r, store.HubKey); f.GetIncarnation() != hub.GetIncarnation() {
		return 0
	}
	return f.GetBegan()
}

// upstream is the source that it has as it is put; empty: it has none that others can have, too.
func (l *letting) upstream() string { return wire.Upstream(l.rec.GetModule().GetSpec().GetSource()) }

// has is its newest revision of the source of another module; nil: there is none, or not yet.
func (l *letting) has(rec *storev1.ModuleRecord) *storev1.RevisionRecord {
	return l.took[wire.Upstream(rec.GetModule().GetSpec().GetSource())]
}

// decides reports that it lets go by more than that a revision was cut of their source: another state of that than the revision's may have
// brought it to others, and only who has looked since knows what is there.
func (l *letting) decides(has *storev1.RevisionRecord) bool { return l.anew || has != l.newest }

// sibling reports that a module follows a source that the one has, too, or one of its revisions.
func (l *letting) sibling(ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	return rec.GetModule().GetSpec().GetSource().GetFollow() != nil && l.related(ref, rec)
}

// related is sibling also of a module that follows nothing: what its queued put takes is what is there at its turn.
func (l *letting) related(ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	upstream := wire.Upstream(rec.GetModule().GetSpec().GetSource())
	return ref != l.ref && upstream != "" && l.rec != nil && (l.upstream() == upstream || l.has(rec) != nil)
}

// seen is what the ref of another module's source came to when that was fetched last for the one; empty: that is not known.
func (l *letting) seen(rec *storev1.ModuleRecord) string {
	if wire.Upstream(rec.GetModule().GetSpec().GetSource()) == l.upstream() {
		return l.sees
	}
	return l.has(rec).GetRevision().GetResolvedRef()
}

// behind reports that a module follows the source that the one has, too, and does not take up what that has there: it cannot be fetched
// or rendered, or may not begin, or failed before it had a revision, or has not been looked at since. What it is going to list is not known
// until it does. While its put waits for its revision it is not behind.
func (l *letting) behind(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	r = store.Untracked(r)
	if !l.sibling(ref, rec) || rollouts.Unresolved(r, ref) != nil {
		return false
	}
	if SourceFailed(r, ref) {
		return true
	}
	f := said(r, ref, rec)
	switch reason := f.GetReason(); {
	case reason == "":
		return l.unseenBy(r, ref, rec, f)
	case follow.OfServer(reason):
		if has := l.has(rec); has != nil && l.decides(has) && f.GetLooked().AsTime().Sub(f.GetSince().AsTime()) < awayFor {
			return true
		}
		// A server that is away is so for both: what both have seen, and taken up, is known.
		seen := l.seen(rec)
		return seen == "" || seen != f.GetResolvedRef()
	}
	return true
}

// awayFor is how long a server is away before what both have seen of it is all that there is for what lets go without having looked itself:
// it may have refused one of the many looks that this asks for.
const awayFor = time.Hour

// unlooked reports that a module is behind only because nobody has looked for it at what the one has: a look ends that.
func (l *letting) unlooked(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	r = store.Untracked(r)
	if !l.sibling(ref, rec) || SourceFailed(r, ref) {
		return false
	}
	f := said(r, ref, rec)
	return f.GetReason() == "" && l.unseenBy(r, ref, rec, f)
}

// unseenBy reports that the one lets go by something in their source that was fetched for the module neither by a look nor for a revision. A
// look after that has seen that, or what is there instead.
func (l *letting) unseenBy(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, f *storev1.FollowRecord) bool {
	has := l.has(rec)
	switch {
	case has == nil:
		return false
	case strayed(r, ref, f, has):
		return true
	case f != nil && began(r, f) >= l.at:
		return false
	}
	if l.decides(has) {
		return true
	}
	looked := glimpse{ref: seenRef(r, ref, rec), files: Digest(f.GetFetched())}
	return !looked.is(has) && !glimpseOf(NewestRevision(r, ref)).is(has)
}

// strayed reports that a rollout of a module has begun since it was looked at, of something else than that look saw and than the one has: it
// took what was there at its turn, which nobody has noted.
func strayed(r store.Reader, ref fleet.ModuleRef, f *storev1.FollowRecord, has *storev1.RevisionRecord) bool {
	last := rollouts.Last(r, ref).GetRollout()
	took := Revision(r, ref, last.GetRevision())
	if f == nil || took == nil || !begunSince(r, ref, last, f) {
		return false
	}
	looked := glimpse{ref: f.GetResolvedRef(), files: Digest(f.GetFetched())}
	return !looked.is(took) && !glimpseOf(has).is(took)
}

// overtakenBy reports that a look at another module found something else in their source than the one has: that may list again what it lets
// go. A look at the one ends that, unless it cannot take up what is there. Below a server that is away the other is behind, if it saw something else.
func (l *letting) overtakenBy(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	if !l.shares(ref, rec) {
		return false
	}
	r = store.Untracked(r)
	if rec.GetModule().GetSpec().GetSource().GetFollow() == nil {
		return l.outrun(r, ref)
	}
	f := said(r, ref, rec)
	saw := glimpse{ref: seenRef(r, ref, rec), at: began(r, f)}
	if f.GetReason() == "" { // else it says what was taken up before
		saw.files = Digest(f.GetFetched())
	}
	return f != nil && !follow.OfServer(f.GetReason()) && !l.knows(saw)
}

// outrun is overtakenBy for a module that follows nothing: nobody looks at it, so what its turn took is all that was seen.
func (l *letting) outrun(r store.Reader, ref fleet.ModuleRef) bool {
	last := rollouts.Last(r, ref).GetRollout()
	took := Revision(r, ref, last.GetRevision())
	e, _ := r.Get(store.RolloutKey(ref, last.GetNumber()))
	if took == nil || e.CreateRevision <= l.at || wire.Upstream(took.GetRevision().GetSpec().GetSource()) != l.upstream() {
		return false
	}
	saw := glimpseOf(took)
	saw.at = e.CreateRevision
	return !l.knows(saw)
}

// shares reports that the one follows the source that another module has, and waits for nothing from there.
func (l *letting) shares(ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	if ref == l.ref || l.waits || l.rec.GetDeleting() != "" || l.rec.GetModule().GetSpec().GetSource().GetFollow() == nil {
		return false
	}
	return l.upstream() != "" && l.upstream() == wire.Upstream(rec.GetModule().GetSpec().GetSource())
}

// glimpse is what somebody saw of a source, and at which revision of the store that began.
type glimpse struct {
	ref   string
	files fleet.Digest
	at    int64
}

// glimpseOf is what a revision was made of.
func glimpseOf(rev *storev1.RevisionRecord) glimpse {
	return glimpse{ref: rev.GetRevision().GetResolvedRef(), files: Digest(rev.GetArtifact())}
}

// is reports that the revision is of what was seen. Of what has no ref the files are all that there is.
func (g glimpse) is(rev *storev1.RevisionRecord) bool {
	if to := rev.GetRevision().GetResolvedRef(); to != "" {
		return g.ref == to
	}
	return g.files == Digest(rev.GetArtifact())
}

// knows reports that the one has what somebody saw of their source, or was looked at since, and could take up what is there.
func (l *letting) knows(saw glimpse) bool {
	switch {
	case l.reason != "" && !follow.OfServer(l.reason):
		return false
	case saw.at < l.since:
		return true
	case saw.ref != "":
		return saw.ref == l.sees
	}
	return !saw.files.IsZero() && (saw.files == Digest(l.looked.GetFetched()) || saw.files == Digest(l.newest.GetArtifact()))
}

// said is what came of the last look at the source of a module; nil: nothing that still holds.
func said(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) *storev1.FollowRecord {
	if f := Followed(r, ref, rec); !Mended(r, ref, f) {
		return f
	}
	return nil
}

// behind reports that a module has the source that the one has, too, which lets something go, and that its draft is broken, or of something
// that was there before that.
func (d Draft) behind(l *letting, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	if !d.Failed && !d.Known || !l.related(ref, rec) {
		return false
	}
	return d.Failed || d.outdated(l, l.has(rec))
}

func (d Draft) outdated(l *letting, has *storev1.RevisionRecord) bool {
	if has == nil || d.At >= l.at {
		return false
	}
	if l.decides(has) {
		return true
	}
	return !d.saw().is(has)
}

// saw is what was fetched for it.
func (d Draft) saw() glimpse { return glimpse{d.Ref, d.Files, d.At} }

// overtakes reports that the draft of a module is of something else in their source than the one has that lets something go.
func (d Draft) overtakes(l *letting, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	return d.Known && !d.Failed && l.shares(ref, rec) && !l.knows(d.saw())
}

// Unlooked reports that a module may be anything's heir only because nobody has looked for it at what the one has that lets go, or that did
// itself at what others have: a look ends that, or the source of its put, which is queued, is fetched again.
func (x *Succession) Unlooked(ctx context.Context, r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	if ref == x.ref {
		return x.overtaken && x.letting(r).reason == ""
	}
	ro, queued := comes(r, ref)
	if ro == nil {
		return x.letting(r).unlooked(r, ref, rec)
	}
	m, err := wire.ModuleFromProto(rec.GetModule())
	if err != nil || !queued || x.Drafts == nil {
		return false
	}
	d := x.Drafts(ctx, m, rec, ro.GetRollout().GetNumber())
	return d.Known && !d.Failed && d.behind(x.letting(r), ref, rec)
}

// Away reports that a module may be anything's heir because its server, or for the one itself its own, was away at the last look: a later one
// may end that.
func (x *Succession) Away(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	l := x.letting(r)
	if ref == x.ref {
		return x.overtaken && follow.OfServer(l.reason)
	}
	return l.sibling(ref, rec) && follow.OfServer(said(store.Untracked(r), ref, rec).GetReason())
}

// letting is the module itself, read once.
func (x *Succession) letting(r store.Reader) *letting {
	if x.lets == nil {
		x.lets = newLetting(r, x.ref)
	}
	return x.lets
}

// seenRef is what the ref of a module's source came to when that was fetched last; empty: that is not known, or it has none.
func seenRef(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord) string {
	f, newest := Followed(r, ref, m), NewestRevision(r, ref)
	if cut := newest.GetRevision().GetMetadata().GetCreationTimestamp(); f == nil || cut.AsTime().After(f.GetLooked().AsTime()) {
		return newest.GetRevision().GetResolvedRef()
	}
	return f.GetResolvedRef()
}
