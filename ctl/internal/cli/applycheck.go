package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/wire"
)

// tried is what the hub says of a put before anything is put.
type tried struct {
	result string
	err    error
}

// try asks the hub once what a put of a module or a catalog would do. Of others it says nothing.
func (r *applyRun) try(ctx context.Context, x resource.Resource) (result string, err error) {
	out, known := r.tried[x.Message]
	if known {
		return out.result, out.err
	}
	switch in := x.Message.(type) {
	case *v1.Module:
		var resp *v1.PutModuleResponse
		resp, out.err = r.c.Modules.PutModule(ctx, &v1.PutModuleRequest{Module: in, Reason: r.o.reason, DryRun: true, Plan: r.o.plan, With: r.with, Set: r.o.set.name, Take: r.o.set.take,
			Deletes: r.deletes}) // a hub that does not know that refuses it before anything is put
		out.result = resp.GetResult()
	case *v1.Catalog:
		var resp *v1.PutCatalogResponse
		resp, out.err = r.c.Catalogs.PutCatalog(ctx, &v1.PutCatalogRequest{Catalog: in, DryRun: true})
		out.result = resp.GetResult()
	}
	if r.tried == nil {
		r.tried = map[proto.Message]tried{}
	}
	r.tried[x.Message] = out
	return out.result, out.err
}

// refused asks the hub what is wrong, before anything is put: what one module lets go, and another one was to take that is refused, would be
// deleted; and so would what a module has in a cluster that gets other labels, if the placement that is to follow them is refused, or
// comes after them; and so what other overrides leave out, what is pruned had and another one was to take, and what a catalog lets go. Of
// what is in a project that is not there yet the hub says nothing before it is: such projects, in which nothing is, are put for that.
func (r *applyRun) refused(ctx context.Context, all []resource.Resource, prune *pruning) (left []resource.Resource, errs []error) {
	made, errs := r.newProjects(ctx, all)
	known, then := partition(all, func(x resource.Resource) bool { return !made[projectOf(x)] })
	moves, torn := r.torn(ctx, known)
	errs = append(errs, torn...)
	for i, x := range only[*v1.Cluster](known) {
		if moves[i].err != nil {
			errs = append(errs, inFile(x, moves[i].err))
		}
	}
	errs = slices.Concat(errs, r.refusedIn(ctx, known), r.unprunable(ctx, prune))
	put := "nothing was put"
	if len(errs) == 0 && len(made) > 0 {
		put = "nothing but new projects was put"
		projects, left := partition(all, func(x resource.Resource) bool {
			_, is := x.Message.(*v1.Project)
			return is && made[projectOf(x)]
		})
		all, errs = left, r.putAll(ctx, projects)
		if len(errs) == 0 {
			errs = r.refusedIn(ctx, then)
		}
	}
	if len(errs) > 0 {
		r.wants(ctx, all)
	}
	if len(errs) > 0 && len(all) > 1 {
		errs = append(errs, becausef("%s: apply all of it when all is right, or what is right by itself", put))
	}
	return all, errs
}

// wants tells the hub, of the modules that it refuses, that the set wants them: where they are of another set, or of a catalog, that is not to prune them
// before they are taken over. One that does not know of it refuses this, too.
func (r *applyRun) wants(ctx context.Context, all []resource.Resource) {
	if r.o.set.name == "" {
		return
	}
	for _, x := range only[*v1.Module](all) {
		if r.tried[x.Message].err == nil && !r.o.set.take { // one that would be taken is refused without that, which notes it
			continue
		}
		r.want(ctx, x.Message.(*v1.Module))
	}
}

func (r *applyRun) want(ctx context.Context, m *v1.Module) {
	req := &v1.PutModuleRequest{Module: m, Reason: r.o.reason, DryRun: true, Set: r.o.set.name, Wants: true}
	_, _, _ = insisted(ctx, r.a, &r.insists, func() (*v1.PutModuleResponse, error) { return r.c.Modules.PutModule(ctx, req) })
}

