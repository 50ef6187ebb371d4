package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/wire"
)

type applyOptions struct {
	waitOptions
	files     []string
	recursive bool
	wait      bool
	reason    string
	dryRun    string
	unchanged bool
	plan      string
	output    string
	from      fromFlag
	set       setFlags
}

func (a *app) applyCommand() *cobra.Command {
	o := &applyOptions{}
	cmd := &cobra.Command{
		Use: "apply -f FILE|DIR|-", Short: "Put modules, catalogs, clusters and projects on the hub",
		Long: "Puts every resource of the files on the hub. A changed module starts a rollout; --wait follows it to its end.\n" +
			"With --from DIR the files of a local folder are uploaded for all modules of the files with source: {upload: {}}; without it they keep what the hub has.\n" +
			"With --set NAME the modules are of a set, and --prune deletes those of the set in the project that are in the files no more.\n\n" + exitHelp,
		Example: "  towline apply -f shop.yaml -m 'shop 1.5.0 (PR 812)' --wait --timeout 30m\n" +
			"  towline apply -f shop.yaml --from deploy/\n" +
			"  towline apply -f modules/ -p team --set team-repo --prune --wait\n" +
			"  towline get module/shop -o yaml | towline apply -f -",
		Args: exactly(0, "no arguments; name files with -f"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("plan") && o.plan == "" { // a script's variable that is not set
				return usagef("--plan is empty: give the plan that towline diff has printed")
			}
			if err := o.from.check(cmd); err != nil {
				return err
			}
			if err := o.set.check(cmd); err != nil {
				return err
			}
			return a.apply(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringSliceVarP(&o.files, "filename", "f", nil, "file, directory or - for stdin; may be repeated")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "directories with all below them")
	f.BoolVar(&o.wait, "wait", false, "follow the rollouts to their end and exit with their result")
	f.StringVarP(&o.reason, "message", "m", "", "why; recorded with the change")
	f.StringVar(&o.dryRun, "dry-run", "none", "server: check on the hub and tell what would happen")
	f.Lookup("dry-run").NoOptDefVal = "server"
	f.BoolVar(&o.unchanged, "if-unchanged", false, "fail if the module has changed since the metadata.generation in the file, or is another one than that of its metadata.uid")
	f.StringVar(&o.plan, "plan", "", "fail if the module renders to something else than the diff of this plan has told")
	f.StringVarP(&o.output, "output", "o", "", "name, json or yaml: print the resources as stored")
	o.flags(cmd)
	o.from.flag(cmd)
	o.set.flags(cmd)
	must(cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions([]string{"server", "none"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (o *applyOptions) check() error {
	switch {
	case len(o.files) == 0:
		return usagef("apply: name what to apply with -f FILE, -f DIR or -f -")
	case o.dryRun != "none" && o.dryRun != "server":
		return usagef("--dry-run=%s: only the hub can tell; use --dry-run=server", o.dryRun)
	case o.dryRun == "server" && o.wait:
		return usagef("--dry-run changes nothing, so there is nothing to --wait for")
	case !slices.Contains([]string{"", "name", "json", "yaml"}, o.output):
		return usagef("-o %s: apply prints name, json or yaml", o.output)
	}
	return nil
}

func (a *app) apply(ctx context.Context, o *applyOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	found, err := resource.Load(o.files, resource.Options{Stdin: a.In, Kinds: inFiles(), Recursive: o.recursive, KeepGeneration: o.unchanged})
	if err != nil {
		return err
	}
	if err := a.settleProjects(found); err != nil {
		return err
	}
	if err := resource.Unique(found); err != nil {
		return err
	}
	if err := a.upload(ctx, &o.from, found); err != nil {
		return err
	}
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	run := &applyRun{a: a, o: o, c: c}
	slices.SortStableFunc(found, func(x, y resource.Resource) int { return kindNamed(x.Kind).applied - kindNamed(y.Kind).applied })
	var modules, clusters, before []resource.Resource
	for _, r := range found {
		switch r.Message.(type) {
		case *v1.Module:
			modules = append(modules, r)
		case *v1.Cluster:
			clusters = append(clusters, r)
		default:
			before = append(before, r)
		}
	}
	if run.modules = len(modules); o.plan != "" && run.modules != 1 {
		return usagef("--plan is of one module; there are %d", run.modules)
	}
	run.with = ordersOf(modules)
	prune, err := run.planPrune(ctx, modules)
	if err != nil {
		return err
	}
	errs := run.putAll(ctx, before)
	refused, harmless := run.refused(ctx, clusters, modules, prune)
	errs = append(errs, refused...)
	if len(refused) > 0 && !run.dry() {
		errs = append(errs, run.putAll(ctx, harmless)...)
		return joinCodes(append(errs, prune.not(), run.print()))
	}
	if run.modules > 1 && !run.dry() {
		run.batch = rand.Text()
	}
	failed := run.putAll(ctx, clusters)
	errs = append(errs, failed...)
	if len(failed) > 0 && run.modules > 0 && !run.dry() {
		return joinCodes(append(errs, errors.New("no module was put: their placements may follow labels that clusters were to get"), prune.not(), run.print()))
	}
	errs = append(errs, run.putAll(ctx, modules)...)
	if run.broken {
		errs = append(errs, errors.New("the modules that were put do not begin without the rest, and what runs stays: apply all of them again"))
	}
	if err := errors.Join(errs...); err != nil {
		return joinCodes(append(errs, prune.not(), run.print(), run.follow(ctx)))
	}
	pruned := run.prune(ctx, prune)
	return joinCodes([]error{pruned, run.print(), run.follow(ctx), run.pruneLater(ctx, prune), run.gone(ctx, prune)})
}

// ordersOf is what modules that are put together say of their order, which is judged over all of them; none: nothing is said.
func ordersOf(modules []resource.Resource) (out []*v1.ModuleOrder) {
	said := false
	for _, x := range modules {
		m := x.Message.(*v1.Module)
		said = said || len(m.GetSpec().GetDependsOn()) > 0
		out = append(out, &v1.ModuleOrder{Project: m.GetMetadata().GetProject(), Module: m.GetMetadata().GetName(), DependsOn: m.GetSpec().GetDependsOn()})
	}
	if !said || len(modules) < 2 {
		return nil
	}
	return out
}

// joinCodes joins errors; of several exit codes the first counts, and a silent one stays silent.
func joinCodes(errs []error) error {
	var said []error
	var silent *exitError
	for _, err := range errs {
		var coded *exitError
		if errors.As(err, &coded) && coded.err == nil {
			if silent == nil {
				silent = coded
			}
			continue
		}
		said = append(said, err)
	}
	if err := errors.Join(said...); err != nil || silent == nil {
		return err
	}
	return silent
}

// settleProjects gives what is of a project and names none that of -p; another one than -p asks for is an error.
func (a *app) settleProjects(found []resource.Resource) error {
	for _, r := range found {
		if !kindNamed(r.Kind).project {
			continue
		}
		switch meta := r.Meta(); {
		case meta.GetProject() == "":
			meta.Project = a.project
		case a.project != fleet.DefaultProject && meta.GetProject() != a.project:
			return usagef("%s: %s %s is of project %s, not of %s as -p says", r.Source, strings.ToLower(r.Kind), meta.GetName(), meta.GetProject(), a.project)
		}
	}
	return nil
}

// applyRun is one apply: what was stored and which rollouts to follow.
type applyRun struct {
	a        *app
	o        *applyOptions
	c        *client.Client
	stored   []proto.Message
	rollouts []followed
	modules  int    // that are not put yet
	batch    string // of several modules
	broken   bool   // the put of a module failed: the batch is not whole
	with     []*v1.ModuleOrder
	tried    map[*v1.Module]tried
}

// tried is what the hub says of a put before anything is put.
type tried struct {
	resp *v1.PutModuleResponse
	err  error
}

// try asks the hub once what a put of a module would do.
func (r *applyRun) try(ctx context.Context, m *v1.Module) (*v1.PutModuleResponse, error) {
	out, known := r.tried[m]
	if !known {
		out.resp, out.err = r.c.Modules.PutModule(ctx, &v1.PutModuleRequest{Module: m, Reason: r.o.reason, DryRun: true, With: r.with, Set: r.o.set.name, Take: r.o.set.take})
		if r.tried == nil {
			r.tried = map[*v1.Module]tried{}
		}
		r.tried[m] = out
	}
	return out.resp, out.err
}

func (r *applyRun) dry() bool { return r.o.dryRun == "server" }

func (r *applyRun) putAll(ctx context.Context, resources []resource.Resource) (errs []error) {
	for _, x := range resources {
		if err := kindNamed(x.Kind).put(r, ctx, x); err != nil {
			errs = append(errs, inFile(x, err))
		}
	}
	return errs
}

// refused asks the hub what is wrong with modules, before any of them or a cluster is put: what one lets go, and another one was to
// take that is refused, would be deleted; and so would what a module has in a cluster that gets other labels, if the placement that is
// to follow them is refused, or comes after them; and so what other overrides leave out, or what is pruned had
// and a single one was to take. harmless are the clusters in which nothing goes, whatever is refused.
func (r *applyRun) refused(ctx context.Context, clusters, modules []resource.Resource, prune *pruning) (errs []error, harmless []resource.Resource) {
	if len(modules) == 0 || len(modules)+len(clusters) == 1 && prune.not() == nil {
		return nil, nil
	}
	if !r.dry() { // whose answers say the same
		errs = r.refusedModules(ctx, modules)
	}
	moves := make([]clusterMove, len(clusters))
	for i, x := range clusters {
		moves[i] = r.moveOf(ctx, x.Message.(*v1.Cluster))
		errs = append(errs, torn(moves[i], modules)...)
		errs = append(errs, r.tornVariants(ctx, moves[i], modules)...)
	}
	if len(errs) == 0 {
		return nil, nil
	}
	for i, x := range clusters {
		if moves[i].harmless() {
			harmless = append(harmless, x)
		} else if !r.dry() {
			errs = append(errs, fmt.Errorf("cluster %s was not put: it would %s, and not all that comes with it is right", x.Meta().GetName(), moves[i]))
		}
	}
	if len(modules) > 1 && !r.dry() {
		errs = append(errs, fmt.Errorf("none of the %d modules was put: apply them together when all are right, or each alone", len(modules)))
	}
	return errs, harmless
}

func (r *applyRun) refusedModules(ctx context.Context, modules []resource.Resource) (errs []error) {
	for _, x := range modules {
		if _, err := r.try(ctx, x.Message.(*v1.Module)); err != nil {
			errs = append(errs, inFile(x, err))
		}
	}
	return errs
}

// clusterMove is what a cluster does by its new labels.
type clusterMove struct {
	then   *v1.Cluster // with the labels that it has then
	leaves []string    // modules
	loses  []string    // modules of which objects go by other overrides
}

func (m clusterMove) harmless() bool { return len(m.leaves)+len(m.loses) == 0 }

func (m clusterMove) String() string {
	var out []string
	if len(m.leaves) > 0 {
		out = append(out, "leave "+strings.Join(displayAll(m.leaves), ", "))
	}
	if len(m.loses) > 0 {
		out = append(out, "lose objects of "+strings.Join(displayAll(m.loses), ", "))
	}
	return strings.Join(out, " and ")
}

// moveOf asks what a cluster does by its new labels. One that is refused moves nothing, and says so when it is put; what goes by the
// labels that it has already does so whether it is put or not.
func (r *applyRun) moveOf(ctx context.Context, in *v1.Cluster) clusterMove {
	resp, err := r.c.Clusters.PutCluster(ctx, &v1.PutClusterRequest{Cluster: in, Apply: true, DryRun: true})
	if err != nil {
		return clusterMove{then: in}
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

// torn says which modules would leave a cluster when it gets its new labels, by the placements that hold until then, though by those
// that are put after it they are to be there.
func torn(of clusterMove, modules []resource.Resource) (errs []error) {
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
		resp, err := r.try(ctx, in)
		if err != nil || resp.GetResult() == "unchanged" { // what is refused is told elsewhere
			continue
		}
		errs = append(errs, fmt.Errorf("cluster %s: by its new labels it would lose objects of module %s before the new %s is put, also those that this has: first apply module %s with overrides for the labels of before and of now, then the cluster",
			of.then.GetMetadata().GetName(), name, name, name))
	}
	return errs
}

func (r *applyRun) putModule(ctx context.Context, res resource.Resource) error {
	r.modules--
	resp, err := r.c.Modules.PutModule(ctx, &v1.PutModuleRequest{Module: res.Message.(*v1.Module), Reason: r.o.reason, DryRun: r.dry(), Batch: r.batch, More: r.modules > 0 || r.broken, Plan: r.o.plan, With: r.with,
		Set: r.o.set.name, Take: r.o.set.take})
	if err != nil {
		r.broken = r.batch != ""
		return err
	}
	return r.module(resp)
}

func (r *applyRun) putCluster(ctx context.Context, res resource.Resource) error {
	resp, err := r.c.Clusters.PutCluster(ctx, &v1.PutClusterRequest{Cluster: res.Message.(*v1.Cluster), Reason: r.o.reason, Apply: true, DryRun: r.dry()})
	if err != nil {
		return err
	}
	r.stored = append(r.stored, resp.GetCluster())
	r.say("cluster/"+resp.GetCluster().GetMetadata().GetName(), resp.GetResult(), movesText(resp))
	return nil
}

func (r *applyRun) putProject(ctx context.Context, res resource.Resource) error {
	resp, err := r.c.Identity.PutProject(ctx, &v1.PutProjectRequest{Project: res.Message.(*v1.Project), Reason: r.o.reason, DryRun: r.dry()})
	if err != nil {
		return err
	}
	r.stored = append(r.stored, resp.GetProject())
	r.say("project/"+resp.GetProject().GetMetadata().GetName(), resp.GetResult(), "")
	return nil
}

// inFile names the resource in front of an error of the hub that does not name it.
func inFile(res resource.Resource, err error) error {
	name := strings.ToLower(res.Kind) + " " + res.Meta().GetName()
	if m, ok := res.Message.(*v1.Module); ok {
		name = "module " + moduleName(m.GetMetadata().GetProject(), m.GetMetadata().GetName())
	}
	if strings.HasPrefix(err.Error(), name) || !errors.Is(err, fleet.ErrInvalid) {
		return err
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (r *applyRun) module(resp *v1.PutModuleResponse) error {
	meta := resp.GetModule().GetMetadata()
	r.stored = append(r.stored, resp.GetModule())
	r.say("module/"+moduleName(meta.GetProject(), meta.GetName()), resp.GetResult(), r.selectionText(resp))
	for _, w := range resp.GetWarnings() {
		r.a.warnf("module %s: %s", meta.GetName(), noteSays(moduleName(meta.GetProject(), meta.GetName()), w))
	}
	id := resp.GetRollout()
	if id == "" {
		id = resp.GetModule().GetStatus().GetRollout()
	}
	if !r.o.wait {
		return nil
	}
	of := followed{RolloutID: fleet.RolloutID{Module: fleet.ModuleRef{Project: meta.GetProject(), Name: meta.GetName()}}, uid: meta.GetUid()}
	var err error
	if id != "" {
		of.RolloutID, err = parseRolloutOf(meta.GetProject(), id)
	}
	r.rollouts = append(r.rollouts, of)
	return err
}

// parseRolloutOf reads MODULE/N of a project, or PROJECT/MODULE/N.
func parseRolloutOf(project, id string) (fleet.RolloutID, error) {
	if strings.Count(id, "/") == 1 && project != "" {
		id = project + "/" + id
	}
	return fleet.ParseRolloutID(id)
}

// selectionText is "rollout shop/57; selects 120 of 300 clusters: canary 6, rest 114".
func (r *applyRun) selectionText(resp *v1.PutModuleResponse) string {
	var parts []string
	if resp.GetRollout() != "" {
		parts = append(parts, "rollout "+r.a.paint(table.Cyan, resp.GetRollout()))
	}
	selects := fmt.Sprintf("selects %s of %s", number(resp.GetSelected()), count(resp.GetTotal(), "cluster"))
	var stages []string
	for _, s := range resp.GetStages() {
		stages = append(stages, s.GetName()+" "+number(s.GetClusters()))
	}
	if len(stages) > 0 {
		selects += ": " + strings.Join(stages, ", ")
	}
	parts = append(parts, selects)
	if n := resp.GetLeaving(); n > 0 {
		parts = append(parts, "leaves "+count(n, "cluster")+", where what it has goes (towline diff says what)")
	}
	return strings.Join(parts, "; ")
}

func (r *applyRun) say(what, result, more string) {
	switch {
	case r.o.output == "name":
		r.a.printf("%s\n", what)
		return
	case r.o.output != "":
		return
	}
	if r.o.dryRun == "server" {
		result += " (server dry run)"
	}
	if more != "" {
		result += "; " + more
	}
	r.a.printf("%s %s\n", what, result)
}

func (r *applyRun) print() error {
	if r.o.output != "json" && r.o.output != "yaml" || len(r.stored) == 0 {
		return nil
	}
	n := resource.List(r.stored)
	if len(r.stored) == 1 {
		n = resource.Node(r.stored[0])
	}
	return (&output{format: r.o.output}).node(r.a, n)
}

// follow stays with every rollout, one after the other: one that ended meanwhile answers at once.
func (r *applyRun) follow(ctx context.Context) error {
	ctx, cancel := r.o.deadline(ctx)
	defer cancel()
	var errs []error
	for _, of := range r.rollouts {
		last, err := r.a.follow(ctx, of, &r.o.waitOptions, false)
		if err == nil {
			err = r.a.delivered(ctx, of.Module, last)
		}
		errs = append(errs, err)
	}
	return joinCodes(errs)
}

// delivered says what a rollout that succeeded has not done of what was put: it went nowhere, or what the revision drops
// waits for a person. One that another program assigns has nothing to do but to cut the revision.
func (a *app) delivered(ctx context.Context, of fleet.ModuleRef, r *v1.Rollout) error {
	switch {
	case r.GetStrategy().GetExternal() != nil:
		return nil
	case r.GetStatus().GetTotal() > r.GetStatus().GetPassedOver():
	case r.GetStatus().GetFacts().GetSkipped() > 0:
		return &exitError{exitFailed, fmt.Errorf("rollout %s: the placement selects no cluster but such as are skipped or pinned, so it went to none", r.GetId())}
	default:
		return &exitError{exitFailed, fmt.Errorf("rollout %s: the placement selects no cluster, so it went to none", r.GetId())}
	}
	for _, pause := range []time.Duration{0, holdPause} {
		if err := backoff.Wait(ctx, pause); err != nil {
			return err
		}
		var holds []*v1.Hold
		if err := a.insist(ctx, func() (err error) {
			holds, err = a.holds(ctx, &v1.ListHoldsRequest{Project: of.Project, Module: of.Name})
			return err
		}); err != nil {
			return err
		}
		holds = slices.DeleteFunc(holds, func(h *v1.Hold) bool { return h.GetKind() == kindFreeze })
		if len(holds) > 0 {
			return &exitError{exitWaits, fmt.Errorf("rollout %s: what r%d does not list waits for a person: towline confirm %s", r.GetId(),
				r.GetRevision(), holds[0].GetId())}
		}
		left := false
		if err := a.insist(ctx, func() (err error) {
			left, err = a.leftovers(ctx, of)
			return err
		}); err != nil || !left {
			return err
		}
	}
	return nil
}

// insist asks until the hub, which is there, answers: that it starts anew is not the rollout's result.
func (a *app) insist(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if !errors.Is(err, fleet.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		a.onBreak(err)
		if waited := backoff.Wait(ctx, insistPause); waited != nil {
			return err
		}
	}
}

// insistPause is between two tries, of which each has tries of its own.
const insistPause = time.Second

// holdPause is how much later than the rollout's end a hold may come.
const holdPause = 300 * time.Millisecond

// leftovers reports that clusters have objects of a module which it does not list any more.
func (a *app) leftovers(ctx context.Context, m fleet.ModuleRef) (bool, error) {
	c, err := a.hub(ctx)
	if err != nil {
		return false, err
	}
	for t, err := range c.AllTrackers(ctx, &v1.ListTrackersRequest{Filter: &v1.ObjectFilter{Project: m.Project, Module: m.Name}}) {
		if err != nil || t.GetExtra() > 0 {
			return err == nil, err
		}
	}
	return false, nil
}
