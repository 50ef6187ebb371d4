package worker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"golang.org/x/sync/errgroup"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/plan"
)

// previewing is how many objects of one preview are asked about at a time.
const previewing = 8

// Preview says what a sync would do, were it the module's newest: by the rules that a worker goes by, and by dry runs. It stores
// nothing, in the cluster or here.
func (m *Manager) Preview(ctx context.Context, s fleet.Sync, contents Contents) (fleet.Preview, error) {
	if err := m.knows(); err != nil {
		return fleet.Preview{}, err
	}
	if why := m.searching(); why != "" { // what is not found yet would be left out, and nothing goes before
		return fleet.Preview{}, fleet.Errorf(fleet.ErrUnavailable, "the agent does not know yet all that it has in the cluster: %s; ask again", why)
	}
	p := &preview{m: m, sync: s, contents: contents, w: &worker{m: m, ref: s.Module, log: m.o.Log}}
	p.w.previews = p.listed
	if err := p.load(ctx); err != nil {
		return fleet.Preview{}, err
	}
	looked := make([]fleet.PreviewedObject, len(p.items))
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(previewing)
	for i, it := range p.items {
		g.Go(func() error {
			var err error
			if looked[i], err = p.object(asking, it); err != nil {
				return err
			}
			return asking.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return fleet.Preview{}, err
	}
	all := !slices.ContainsFunc(looked, func(o fleet.PreviewedObject) bool { return o.Action == fleet.PreviewRefuse })
	return p.sum(append(looked, p.dropped(ctx, all)...)), nil
}

// preview is one question.
type preview struct {
	m        *Manager
	sync     fleet.Sync
	contents Contents
	w        *worker // of no goroutine: the module's, as the rules ask for it
	items    []*item
	policies []fleet.Policy
	brings   map[schema.GroupKind]bool // kinds that the sync itself defines

	looks sync.Once
	begun map[string]bool // see listed
}

// listed is how much of values stands in what the sync lists, or in what the module lists now.
func (p *preview) listed(by *apply.Scrubber) map[string]bool {
	p.looks.Do(func() {
		asked, err := begunIn(p.contents, p.sync, by)
		if err == nil {
			maps.Copy(asked, p.m.listings.of(p.m, p.sync.Module, by))
		}
		p.begun = asked
	})
	return p.begun
}

func (p *preview) load(ctx context.Context) error {
	bundle, err := p.contents.Bundle(p.sync.Bundle)
	if err != nil {
		return err
	}
	set, err := p.contents.Policies(p.sync.Policies)
	if err != nil {
		return err
	}
	p.policies, p.brings, p.w.byID = set.Policies, map[schema.GroupKind]bool{}, map[fleet.ObjectID]*item{}
	p.w.policies, p.w.how = set.Policies, set.Substitution
	for _, e := range bundle.Entries {
		e.ID = manifest.ExpandID(e.ID, p.sync.Values)
		content, err := p.contents.Object(e.Digest)
		if err != nil {
			return fmt.Errorf("%s: %w", e.ID, err)
		}
		labels, err := manifest.Labels(content, p.sync.Values)
		if err != nil {
			return fleet.Errorf(fleet.ErrCorrupt, "%s: %v", e.ID, err)
		}
		treatment, err := treat(fleet.Resolve(p.policies, e.ID, labels))
		if err != nil {
			return err
		}
		it := &item{entry: e, treatment: treatment}
		if err := refersTo(it, set.Bindings, p.contents, set.Substitution); err != nil {
			return err
		}
		p.items = append(p.items, it)
		if plan.IsCRD(e.ID) {
			p.bringsKind(e, content)
		}
	}
	p.place(ctx)
	p.bind(ctx, set.Bindings)
	slices.SortStableFunc(p.items, func(a, b *item) int {
		return plan.CompareApply(a.entry.ID, a.entry.Wave, b.entry.ID, b.entry.Wave)
	})
	return nil
}

// place makes the items those of their objects' identities, and lists them, as a worker does, but that nothing is recorded.
func (p *preview) place(ctx context.Context) {
	wanted := map[kindKey]fleet.BundleEntry{}
	for _, it := range p.items {
		if it.entry.ID.Namespace != "" && custom(it.entry.ID) {
			wanted[kindOfEntry(it.entry)] = it.entry
		}
	}
	found, _ := p.w.resolveKinds(ctx, wanted) // of what is not found it is said when the object is asked about
	for _, it := range p.items {
		it.resource = found[kindOfEntry(it.entry)]
		known := it.resource.Resource != ""
		if known && !it.resource.Namespaced || !known && custom(it.entry.ID) && p.m.inventory.Get(bare(it.entry.ID)) != nil {
			it.entry.ID = bare(it.entry.ID)
		}
		p.w.enter(it)
	}
	p.w.unsure = unsureOf(p.items)
}

func (p *preview) bringsKind(e fleet.BundleEntry, content []byte) {
	d, err := apply.NewDesired(e.ID, content, e.Digest, p.sync.Values, p.w.how)
	if err != nil {
		return
	}
	crd, err := d.Object()
	if err != nil {
		return
	}
	kind, _, _ := unstructured.NestedString(crd, "spec", "names", "kind")
	p.brings[schema.GroupKind{Group: apply.GroupOfCRD(crd), Kind: kind}] = true
}

// sum counts what stays as it is, and lists the rest.
func (p *preview) sum(looked []fleet.PreviewedObject) (out fleet.Preview) {
	for _, o := range looked {
		if o.Action == "" {
			out.Unchanged++
			continue
		}
		out.Objects = append(out.Objects, o)
	}
	return out
}

// object says what would become of one that the sync lists; no action: it stays as it is. That the API server does not answer is an error: it
// refuses nothing, and says nothing of the others either.
func (p *preview) object(ctx context.Context, it *item) (fleet.PreviewedObject, error) {
	a := &writer{w: p.w, job: job{order: &order{sync: p.sync, policies: p.policies}, item: it, id: it.entry.ID, entry: it.entry, verb: plan.Apply,
		treatment: it.treatment, named: plan.Named(p.policies, it.entry.ID), record: p.m.inventory.Get(it.entry.ID), values: p.bound(it), hidden: it.late.secrets()}}
	if a.record == nil {
		a.verb = plan.Create
	}
	out := fleet.PreviewedObject{ID: it.entry.ID, Version: it.entry.Version}
	if p.awaits(it, &out) {
		return out, nil
	}
	if err := p.judge(ctx, a, &out); err != nil {
		if apply.NoAnswer(err) {
			return out, fleet.Errorf(fleet.ErrUnavailable, "the API server does not answer: %v", apply.Cause(err))
		}
		f := a.explain(ctx, err)
		out.Action, out.Reason, out.Message, out.By, out.Fields = fleet.PreviewRefuse, f.Reason, f.Message, f.By, nil
		if f.Field != "" {
			out.Fields = []fleet.FieldChange{{Field: f.Field, Live: f.Live, Want: f.Want}}
		}
	}
	return out, nil
}

// judge goes the way that the worker goes, with dry runs where that writes.
func (p *preview) judge(ctx context.Context, a *writer, out *fleet.PreviewedObject) error {
	if why := fleet.OfAgent(a.id, p.m.o.Namespace); why != "" {
		return protected(a.id, why)
	}
	if a.item.twin {
		return twice(a.id)
	}
	if err := a.read(p.contents); err != nil {
		return err
	}
	if err := a.grants(); err != nil {
		return err
	}
	var err error
	if a.resource, err = p.m.mapper.Resource(ctx, a.id, a.entry.Version); err != nil {
		return p.unservedYet(a, err, out)
	}
	if a.namespace = a.id.Namespace; !a.resource.Namespaced {
		a.namespace, out.ID.Namespace = "", ""
	} else if a.namespace == "" {
		return &apply.Failure{Reason: apply.ReasonInvalid, Kind: fleet.ErrInvalid,
			Message: a.id.String() + ": objects of this kind live in a namespace; set metadata.namespace, or spec.namespace of the module"}
	}
	for attempt := 0; ; attempt++ {
		live, err := p.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
		if a.policy.Reads() {
			return p.read(a, err, out)
		}
		if kube.IsGone(err) {
			return p.created(ctx, a, out)
		}
		if err == nil {
			err = p.existing(ctx, a, live, out)
		}
		// What others write in between must not be told as what the apply changes.
		if !kube.Is(err, kube.Conflict) || attempt == versionTries {
			return err
		}
		out.Action, out.Reason, out.Message, out.By = "", "", "", ""
	}
}

// read is of an object that is only to be read: it stays as it is, if it is there, and is let go of where the module has it.
func (p *preview) read(a *writer, err error, out *fleet.PreviewedObject) error {
	if kube.IsGone(err) {
		return absent(a.liveID())
	}
	if r := a.record; r != nil && r.Module == a.w.ref && r.Written() {
		out.Action = fleet.PreviewRelease
	}
	return err
}

// unservedYet is of an object whose kind, or its version of that, the cluster does not have: the sync may bring it.
func (p *preview) unservedYet(a *writer, err error, out *fleet.PreviewedObject) error {
	if !p.brings[schema.GroupKind{Group: a.id.Group, Kind: a.id.Kind}] {
		return err
	}
	out.Action, out.Reason, out.Message = fleet.PreviewCreate, fleet.ReasonUnchecked, "its kind comes with the module"
	if r := a.record; r != nil && r.Module == a.w.ref && r.State == plan.Owned {
		out.Action, out.Message = fleet.PreviewChange, "version "+a.entry.Version+" of its kind comes with the module"
	}
	return nil
}

// created asks the API server about a new object.
func (p *preview) created(ctx context.Context, a *writer, out *fleet.PreviewedObject) error {
	if r := a.record; r != nil && r.Module == a.w.ref && a.isDone(r) {
		return nil
	}
	out.Action = fleet.PreviewCreate
	if err := p.m.denied(a.w.ref, a.act(localpolicy.Create)); err != nil {
		return err
	}
	_, err := p.dryRun(ctx, a, apply.Guard{Absent: true}, false)
	var failed *apply.Failure
	if err != nil {
		failed = apply.Explain(a.id, err)
	}
	switch {
	case err == nil:
		return nil
	case failed.Reason == apply.ReasonNoNamespace && p.w.byID[fleet.ObjectID{Kind: "Namespace", Name: a.namespace}] != nil:
		out.Reason, out.Message = fleet.ReasonUnchecked, "its namespace comes with the module"
		return nil
	}
	return p.undecided(err, out)
}

// undecided is an error, but for the answer of webhooks that take no dry runs.
func (p *preview) undecided(err error, out *fleet.PreviewedObject) error {
	if s := kube.StatusOf(err); kube.Is(err, kube.BadRequest) && strings.Contains(s.Message, "does not support dry run") {
		out.Reason, out.Message = fleet.ReasonUnchecked, s.Message
		return nil
	}
	return err
}

func (p *preview) dryRun(ctx context.Context, a *writer, g apply.Guard, force bool) (map[string]any, error) {
	d := a.left.Desired
	if g.Absent {
		d = a.made
	}
	body, err := d.Body(p.m.marks(a.w.ref, a.liveID()), g, a.drop && !g.Absent)
	if err != nil {
		return nil, err
	}
	return p.m.client.Apply(ctx, a.resource, a.namespace, a.id.Name, body, apply.ApplyOptions{Strict: true, Force: force, DryRun: true})
}

// existing says what would become of an object that is there.
func (p *preview) existing(ctx context.Context, a *writer, live map[string]any, out *fleet.PreviewedObject) error {
	u := &unstructured.Unstructured{Object: live}
	if u.GetDeletionTimestamp() != nil {
		return a.leaving()
	}
	if r := a.record; r != nil && r.Module != a.w.ref && r.Written() && !plan.IsNamespace(a.id) {
		if r.Shared && a.policy.Shares() {
			return nil // the other one keeps it as that has it
		}
		out.Action, out.Reason, out.By = fleet.PreviewRefuse, apply.ReasonConflict, r.Module.Display()
		out.Message = fmt.Sprintf("%s: belongs to module %s; take it out of one of the two modules", a.id, r.Module.Display())
		return nil
	}
	if err := p.m.denied(a.w.ref, a.act(localpolicy.Update)); err != nil {
		return err
	}
	a.text = apply.OwnStringData(live)
	if err := a.leaveReplicas(ctx, live); err != nil {
		return err
	}
	if r := a.record; r != nil && r.Module == a.w.ref && r.State == plan.Owned && r.UID == string(u.GetUID()) {
		a.text = append(a.text, r.Paths.StringData()...)
		if err := a.unlessServed(ctx, live); err != nil {
			return err
		}
		return p.ours(ctx, a, live, out)
	}
	claimant, err := p.m.claimantOf(ctx, a.w.ref, u.GetLabels())
	if err != nil {
		return err
	}
	adoption := plan.Adopt(claimant, a.liveID(), a.describe(u), p.policies, *a.policy)
	if err := a.leaveLive(ctx, live, plan.Apply); err != nil {
		return err
	}
	if plan.IsNamespace(a.id) && adoption.Verdict != plan.AdoptOwn && adoption.Verdict != plan.AdoptForced {
		return nil // it is used as it is
	}
	guard := apply.Guard{UID: string(u.GetUID()), ResourceVersion: u.GetResourceVersion()}
	switch adoption.Verdict {
	case plan.AdoptRefuse:
		return a.refused(adoption, adoption.Whose)
	case plan.AdoptIfEqual:
		if err := a.differs(ctx, u, adoption, guard); err != nil {
			return err
		}
	case plan.AdoptForced:
		if err := a.mayTake(ctx, adoption); err != nil {
			return err
		}
	}
	if adoption.Verdict != plan.AdoptOwn {
		out.Action, out.By = fleet.PreviewAdopt, adoption.By
	}
	if a.exempt.KeepsWhole() {
		return nil
	}
	answer, err := p.dryRun(ctx, a, guard, true)
	if err != nil {
		out.Action = cmp.Or(out.Action, fleet.PreviewChange)
		return p.undecided(err, out)
	}
	if out.Fields = fieldsOf(a, live, answer); len(out.Fields) > 0 {
		out.Action = cmp.Or(out.Action, fleet.PreviewChange)
	}
	return nil
}

// ours says what would become of an object that the module has.
func (p *preview) ours(ctx context.Context, a *writer, live map[string]any, out *fleet.PreviewedObject) error {
	if a.exempt.KeepsWhole() || a.unchanged() && a.policy.Drift != fleet.DriftCorrect {
		return nil // what others changed stays
	}
	verb := plan.Apply
	if a.unchanged() {
		verb = plan.Correct
	}
	if err := a.leaveLive(ctx, live, verb); err != nil {
		return err
	}
	guard := apply.Guard{UID: a.record.UID, ResourceVersion: (&unstructured.Unstructured{Object: live}).GetResourceVersion()}
	answer, err := p.dryRun(ctx, a, guard, false)
	if conflicts := apply.FieldConflicts(err); len(conflicts) > 0 {
		if !a.unchanged() { // else it is a correction, which asks nobody
			if err := a.judge(ctx, conflicts, a.record.Paths); err != nil {
				return err
			}
		}
		answer, err = p.dryRun(ctx, a, guard, true)
	}
	if apply.IsImmutable(err) {
		return p.recreated(ctx, a, live, err, out)
	}
	if err != nil {
		out.Action = fleet.PreviewChange
		return p.undecided(err, out)
	}
	if out.Fields = fieldsOf(a, live, answer); len(out.Fields) > 0 {
		out.Action = fleet.PreviewChange
	}
	return nil
}

// recreated says whether an object would be made again that cannot be changed in place.
func (p *preview) recreated(ctx context.Context, a *writer, live map[string]any, immutable error, out *fleet.PreviewedObject) error {
	u := &unstructured.Unstructured{Object: live}
	refusal, err := a.keepsFromRecreating(ctx, u, immutable)
	if err != nil {
		return err
	}
	if refusal != "" {
		return a.cannotChange(ctx, immutable, refusal)
	}
	if err := a.anew(live); err != nil {
		return err
	}
	if err := a.rehearse(ctx, live, immutable); err != nil {
		return err
	}
	if err := a.unlessGoesAlong(ctx, u, immutable); err != nil {
		return err
	}
	out.Action, out.Message = fleet.PreviewRecreate, a.explain(ctx, immutable).Detail
	if desired, err := a.desired.Object(); err == nil {
		if d := apply.Difference(desired, live); d != nil {
			out.Fields = a.masked([]apply.Differs{*d})
		}
	}
	return nil
}

// fieldsOf are the changes between an object and the answer to an apply. What a policy leaves to others from now on is let go of
// before that is sent, so that it stays.
func fieldsOf(a *writer, live, answer map[string]any) []fleet.FieldChange {
	return a.masked(apply.WithoutExempt(apply.Changes(live, answer), live, a.exempt))
}

// masked are changes as people may see them.
func (a *writer) masked(list []apply.Differs) (out []fleet.FieldChange) {
	for _, d := range list {
		shows := a.shows() && !a.w.hiddenIn(a.liveID()).in(d.Live, d.Want)
		c := fleet.FieldChange{Field: d.Pointer, Live: d.Live, Want: d.Want}
		if !shows && c.Live != "" {
			c.Live = fleet.Masked
		}
		if !shows && c.Want != "" {
			c.Want = fleet.Masked
		}
		out = append(out, c)
	}
	return out
}

// dropped says what would become of what the module has and the sync does not list, once all that it lists is ready, or never if
// some of that is refused.
func (p *preview) dropped(ctx context.Context, all bool) (out []fleet.PreviewedObject) {
	w := p.w
	in := w.pruneInput()
	in.Reads = nil // read says what becomes of those
	if len(in.Records) == 0 {
		return nil
	}
	kinds := p.kindsOf(ctx, in.Records)
	uids := map[string]bool{}
	for _, r := range in.Records {
		if w.desires(r.ID) && r.State == plan.Owned {
			uids[r.UID] = true
		}
		in.Lineage = max(in.Lineage, r.Lineage)
	}
	in.Age = fleet.Age{Lineage: in.Lineage, Generation: math.MaxInt64}
	in.Desired, in.Policies, in.Complete, in.Applied, in.Ready = w.desires, p.policies, true, all, all
	in.AppliedUID = func(uid string) bool { return uids[uid] }
	in.Kind = func(r plan.Record) (plan.KindState, string) { return w.stateOfKind(kinds[kindOf(r)], r) }
	todo, undecided := plan.Prune(in), []plan.Kept(nil)
	if intents := todo.Settle; len(intents) > 0 {
		in.Records, undecided = p.settled(ctx, in, kinds, intents)
		todo = plan.Prune(in)
	}
	if seen, _ := w.labelsOf(ctx, in, kinds); len(seen) > 0 {
		in.Labels = labelsIn(seen)
		todo = plan.Prune(in)
	}
	todo.Kept = append(todo.Kept, undecided...)
	w.keepDenied(in, &todo)
	add := func(r plan.Record, o fleet.PreviewedObject) {
		o.ID, o.Version = r.ID, r.Version
		out = append(out, o)
	}
	for _, r := range slices.Concat(todo.Delete...) {
		add(r, fleet.PreviewedObject{Action: fleet.PreviewDelete})
	}
	for _, r := range slices.Concat(todo.Release, todo.Unuse) {
		add(r, fleet.PreviewedObject{Action: fleet.PreviewRelease})
	}
	for _, h := range todo.Handover {
		add(h.Record, fleet.PreviewedObject{Action: fleet.PreviewHandOver, By: h.To.Display()})
	}
	for _, k := range todo.Kept {
		add(k.Record, fleet.PreviewedObject{Action: fleet.PreviewKeep, Reason: k.Reason, Message: k.Message})
	}
	return out
}

// settled are the records once it is known which intents came to be objects of the module, as a look at the cluster tells before any of
// them goes; of those that cannot be looked at now, it says why.
func (p *preview) settled(ctx context.Context, in plan.PruneInput, kinds map[kindKey]located, intents []plan.Record) (records []plan.Record, undecided []plan.Kept) {
	of := map[fleet.ObjectID]bool{}
	for _, r := range intents {
		of[r.ID] = true
	}
	for _, r := range in.Records {
		if of[r.ID] {
			seen, ours, why := p.w.intended(ctx, in, kinds[kindOf(r)], r)
			if why != nil {
				undecided = append(undecided, *why)
			}
			if !ours {
				continue
			}
			r.State, r.UID = plan.Owned, seen.UID
		}
		records = append(records, r)
	}
	return records, undecided
}

// kindsOf is where the objects are that the sync does not list. No watch is begun for them.
func (p *preview) kindsOf(ctx context.Context, records []plan.Record) map[kindKey]located {
	kinds := map[kindKey]located{}
	for _, r := range records {
		if _, known := kinds[kindOf(r)]; known || p.w.desires(r.ID) {
			continue
		}
		k := located{}
		var err error
		if k.Resource, k.gone, err = p.m.mapper.Served(ctx, r.ID, r.Version); err != nil {
			k.why = err.Error()
		}
		kinds[kindOf(r)] = k
	}
	return kinds
}
