package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/wire"
)

// setFlags say of which set modules are that are applied, and whether what is of it and is not applied goes.
type setFlags struct {
	name  string
	prune bool
	take  bool
	yes   bool
}

func (o *setFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.name, "set", "", "the modules are of this set; one that is of another set, or of a catalog, is refused, and not pruned there for a week")
	f.BoolVar(&o.prune, "prune", false, "delete the modules of the set in this project that are in the files no more, with what they have in the clusters")
	f.BoolVar(&o.take, "take", false, "take modules over that are of another set, or of a catalog, before they are taken out of the files there; without --set they are of none then")
	f.BoolVarP(&o.yes, "yes", "y", false, "with --prune: do not ask before more than half of the set goes")
}

func (o *setFlags) check(cmd *cobra.Command) error {
	switch {
	case cmd.Flags().Changed("set") && o.name == "": // a script's variable that is not set
		return usagef("--set is empty: name the set")
	case o.name != "" && fleet.ValidateLabel(o.name) != nil:
		return usagef("--set %s: %w", o.name, fleet.ValidateLabel(o.name))
	case o.prune && o.name == "":
		return usagef("--prune deletes what is of a set and not in the files: name it with --set")
	case o.yes && !o.prune:
		return usagef("--yes is for --prune")
	}
	return nil
}

// pruning are the modules that an apply is to delete, as they were seen before it. Whoever puts one meanwhile keeps it: a deletion is of
// the version that was seen.
type pruning struct {
	modules []*v1.Module
	later   []*v1.Module // that what runs needs until the rollouts are through
	wanted  []error      // why others stay that are in the files no more
	deleted []*v1.Module
}

func refOfModule(m *v1.Module) fleet.ModuleRef {
	return fleet.ModuleRef{Project: m.GetMetadata().GetProject(), Name: m.GetMetadata().GetName()}
}

// not says that nothing was deleted because something else went wrong.
func (p *pruning) not() error {
	if p == nil || len(p.modules) == 0 {
		return nil
	}
	return becausef("nothing is pruned, because not all of the files is put: %s would go", strings.Join(p.names(), ", "))
}

func (p *pruning) names() []string {
	out := make([]string, len(p.modules))
	for i, m := range p.modules {
		out[i] = "module " + refOfModule(m).Display()
	}
	return out
}

// planPrune lists the modules of the set that the files do not have, and asks where that is most of it. nil: none are to be deleted.
func (r *applyRun) planPrune(ctx context.Context, modules []resource.Resource) (*pruning, error) {
	if !r.o.set.prune {
		return nil, nil
	}
	if len(modules) == 0 {
		return nil, usagef("--prune: the files have no module, and all of set %s would go; to delete them: towline delete module NAME…", r.o.set.name)
	}
	files := map[fleet.ModuleRef]*v1.Module{}
	for _, x := range modules {
		ref := refOfModule(x.Message.(*v1.Module))
		if ref.Project != r.a.project {
			return nil, usagef("%s: module %s is of project %s: --prune is of one project; apply the files of each by themselves, with -p", x.Source, ref.Name, ref.Project)
		}
		files[ref] = x.Message.(*v1.Module)
	}
	all, err := collect(r.c.AllModules(ctx, &v1.ListModulesRequest{Project: r.a.project}))
	if err != nil {
		return nil, err
	}
	out, had := &pruning{}, 0
	var stay []*v1.Module
	for _, m := range all {
		ofSet := m.GetMetadata().GetOrigin() == fleet.SetOrigin(r.o.set.name)
		then, named := files[refOfModule(m)]
		switch {
		case m.GetMetadata().GetDeletionTimestamp() != nil:
			continue
		case named:
			stay = append(stay, then)
		case ofSet:
			out.modules = append(out.modules, m)
		default:
			stay = append(stay, m)
		}
		if ofSet {
			had++
		}
	}
	if err := out.notBelow(r.o); err != nil {
		return nil, err
	}
	if err := out.needed(append(stay, r.leaveWanted(ctx, out)...)); err != nil {
		return nil, err
	}
	out.order()
	return out, r.mayPrune(ctx, out, had)
}

// notBelow refuses to delete what is in folders below those that are named, which are not read without -R: a file that was moved there was
// not taken away. What cannot be read there, and names what goes, may have it.
func (p *pruning) notBelow(o *applyOptions) error {
	if o.recursive || len(p.modules) == 0 {
		return nil
	}
	paths := slices.DeleteFunc(slices.Clone(o.files), func(path string) bool { return path == "-" })
	found, unread := resource.Below(paths)
	var errs []error
	for _, m := range p.modules {
		ref, kind := refOfModule(m), string(m.ProtoReflect().Descriptor().Name())
		i := slices.IndexFunc(found, func(d resource.Document) bool {
			return d.Is(kind) && d.Name() == ref.Name && (d.InProject() == "" || d.InProject() == ref.Project)
		})
		if i >= 0 {
			errs = append(errs, usagef("--prune: module %s is in %s, which is not read: say -R, or move that out of the folder", ref.Display(), found[i].Source))
			continue
		}
		if i := slices.IndexFunc(unread, func(u resource.Unread) bool { return u.MayHave(kind, ref.Name) }); i >= 0 {
			errs = append(errs, usagef("--prune: module %s is in the files no more, and may be in what cannot be read: %w; mend that, or move it out of the folder", ref.Display(), unread[i].Err))
		}
	}
	return errors.Join(errs...)
}

