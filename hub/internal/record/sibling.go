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
	before map[string]*storev1.RevisionRecord // the same of the module that had its name before
	at     int64                              // the store's revision since which it lets go: its newest was cut, or what came after that
	anew   bool                               // something did: it was deleted, or goes back to a revision, or begins one that was there already
	looked *storev1.FollowRecord              // what is known of the looks at its source
	reason string                             // why it does not take up what is there; empty: it does
	sees   string                             // what the ref came to for it last
	since  int64                              // the store's revision at which the last look began of which something came; 0: not known
	waits  bool                               // for its put to have a revision
	draft  *Draft                             // of that put, if it is queued: it takes what is there at its turn; nil: it is not, or not known
	// siblings are those that were read; nil: no sibling.
	siblings map[fleet.ModuleRef]*sibling
}

func newLetting(r store.Reader, ref fleet.ModuleRef) *letting {
	r = store.Untracked(r)
	out := &letting{ref: ref, siblings: map[fleet.ModuleRef]*sibling{}, took: map[string]*storev1.RevisionRecord{}, before: map[string]*storev1.RevisionRecord{}}
	rec, put, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	out.rec = rec
	_, first := rollouts.First(r, ref)
	var cut store.Entry
	store.Scan(r, store.RevisionPrefix+ref.String()+"/", func(rev *storev1.RevisionRecord, e store.Entry) bool {
		of := out.before
		if rev.GetRevision().GetNumber() >= first {
			out.newest, cut, of = rev, e, out.took
		}
		of[wire.Upstream(rev.GetRevision().GetSpec().GetSource())] = rev
		return true
	})
	out.decided(r, put, cut)
	if rec != nil {
		out.looked, out.reason, out.sees = Followed(r, ref, rec), said(r, ref, rec).GetReason(), seenRef(r, ref, rec)
		out.waits = rollouts.Unresolved(r, ref) != nil
	}
	switch out.reason {
	case follow.ReasonGoesBack: // what it found is of before what it has
		out.sees = out.newest.GetRevision().GetResolvedRef()
	case follow.ReasonRolledBack: // it has seen that, and stays where it is, as one whose newest rollout was rolled back
		out.reason = ""
	}
	if out.reason == "" {
		out.since = began(r, out.looked)
	}
	return out
}

// made is the store's revision at which something was put.
func made(r store.Reader, e store.Entry) int64 {
	if e.CreateRevision == 0 { // in the transaction that asks
		return r.Revision() + 1
	}
	return e.CreateRevision
}

