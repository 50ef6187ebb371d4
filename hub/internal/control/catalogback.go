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
func (x *catalogue) goesBack(a source.Artifact) bool {
	took := x.was.GetTook()
	if took == nil || filesOf(a) == took.GetFiles() || !bytes.Equal(took.GetSource(), sourceOf(x.rec)) {
		return false
	}
	if follow.Lower(filesOf(a), took.GetFiles()) {
		return true
	}
	if then := took.GetMade(); then != nil && !a.Made.IsZero() && !a.Made.Equal(then.AsTime()) {
		return a.Made.Before(then.AsTime())
	}
	return slices.Contains(took.GetBefore(), filesOf(a))
}

// steadyCatalog is an error where a source that is followed goes back and nobody asked for the look, until it does so for good (see follow.Back). A
// catalog that was put since is looked at for that.
func (c *Controller) steadyCatalog(x *catalogue, a source.Artifact) error {
	x.next.Back, x.next.BackSeen = "", 0
	is, read := x.rec.GetCatalog().GetMetadata().GetGeneration(), x.was.GetReadGeneration()
	put := x.was.GetStatus().GetObservedGeneration() != is || read > 0 && read != is // its source may have been away since
	if x.c.Follow == nil || !x.goesBack(a) {
		return nil
	}
	files := filesOf(a)
	b := follow.Back{Why: "the source goes back to " + files}
	if took := x.was.GetTook(); took.GetBackTo() == files {
		b.Before = took.GetBackAt().AsTime()
	}
	was := follow.Sightings{Files: x.was.GetBack(), Seen: int(x.was.GetBackSeen())}
	next, why, soon := b.Look(was, files, put || len(x.asks) > 0, time.Now(), "towline resync catalog "+x.ref.Display())
	x.next.Back, x.next.BackSeen = files, int32(next.Seen) // also where it is let through: a person may be asked what goes, and the answer is about these
	if why == "" {
		return nil
	}
	if x.called && soon {
		c.catalogs.callAgain(x.ref, time.Now().Add(calledAgain))
	}
	return &lookError{fleet.Errorf(fleet.ErrPrecondition, "%s", why), follow.ReasonGoesBack}
}

// takes notes that the files of a source are taken up.
func (x *catalogue) takes(a source.Artifact) {
	was, files := x.was.GetTook(), filesOf(a)
	took := &storev1.CatalogTook{Files: files, Source: sourceOf(x.rec), BackTo: was.GetBackTo(), BackAt: was.GetBackAt()}
	if x.goesBack(a) {
		took.BackTo, took.BackAt = files, timestamppb.Now()
	}
	if !a.Made.IsZero() {
		took.Made = timestamppb.New(a.Made)
	}
	if bytes.Equal(was.GetSource(), took.Source) {
		took.Before = slices.DeleteFunc(append(slices.Clone(was.GetBefore()), was.GetFiles()), func(f string) bool { return f == files })
		took.Before = took.Before[max(len(took.Before)-maxKnownFiles, 0):]
	}
	x.next.Took = took
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