// wantsNamed is wants for files that cannot be applied, as far as they can be read: of the modules of others in the project, those that they have, or
// name where they are no YAML. All that the hub needs to know is the name.
func (a *app) wantsNamed(ctx context.Context, o *applyOptions, stdin io.Reader) {
	if o.set.name == "" || o.dryRun == "server" {
		return
	}
	docs, unread := resource.Readable(o.files, resource.Options{Stdin: stdin, Recursive: o.recursive})
	const kind = "Module"
	names := func(m *v1.Module) bool {
		ref := refOfModule(m)
		return slices.ContainsFunc(docs, func(d resource.Document) bool {
			return d.Is(kind) && d.Name() == ref.Name && (d.InProject() == "" || d.InProject() == ref.Project)
		}) || slices.ContainsFunc(unread, func(u resource.Unread) bool { return u.Names(kind, ref.Name) })
	}
	c, err := a.hub(ctx)
	if err != nil {
		return
	}
	all, err := collect(c.AllModules(ctx, &v1.ListModulesRequest{Project: a.project}))
	if err != nil {
		return
	}
	run := &applyRun{a: a, o: o, c: c}
	run.insists.passes = run.passes
	for _, m := range all {
		if of := m.GetMetadata().GetOrigin(); of != "" && of != fleet.SetOrigin(o.set.name) && names(m) {
			run.want(ctx, &v1.Module{Metadata: &v1.Metadata{Project: m.GetMetadata().GetProject(), Name: m.GetMetadata().GetName()}})
		}
	}
}

// partition is those that are meant, and the others.
func partition(all []resource.Resource, meant func(resource.Resource) bool) (these, others []resource.Resource) {
	for _, x := range all {
		if meant(x) {
			these = append(these, x)
		} else {
			others = append(others, x)
		}
	}
	return these, others
}

// projectOf is the project that a resource is of, or is.
func projectOf(x resource.Resource) string {
	if _, is := x.Message.(*v1.Project); is {
		return x.Meta().GetName()
	}
	return x.Meta().GetProject()
}

// newProjects are the projects of the files that are not there yet.
func (r *applyRun) newProjects(ctx context.Context, all []resource.Resource) (made map[string]bool, errs []error) {
	made = map[string]bool{}
	for _, x := range only[*v1.Project](all) {
		resp, err := r.c.Identity.PutProject(ctx, &v1.PutProjectRequest{Project: x.Message.(*v1.Project), DryRun: true})
		if err != nil {
			errs = append(errs, inFile(x, err))
		}
		if resp.GetResult() == "created" {
			made[x.Meta().GetName()] = true
		}
	}
	return made, errs
}

// refusedIn asks the hub what is wrong with modules and catalogs.
func (r *applyRun) refusedIn(ctx context.Context, all []resource.Resource) (errs []error) {
	for _, x := range all {
		if _, err := r.try(ctx, x); err != nil {
			errs = append(errs, inFile(x, err))
		}
	}
	return errs
}

// torn asks what each cluster does by its new labels, and says what would go by them that what is put after it is to keep there.
func (r *applyRun) torn(ctx context.Context, all []resource.Resource) (moves []clusterMove, errs []error) {
	modules, catalogs := only[*v1.Module](all), only[*v1.Catalog](all)
	for _, x := range only[*v1.Cluster](all) {
		m := r.moveOf(ctx, x.Message.(*v1.Cluster))
		moves = append(moves, m)
		errs = slices.Concat(errs, tornPlacements(m, modules), r.tornVariants(ctx, m, modules), r.tornCatalogs(ctx, m, catalogs))
	}
	return moves, errs
}

// clusterMove is what a cluster does by its new labels.
type clusterMove struct {
	then   *v1.Cluster // with the labels that it has then
	leaves []string    // modules
	loses  []string    // modules of which objects go by other overrides
	err    error       // why nobody knows
}

func (m clusterMove) harmless() bool { return len(m.leaves)+len(m.loses) == 0 }