// decided finds since when it lets go. A retry, and a put that finds what the newest revision has, begin that anew, long after it was cut; so
// does what goes back. What had its name before lets go until then what is left of it.
func (l *letting) decided(r store.Reader, put, cut store.Entry) {
	l.at = put.ModRevision
	if l.newest != nil {
		l.at = made(r, cut)
	}
	if ro := rollouts.Driven(r, l.ref); ro != nil {
		if begun, there := r.Get(store.RolloutKey(l.ref, ro.GetRollout().GetNumber())); there && made(r, begun) > l.at {
			l.at, l.anew = made(r, begun), true
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

// queued reads what its own put is going to list that waits for its turn.
func (l *letting) queued(ctx context.Context, r store.Reader, drafts Drafts) {
	ro, queued := comes(store.Untracked(r), l.ref)
	if !queued || drafts == nil || l.upstream() == "" {
		return
	}
	m, err := wire.ModuleFromProto(l.rec.GetModule())
	if err != nil {
		return // its rollout is going to fail
	}
	if d := drafts(ctx, m, l.rec, ro.GetRollout().GetNumber()); d.Known || d.Failed {
		l.draft = &d
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

// decision is what a cluster lets something go by, beside what the module does in all of them.
type decision struct {
	since int64 // the store's revision since which the cluster does; 0: no later than the module
	final bool  // what goes there is of a module that was deleted: it may be the one that had the name before
}

// decisionOf is that of a desired record.
func decisionOf(r store.Reader, d *storev1.DesiredRecord) decision {
	out := decision{since: d.GetLetGoAt(), final: d.GetFinal()}
	if out.since > r.Revision()+1 { // it is of before a restore
		out.since = 0
	}
	return out
}

// and is what holds for both.
func (d decision) and(x decision) decision {
	return decision{since: max(d.since, x.since), final: d.final || x.final}
}

// sibling is another module that has a source which the one has, too, or one of its revisions: what was seen of that for it, and what it took.
type sibling struct {
	has, before *storev1.RevisionRecord // what the one has of that source, and what had its name before; nil: nothing, or not yet
	mine        bool                    // it is the source of the one as that is put
	follows     bool
	waits       bool                    // for its put to have a revision
	fails       bool                    // its newest rollout came to nothing at its source, and no look has shown since that nothing of that is left
	looked      *storev1.FollowRecord   // what came of the last look that still holds; nil: nothing
	began       int64                   // the store's revision at which that began; 0: not known
	saw         glimpse                 // what the source came to when it was fetched for it last
	newest      glimpse                 // what its newest revision is of
	took        *storev1.RevisionRecord // what its newest rollout leads to; nil: nothing
	begun, cut  int64                   // the store's revisions at which that rollout began, and that revision was cut
	anew        bool                    // the rollout has begun since the look
}

// sibling is a module, read once; nil: it has nothing to do with the sources of the one.
func (l *letting) sibling(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) *sibling {
	s, known := l.siblings[ref]
	if !known {
		s = l.readSibling(r, ref, rec)
		l.siblings[ref] = s
	}
	return s
}

func (l *letting) readSibling(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) *sibling {
	src := rec.GetModule().GetSpec().GetSource()
	upstream := wire.Upstream(src)
	s := &sibling{has: l.took[upstream], before: l.before[upstream], mine: upstream == l.upstream(), follows: src.GetFollow() != nil}
	if ref == l.ref || upstream == "" || l.rec == nil || !s.mine && s.has == nil && s.before == nil {
		return nil
	}
	r = store.Untracked(r)
	f := said(r, ref, rec)
	s.waits, s.fails, s.looked, s.began = rollouts.Unresolved(r, ref) != nil, Stalled(r, ref, rec), f, began(r, f)
	s.saw, s.newest = glimpse{ref: seenRef(r, ref, rec), at: s.began}, glimpseOf(NewestRevision(r, ref))
	if f.GetReason() == "" { // else it says what was taken up before
		s.saw.files = Digest(f.GetFetched())
	}
	last := rollouts.Last(r, ref).GetRollout()
	if s.took = Revision(r, ref, last.GetRevision()); s.took != nil {
		e, _ := r.Get(store.RolloutKey(ref, last.GetNumber()))
		cut, _ := r.Get(store.RevisionKey(ref, last.GetRevision()))
		s.begun, s.cut, s.anew = e.CreateRevision, made(r, cut), f != nil && begunSince(r, ref, last, f)
	}
	return s
}

// has is what the one has of the source of a sibling, or what had its name before does.
func (l *letting) has(s *sibling, d decision) *storev1.RevisionRecord {
	if d.final && s.before != nil {
		return s.before
	}
	return s.has
}

// decides reports that something is let go by more than that a revision was cut of their source: another state of that than the revision's may
// have brought it to others, and only who has looked since knows what is there.
func (l *letting) decides(has *storev1.RevisionRecord, d decision) bool {
	return l.anew || has != l.newest || d.since > l.at
}

// behind reports that a module follows the source that the one has, too, and does not take up what that has there: it cannot be fetched
// or rendered, or may not begin, or failed before it had a revision, or has not been looked at since. What it is going to list is not known
// until it does. While its put waits for its revision it is not behind. One that follows nothing is when its put failed before that had one.
func (l *letting) behind(s *sibling, d decision) bool {
	has := l.has(s, d)
	switch {
	case s.waits, has == nil && !s.mine:
		return false
	case s.fails:
		return true // it is put again, or deleted: until then nobody knows what it lists
	case !s.follows:
		return false
	}
	switch reason := s.looked.GetReason(); {
	case reason == "":
		return l.unseenBy(s, d)
	case follow.OfServer(reason):
		if has != nil && l.decides(has, d) && s.looked.GetLooked().AsTime().Sub(s.looked.GetSince().AsTime()) < awayFor {
			return true
		}
		// A server that is away is so for both: what both have seen, and taken up, is known.
		seen := has.GetRevision().GetResolvedRef()
		if s.mine && has == s.has {
			seen = l.sees
		}
		return seen == "" || seen != s.looked.GetResolvedRef() || s.mine && s.has != nil && l.sees != s.looked.GetResolvedRef()
	}
	return true
}

// awayFor is how long a server is away before what both have seen of it is all that there is for what lets go without having looked itself:
// it may have refused one of the many looks that this asks for.
const awayFor = time.Hour

// unlooked reports that a module is behind only because nobody has looked for it at what the one has: a look ends that.
func (l *letting) unlooked(s *sibling, d decision) bool {
	return s.follows && !s.fails && s.looked.GetReason() == "" && l.unseenBy(s, d)
}

// unseenBy reports that the one lets go by something in their source that was fetched for the module neither by a look nor for a revision. A
// look after that has seen that, or what is there instead.
func (l *letting) unseenBy(s *sibling, d decision) bool {
	has := l.has(s, d)
	switch {
	case has == nil:
		return false
	case s.strayed(has):
		return true
	case s.looked != nil && s.began >= max(l.at, d.since):
		return false
	}
	if l.decides(has, d) {
		return true
	}
	return !s.saw.is(has) && !s.newest.is(has)
}

// strayed reports that a rollout of a module has begun since it was looked at, of something else than that look saw and than the one has: it
// took what was there at its turn, which nobody has noted. A revision that was there before says of another fetch what it is of.
func (s *sibling) strayed(has *storev1.RevisionRecord) bool {
	if s.took == nil || !s.anew {
		return false
	}
	looked := glimpse{ref: s.looked.GetResolvedRef(), files: Digest(s.looked.GetFetched())}
	return !looked.is(s.took) && !(s.cut > s.began && glimpseOf(has).is(s.took))
}

// overtakenBy reports that a look at another module found something else in their source than the one has: that may list again what it lets
// go. A look at the one ends that, unless it cannot take up what is there. Below a server that is away the other is behind, if it saw something else.
func (l *letting) overtakenBy(s *sibling) bool {
	switch {
	case s == nil || !l.shares(s):
		return false
	case !s.follows:
		return l.outrun(s)
	}
	return s.looked != nil && !follow.OfServer(s.looked.GetReason()) && !l.knows(s.saw)
}

// outrun is overtakenBy for a module that follows nothing: nobody looks at it, so what its turn took is all that was seen.
func (l *letting) outrun(s *sibling) bool {
	if s.took == nil || s.begun <= l.at || wire.Upstream(s.took.GetRevision().GetSpec().GetSource()) != l.upstream() {
		return false
	}
	saw := glimpseOf(s.took)
	saw.at = s.begun
	return !l.knows(saw)
}

// shares reports that the one takes up the source that another module has, by itself or at the turn of its put, and that nothing of it is being
// fetched: then it is not known what it lists.
func (l *letting) shares(s *sibling) bool {
	if !s.mine || l.rec.GetDeleting() != "" {
		return false
	}
	return l.draft != nil || !l.waits && l.rec.GetModule().GetSpec().GetSource().GetFollow() != nil
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

// knows reports that the one has what somebody saw of their source, or was looked at since, and could take up what is there. What counts while
// its put is queued is what was fetched for that.
func (l *letting) knows(saw glimpse) bool {
	switch d := l.draft; {
	case d != nil:
		same := saw.ref != "" && saw.ref == d.Ref || saw.ref == "" && !saw.files.IsZero() && saw.files == d.Files
		return !d.Failed && (saw.at < d.At || same)
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
func (d Draft) behind(l *letting, s *sibling, by decision) bool {
	has := l.has(s, by)
	if !d.Failed && !d.Known || has == nil && !s.mine {
		return false
	}
	return d.Failed || d.outdated(l, has, by)
}

func (d Draft) outdated(l *letting, has *storev1.RevisionRecord, by decision) bool {
	if has == nil || d.At >= max(l.at, by.since) {
		return false
	}
	if l.decides(has, by) {
		return true
	}
	return !d.saw().is(has)
}

// saw is what was fetched for it.
func (d Draft) saw() glimpse { return glimpse{d.Ref, d.Files, d.At} }

// overtakes reports that the draft of a module is of something else in their source than the one has that lets something go.
func (d Draft) overtakes(l *letting, s *sibling) bool {
	return s != nil && d.Known && !d.Failed && l.shares(s) && !l.knows(d.saw())
}

// Unlooked reports that a module may be anything's heir only because nobody has looked for it at what the one has that lets go, or that did
// itself at what others have: a look ends that, or the source of its put, which is queued, is fetched again.
func (x *Succession) Unlooked(ctx context.Context, r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	l := x.letting(ctx, r)
	if ref == x.ref {
		return x.overtaken && (l.draft == nil && l.reason == "" || l.draft != nil && !l.draft.Failed)
	}
	s := l.sibling(r, ref, rec)
	if s == nil {
		return false
	}
	ro, queued := comes(r, ref)
	if ro == nil {
		return l.unlooked(s, x.by) || x.by.final && l.unlooked(s, decision{since: x.by.since})
	}
	m, err := wire.ModuleFromProto(rec.GetModule())
	if err != nil || !queued || x.Drafts == nil {
		return false
	}
	d := x.Drafts(ctx, m, rec, ro.GetRollout().GetNumber())
	return d.Known && !d.Failed && d.behind(l, s, x.by)
}

// Asks reports that it has not been asked yet whether a module is Unlooked or Away, or not by what clusters let go by since: of all clusters
// that are looked at under one view the first asks for the others.
func (x *Succession) Asks(ref fleet.ModuleRef) bool {
	by, asked := x.asked[ref]
	if asked && by == x.by {
		return false
	}
	if x.asked == nil {
		x.asked = map[fleet.ModuleRef]decision{}
	}
	x.asked[ref] = x.by
	return true
}

// Away reports that a module may be anything's heir because its server, or for the one itself its own, was away at the last look: a later one
// may end that.
func (x *Succession) Away(ctx context.Context, r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) bool {
	l := x.letting(ctx, r)
	if ref == x.ref {
		return x.overtaken && l.draft == nil && follow.OfServer(l.reason)
	}
	s := l.sibling(r, ref, rec)
	return s != nil && s.follows && follow.OfServer(s.looked.GetReason())
}

// letting is the module itself, read once.
func (x *Succession) letting(ctx context.Context, r store.Reader) *letting {
	if x.lets == nil {
		x.lets = newLetting(r, x.ref)
		x.lets.queued(ctx, r, x.Drafts)
	}
	return x.lets
}

// since is when a cluster begins to let go what it has by old and next does not list, where that is later than the module does, or by something
// else; 0: it is not. What a rollout brings to one cluster after the other is what all have seen since it was cut. Not so what changes in the
// cluster, such as its labels, and what goes back or begins anew.
func (x *Succession) since(ctx context.Context, r store.Reader, old, next *storev1.DesiredRecord) int64 {
	was, is := old.GetSync(), next.GetSync()
	switch {
	case old == nil, was == nil && (is == nil || old.GetFinal()):
		return old.GetLetGoAt()
	case is == nil, was == nil: // it leaves, or comes back where it was to leave
	case is.GetRevision() == was.GetRevision() && sameGiven(&storev1.Given{Bundle: is.GetBundle(), Values: is.GetValues()}, &storev1.Given{Bundle: was.GetBundle(), Values: was.GetValues()}):
		return old.GetLetGoAt()
	case is.GetRevision() > was.GetRevision() && old.GetProblem() == "" && !x.letting(ctx, r).anew:
		return old.GetLetGoAt()
	}
	return r.Revision() + 1
}

// seenRef is what the ref of a module's source came to when that was fetched last; empty: that is not known, or it has none.
func seenRef(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord) string {
	f, newest := Followed(r, ref, m), NewestRevision(r, ref)
	if cut := newest.GetRevision().GetMetadata().GetCreationTimestamp(); f == nil || cut.AsTime().After(f.GetLooked().AsTime()) {
		return newest.GetRevision().GetResolvedRef()
	}
	return f.GetResolvedRef()
}
