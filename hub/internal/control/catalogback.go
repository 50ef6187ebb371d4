package control

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// maxKnownFiles is how many of the files that a catalog had are known again.
const maxKnownFiles = 16

// goesBack reports that a source has older files than those that the catalog took up last. A cache, a mirror or one of several servers that is
// behind looks the same as somebody who puts them back: what such files do not list may just not be in them yet. A revert that is a commit of its
// own goes forward. Nothing is known where the catalog names another source than then.
func (x *catalogue) goesBack(a source.Artifact) bool { return x.older(a, x.was.GetTook()) }

// older reports that files are older than those that were noted.
func (x *catalogue) older(a source.Artifact, took *storev1.CatalogTook) bool {
	if took == nil || filesOf(a) == took.GetFiles() || !bytes.Equal(took.GetSource(), sourceOf(x.rec)) {
		return false
	}
	if follow.Lower(filesOf(a), took.GetFiles(), ranged(x.rec.GetCatalog().GetSpec().GetSource())) {
		return true
	}
	if then := took.GetMade(); then != nil && !a.Made.IsZero() && !a.Made.Equal(then.AsTime()) {
		return a.Made.Before(then.AsTime())
	}
	return slices.Contains(took.GetBefore(), filesOf(a))
}

// steadyCatalog is an error where a source goes back and nobody asked for the look, until it does so for good (see follow.Back). A catalog that
// was put since is looked at for that. One that is not followed is looked at by itself for what a person asked for, whether that was taken up or
// not: it goes back only by another word, for nobody looks whether it comes forth again.
func (c *Controller) steadyCatalog(x *catalogue, a source.Artifact) error {
	x.next.Back, x.next.BackSeen = "", 0
	alone := x.c.Follow == nil
	if !x.goesBack(a) && !(alone && x.older(a, x.was.GetFound())) {
		x.finds(a)
		return nil
	}
	files := filesOf(a)
	b := follow.Back{Why: "the source goes back to " + files, Unfollowed: alone}
	if took := x.was.GetTook(); took.GetBackTo() == files {
		b.Before = took.GetBackAt().AsTime()
	}
	was := follow.Sightings{Files: x.was.GetBack(), Seen: int(x.was.GetBackSeen())}
	next, why, soon := b.Look(was, files, x.isPut() || len(x.asks) > 0, time.Now(), "towline resync catalog "+x.ref.Display())
	x.next.Back, x.next.BackSeen = files, int32(next.Seen) // also where it is let through: a person may be asked what goes, and the answer is about these
	if why == "" {
		x.finds(a)
		return nil
	}
	if x.called && soon {
		c.catalogs.callAgain(x.ref, time.Now().Add(calledAgain))
	}
	return &lookError{fleet.Errorf(fleet.ErrPrecondition, "%s", why), follow.ReasonGoesBack}
}

// isPut reports that the catalog was put since its files were had last: its source may have been away since. A look that another hub has begun, and
// not ended, was at what was put.
func (x *catalogue) isPut() bool {
	is, read, seen := x.rec.GetCatalog().GetMetadata().GetGeneration(), x.was.GetReadGeneration(), x.was.GetStatus().GetObservedGeneration()
	begun := seen == 0 && read == is
	return !begun && (seen != is || read > 0 && read != is)
}

// finds notes by which files of a source that is not followed a look goes, for those after it, until they are taken up.
func (x *catalogue) finds(a source.Artifact) {
	if x.c.Follow == nil {
		x.next.Found = x.noted(a, cmp.Or(x.was.GetFound(), x.was.GetTook()))
	}
}

// takes notes that the files of a source are taken up.
func (x *catalogue) takes(a source.Artifact) {
	was := x.was.GetTook()
	took := x.noted(a, was)
	took.BackTo, took.BackAt = was.GetBackTo(), was.GetBackAt()
	if x.goesBack(a) {
		took.BackTo, took.BackAt = took.GetFiles(), timestamppb.Now()
	}
	x.next.Took, x.next.Found = took, nil
}

// noted are the files of a source, with those of the same source that were noted before.
func (x *catalogue) noted(a source.Artifact, was *storev1.CatalogTook) *storev1.CatalogTook {
	files := filesOf(a)
	took := &storev1.CatalogTook{Files: files, Source: sourceOf(x.rec)}
	if !a.Made.IsZero() {
		took.Made = timestamppb.New(a.Made)
	}
	if bytes.Equal(was.GetSource(), took.Source) {
		took.Before = slices.DeleteFunc(append(slices.Clone(was.GetBefore()), was.GetFiles()), func(f string) bool { return f == files })
		took.Before = took.Before[max(len(took.Before)-maxKnownFiles, 0):]
	}
	return took
}

// filesOf names the files of a source: by its exact ref, or where it has none by their digest.
func filesOf(a source.Artifact) string { return cmp.Or(a.Ref, a.Digest.String()) }

// sourceOf is a digest of where a catalog has its files from, however often that is looked at.
func sourceOf(rec *storev1.CatalogRecord) []byte {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(placeOf(rec.GetCatalog().GetSpec().GetSource()))
	if err != nil {
		return nil
	}
	return fleet.DigestOf(data).Bytes()
}

// whyAsked is why a person is asked before what a plan deletes goes; empty: for nothing.
func (x *catalogue) whyAsked(plan catalog.Plan, a source.Artifact) string {
	switch {
	case plan.Waits:
		return catalog.ReasonPrunesMost
	case len(plan.Goes) > 0 && x.goesBack(a):
		return catalog.ReasonGoesBack
	case x.asked(plan) && x.codeAsked() != catalog.ReasonGoesBack: // that is so no more
		return x.codeAsked()
	}
	return ""
}

// codeAsked is why a person is asked already.
func (x *catalogue) codeAsked() string {
	return cmp.Or(x.held.GetCode(), catalog.ReasonPrunesMost)
}