// moveOf asks what a cluster does by its new labels. What goes by the labels that it has already does so whether it is put or not.
func (r *applyRun) moveOf(ctx context.Context, in *v1.Cluster) clusterMove {
	resp, err := r.c.Clusters.PutCluster(ctx, &v1.PutClusterRequest{Cluster: in, Apply: true, DryRun: true})
	if err != nil {
		return clusterMove{then: in, err: err}
	}
	m := clusterMove{then: cmp.Or(resp.GetCluster(), in), leaves: resp.GetLeaves(), loses: resp.GetLoses()}
	if m.harmless() {
		return m
	}
	old, err := r.c.Clusters.GetCluster(ctx, &v1.GetClusterRequest{Name: in.GetMetadata().GetName()})
	if err == nil && maps.Equal(old.GetCluster().GetMetadata().GetLabels(), m.then.GetMetadata().GetLabels()) {
		return clusterMove{then: m.then}
	}
	return m
}

// tornPlacements says which modules would leave a cluster when it gets its new labels, by the placements that hold until then, though by those
// that are put after it they are to be there.
func tornPlacements(of clusterMove, modules []resource.Resource) (errs []error) {
	c, err := wire.ClusterFromProto(of.then)
	if err != nil {
		return nil
	}
	for _, x := range modules {
		m, err := wire.ModuleFromProto(x.Message.(*v1.Module))
		if err != nil || m.External || !slices.Contains(of.leaves, m.Ref.String()) || !assemble.Places(m.Placement, c, true) {
			continue
		}
		errs = append(errs, fmt.Errorf("cluster %s: module %s would leave it before its new placement is put, and what it has there would be deleted: first apply module %s with a placement that selects the labels of before and of now",
			c.Name, m.Ref.Display(), m.Ref.Display()))
	}
	return errs
}

// tornVariants says of which modules a cluster would lose objects when it gets its new labels, by the overrides that hold until then,
// though the module that is put after it is another one.
func (r *applyRun) tornVariants(ctx context.Context, of clusterMove, modules []resource.Resource) (errs []error) {
	for _, x := range modules {
		in := x.Message.(*v1.Module)
		name := moduleName(in.GetMetadata().GetProject(), in.GetMetadata().GetName())
		if !slices.Contains(displayAll(of.loses), name) {
			continue
		}
		result, err := r.try(ctx, x)
		if err != nil || result == "unchanged" { // what is refused is told elsewhere
			continue
		}
		errs = append(errs, fmt.Errorf("cluster %s: by its new labels it would lose objects of module %s before the new %s is put, also those that this has: first apply module %s with overrides for the labels of before and of now, then the cluster",
			of.then.GetMetadata().GetName(), name, name, name))
	}
	return errs
}

// tornCatalogs says which modules of a catalog a cluster would leave, or lose objects of, by its new labels, before the catalog, which
// is another one, is looked at.
func (r *applyRun) tornCatalogs(ctx context.Context, of clusterMove, catalogs []resource.Resource) (errs []error) {
	for _, name := range slices.Concat(of.leaves, of.loses) {
		for _, x := range catalogs {
			ref, err := fleet.ParseModuleRef(name)
			if err != nil || ref.Project != x.Meta().GetProject() {
				continue
			}
			m, err := r.c.Modules.GetModule(ctx, &v1.GetModuleRequest{Project: ref.Project, Name: ref.Name})
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if m.GetModule().GetMetadata().GetOrigin() != fleet.CatalogOrigin(x.Meta().GetName()) {
				continue
			}
			result, err := r.try(ctx, x)
			if err != nil || result == "unchanged" { // what is refused is told elsewhere
				continue
			}
			errs = append(errs, fmt.Errorf("cluster %s: by its new labels it would lose objects of module %s before the new catalog %s is looked at, also those that this has: apply one of the two, and the other when that is done",
				of.then.GetMetadata().GetName(), ref.Display(), x.Meta().GetName()))
		}
	}
	return errs
}