// needed refuses to delete what modules that stay depend on, before anything is put.
func (p *pruning) needed(stay []*v1.Module) error {
	return neededBy(p.modules, stay, "is in the files no more, but module %s, which stays, depends on it: keep it, or take it out of dependsOn there")
}

// neededBy says of modules that are to go which of those that stay depend on them.
func neededBy(leave, stay []*v1.Module, says string) error {
	var errs []error
	for _, m := range leave {
		for _, other := range stay {
			if slices.Contains(wire.DependenciesOf(refOfModule(other), other.GetSpec()), refOfModule(m)) {
				errs = append(errs, fleet.Errorf(fleet.ErrPrecondition, "module %s "+says, refOfModule(m).Display(), refOfModule(other).Display()))
			}
		}
	}
	return errors.Join(errs...)
}

// order puts modules first that depend on others which go, too.
func (p *pruning) order() {
	refs, dependsOn, of := make([]fleet.ModuleRef, len(p.modules)), map[fleet.ModuleRef][]fleet.ModuleRef{}, map[fleet.ModuleRef]*v1.Module{}
	for i, m := range p.modules {
		refs[i] = refOfModule(m)
		of[refs[i]], dependsOn[refs[i]] = m, wire.DependenciesOf(refs[i], m.GetSpec())
	}
	for i, ref := range dependentsBefore(refs, dependsOn) {
		p.modules[i] = of[ref]
	}
}

// mayPrune asks before more than half of a set goes, and more than one module: files that are missing by mistake look the same as files
// that were taken away.
func (r *applyRun) mayPrune(ctx context.Context, p *pruning, had int) error {
	gone := len(p.modules)
	if r.dry() || !catalog.Most(gone, had) {
		return nil
	}
	return r.a.askOf(r.o.set.yes, fmt.Sprintf("prune %d of the %s of set %s", gone, count(had, "module"), r.o.set.name), func() (string, error) {
		var said []string
		for _, m := range p.modules {
			plan, err := r.askPruned(ctx, m)
			if err != nil {
				return "", err
			}
			said = append(said, "module "+refOfModule(m).Display()+" "+deleteText(plan, false))
		}
		return strings.Join(said, "; "), nil
	})
}

// deletePruned deletes a module as it was seen. A dry run is asked for before the others are put, and passes over what these depend on
// until then. more: others of the batch go after this one.
func (r *applyRun) deletePruned(ctx context.Context, m *v1.Module, dry, more bool) (*v1.DeleteModuleResponse, error) {
	meta := m.GetMetadata()
	req := &v1.DeleteModuleRequest{Project: meta.GetProject(), Name: meta.GetName(), Uid: meta.GetUid(), ResourceVersion: meta.GetResourceVersion(),
		Reason: r.o.reason, DryRun: dry, Force: dry, Set: r.o.set.name}
	if !dry {
		req.Batch, req.More = r.batch, more
	}
	resp, _, err := insisted(ctx, r.a, &r.insists, func() (*v1.DeleteModuleResponse, error) { return r.c.Modules.DeleteModule(ctx, req) })
	return resp, err
}

// askPruned asks the hub, before anything is put, what the deletion of a module would do: once, if it may be deleted.
func (r *applyRun) askPruned(ctx context.Context, m *v1.Module) (*v1.DeleteModuleResponse, error) {
	if resp := r.asked[m]; resp != nil {
		return resp, nil
	}
	resp, err := r.deletePruned(ctx, m, true, false)
	if err == nil {
		if r.asked == nil {
			r.asked = map[*v1.Module]*v1.DeleteModuleResponse{}
		}
		r.asked[m] = resp
	}
	return resp, err
}

// leaveWanted leaves out what somebody else wants: where it goes is his move, and keeps nothing else from being done. The hub is not asked whether
// modules depend on it, which those that are put may do no more: what it says is not possible is that.
func (r *applyRun) leaveWanted(ctx context.Context, p *pruning) (stay []*v1.Module) {
	p.modules = slices.DeleteFunc(p.modules, func(m *v1.Module) bool {
		_, err := r.askPruned(ctx, m)
		wanted := errors.Is(err, fleet.ErrPrecondition)
		if wanted {
			stay, p.wanted = append(stay, m), append(p.wanted, unpruned(m, err))
		}
		return wanted
	})
	return stay
}

// unprunable asks the hub what it would refuse to delete.
func (r *applyRun) unprunable(ctx context.Context, p *pruning) (errs []error) {
	if p == nil {
		return nil
	}
	for _, m := range p.modules {
		if _, err := r.askPruned(ctx, m); err != nil && !errors.Is(err, fleet.ErrNotFound) {
			errs = append(errs, fmt.Errorf("module %s would not be pruned: %w", refOfModule(m).Display(), err))
		}
	}
	return errs
}

