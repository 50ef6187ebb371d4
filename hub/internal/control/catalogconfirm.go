package control

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
)

// catalogHold is the hold of a catalog; nil: it has none.
func catalogHold(r store.Reader, ref fleet.ModuleRef) (h *towlinev1.Hold) {
	store.Scan(r, store.HoldPrefix, func(rec *storev1.HoldRecord, _ store.Entry) bool {
		if x := rec.GetHold(); x.GetProject() == ref.Project && x.GetCatalog() == ref.Name {
			h = x
		}
		return true
	})
	return h
}

// asked reports that a person is asked already about something that a plan deletes: that waits on though less goes by now, for somebody may
// be correcting a mistake, one file after the other. A question whose record cannot be read may be about any of it.
func (x *catalogue) asked(plan catalog.Plan) bool {
	if x.held == nil && x.was.GetStatus().GetHold() != "" {
		return len(plan.Goes) > 0
	}
	return slices.ContainsFunc(plan.Goes, func(g catalog.Gone) bool { return slices.Contains(x.held.GetItems(), catalogItem(g)) })
}

// released reports that a person has confirmed all that a plan deletes. What is gone of it already, because a hub stopped midway or the rest
// was needed still, does not have to be confirmed again.
func (x *catalogue) released(plan catalog.Plan) bool {
	return !slices.ContainsFunc(plan.Goes, func(g catalog.Gone) bool { return !x.isConfirmed(g) })
}

func (x *catalogue) isConfirmed(g catalog.Gone) bool {
	item := catalogItem(g)
	return slices.Contains(x.was.GetConfirmed(), item) || x.confirmed && slices.Contains(x.held.GetItems(), item)
}

func catalogItem(g catalog.Gone) string { return itemOf(g.Name) + g.UID }

// goneOf is what the items of a question are about.
func goneOf(items []string) []catalog.Gone {
	out := make([]catalog.Gone, len(items))
	for i, item := range items {
		name, uid, _ := strings.Cut(strings.TrimPrefix(item, "module "), ", ")
		out[i] = catalog.Gone{Name: name, UID: uid}
	}
	return out
}

// itemOf is how the item of a module begins, whichever has the name.
func itemOf(module string) string { return "module " + module + ", " }

// endListed ends what a person said, or is asked, of the deletion of what the files list again though they cannot be applied: should they drop it
// once more, that is for a person to decide anew. The rest is asked about anew, however little it is. What is applied, or waits, decides that
// itself. Files that list more than is kept may list any: no word counts any more, and nothing is known to be asked for no more.
func (x *catalogue) endListed() {
	unlisted := x.next.GetReadGeneration() == record.CatalogUnlisted
	listed := func(item string) bool {
		return slices.ContainsFunc(x.next.GetLists(), func(module string) bool { return strings.HasPrefix(item, itemOf(module)) })
	}
	ends := func(item string) bool { return unlisted || listed(item) }
	x.next.Confirmed = slices.DeleteFunc(slices.Clone(x.next.GetConfirmed()), ends)
	if !slices.ContainsFunc(x.held.GetItems(), ends) {
		x.next.Status.Hold = cmp.Or(x.held.GetId(), x.was.GetStatus().GetHold())
		return
	}
	x.next.Status.Hold, x.through = "", true
	if items := slices.DeleteFunc(slices.Clone(x.held.GetItems()), listed); len(items) > 0 {
		x.rest = x.question(goneOf(items), x.codeAsked(), x.held.GetSince())
		x.next.Status.Hold = x.rest.GetId()
	}
}

// question is what a person is asked before these modules go.
func (x *catalogue) question(goes []catalog.Gone, why string, since *timestamppb.Timestamp) *towlinev1.Hold {
	digest := catalog.DigestOf(x.rec.GetCatalog().GetMetadata().GetUid(), goes)
	h := &towlinev1.Hold{Id: record.HoldID("catalog-", digest), Kind: record.HoldConfirm, Project: x.ref.Project, Catalog: x.ref.Name, Code: why,
		Digest: digest.String(), By: fleet.CatalogOrigin(x.ref.Name), Since: since}
	for _, g := range goes {
		h.Items = append(h.Items, catalogItem(g))
	}
	return h
}

// waitForPerson asks a person to confirm what a plan deletes.
func (c *Controller) waitForPerson(ctx context.Context, x *catalogue, plan catalog.Plan, why string) error {
	s := x.next.GetStatus()
	s.Leftover = nil
	for _, g := range plan.Goes {
		s.Leftover = append(s.Leftover, g.Name)
	}
	h := x.question(plan.Goes, why, s.Looked)
	if h.GetId() == x.held.GetId() { // it is that question still
		h.Code = x.codeAsked()
	}
	x.next.Confirmed = slices.DeleteFunc(slices.Clone(x.next.GetConfirmed()), func(item string) bool { return !slices.Contains(h.Items, item) })
	slices.Sort(s.Leftover)
	s.State, s.Reason, s.Hold = catalog.Waiting, h.GetCode(), h.GetId()
	return c.holdCatalog(ctx, x.ref, h)
}

// holdCatalog asks what is not asked yet of a catalog, and ends what nobody wants to know any more. want nil: nothing is asked.
func (c *Controller) holdCatalog(ctx context.Context, ref fleet.ModuleRef, want *towlinev1.Hold) error {
	puts := map[string]proto.Message{}
	if want != nil {
		puts[store.HoldPrefix+want.GetId()], puts[store.ConfirmPrefix+want.GetId()] = &storev1.HoldRecord{Hold: want}, nil
	}
	if err := c.view(ctx, func(r store.Reader) error {
		store.Scan(r, store.HoldPrefix, func(h *storev1.HoldRecord, e store.Entry) bool {
			x := h.GetHold()
			if x.GetKind() != record.HoldConfirm || x.GetProject() != ref.Project || x.GetCatalog() != ref.Name {
				return true
			}
			answer := store.ConfirmPrefix + x.GetId()
			if _, wanted := puts[e.Key]; wanted {
				delete(puts, e.Key)
				delete(puts, answer)
			} else {
				puts[e.Key], puts[answer] = nil, nil
			}
			return true
		})
		return nil
	}); err != nil || len(puts) == 0 {
		return err
	}
	return c.write(ctx, puts)
}