func unpruned(m *v1.Module, why error) error {
	return fmt.Errorf("module %s is not pruned: %w", refOfModule(m).Display(), why)
}

// prune deletes what was planned, and says so; one that cannot be deleted stops no other. With --wait, what the clusters need until the
// rollouts of this apply are through is deleted after them.
func (r *applyRun) prune(ctx context.Context, p *pruning) error {
	if p == nil {
		return nil
	}
	errs := slices.Clone(p.wanted)
	for i, m := range p.modules {
		if ctx.Err() != nil {
			errs = append(errs, ctx.Err(), notPruned(p.modules[i:]))
			break
		}
		err := r.pruneOne(ctx, p, m, i < len(p.modules)-1)
		if errors.Is(err, fleet.ErrPrecondition) && r.o.wait {
			p.later = append(p.later, m)
			r.a.notef("module/%s is pruned after the rollouts, %s\n", refOfModule(m).Display(), r.untilThen(ctx, m))
			continue
		}
		errs = append(errs, err)
	}
	return joined(errs...)
}

// untilThen says why a module is not deleted yet: clusters need it, or it may not go whatever needs it.
func (r *applyRun) untilThen(ctx context.Context, m *v1.Module) string {
	if _, err := r.deletePruned(ctx, m, true, false); errors.Is(err, fleet.ErrPrecondition) {
		return fmt.Sprintf("if it may be then: %v", err)
	}
	return "for clusters need it until then" + r.inItsPlace(refOfModule(m))
}

// inItsPlace is said of a module that goes later than new ones are put, of which one may take its place, as where it is renamed: the rollouts
// may wait for that one, and this one for the rollouts. What takes its place is what the modules that were put need now. Where nothing new is
// needed there is none, and nobody is shown a command that deletes.
func (r *applyRun) inItsPlace(ref fleet.ModuleRef) string {
	needed := r.newAndNeeded(ref.Project)
	if len(needed) == 0 {
		return ""
	}
	return fmt.Sprintf("; if module %s is to take its place, that is in conflict meanwhile, and if the rollouts wait for it, have this one go now: towline delete module %s --force",
		anyOf(needed), ref.Display())
}

// newAndNeeded are the new modules of a project on which others that were put depend.
func (r *applyRun) newAndNeeded(project string) (out []string) {
	needed := map[string]bool{}
	for _, x := range r.stored {
		m, is := x.(*v1.Module)
		if !is || refOfModule(m).Project != project {
			continue
		}
		for _, d := range m.GetSpec().GetDependsOn() {
			needed[moduleName(project, d.GetModule())] = true
		}
	}
	for _, name := range r.first {
		if needed[name] {
			out = append(out, name)
		}
	}
	return out
}

// anyOf names modules of which one may be meant.
func anyOf(names []string) string {
	const most = 3
	if len(names) > most {
		return strings.Join(names[:most], ", ") + " or another new one"
	}
	return enumerate(names, "or")
}

// notPruned names what an interrupt came before.
func notPruned(left []*v1.Module) error {
	return fmt.Errorf("not pruned: %s; the next apply of the files does that", strings.Join((&pruning{modules: left}).names(), ", "))
}

func (r *applyRun) pruneLater(ctx context.Context, p *pruning) error {
	if p == nil {
		return nil
	}
	var errs []error
	for i, m := range p.later {
		if ctx.Err() != nil {
			errs = append(errs, ctx.Err(), notPruned(p.later[i:]))
			break
		}
		errs = append(errs, r.pruneOne(ctx, p, m, false))
	}
	return joined(errs...)
}

func (r *applyRun) pruneOne(ctx context.Context, p *pruning, m *v1.Module, more bool) error {
	name := "module/" + refOfModule(m).Display()
	done, err := r.deletePruned(ctx, m, r.dry(), more)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return nil // somebody else has deleted it
	case errors.Is(err, context.Canceled) && !r.dry():
		return joined(err, becausef("whether module %s is pruned is not known; see: towline get module %s", refOfModule(m).Display(), refOfModule(m).Display()))
	case undecided(err) && !r.dry():
		return fmt.Errorf("whether module %s is pruned is not known: %w", refOfModule(m).Display(), err)
	case err != nil:
		return unpruned(m, err)
	}
	p.deleted = append(p.deleted, m)
	r.say(name, "pruned", deleteText(done, false))
	return nil
}

// gone waits, with --wait, until the clusters have confirmed what was pruned. All of it has the time of the rollouts: --timeout is of the command.
func (r *applyRun) gone(ctx, timed context.Context, p *pruning) error {
	if p == nil || !r.o.wait || r.dry() {
		return nil
	}
	var errs []error
	for _, m := range p.deleted {
		last, err := r.a.waitGone(ctx, timed, r.c, refOfModule(m), m.GetMetadata().GetUid(), r.o.timeout)
		if kept := r.a.keptText(ctx, r.c, refOfModule(m), cmp.Or(last, m)); err == nil && kept != "" {
			r.a.notef("module/%s is gone%s\n", refOfModule(m).Display(), kept)
		}
		errs = append(errs, err)
	}
	return joined(errs...)
}
