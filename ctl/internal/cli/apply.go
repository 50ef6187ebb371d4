package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
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
		Long: "Puts every resource of the files on the hub, after it has said of all of them that it takes them. A changed module starts a rollout; --wait follows it to its end.\n" +
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
	var stdin bytes.Buffer
	found, err := a.readFiles(ctx, o, io.TeeReader(a.In, &stdin))
	if err != nil {
		a.wantsNamed(ctx, o, &stdin)
		return err
	}
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	slices.SortStableFunc(found, func(x, y resource.Resource) int { return kindNamed(x.Kind).applied - kindNamed(y.Kind).applied })
	modules := only[*v1.Module](found)
	run := &applyRun{a: a, o: o, c: c, modules: len(modules), with: ordersOf(modules)}
	run.insists.passes = run.passes
	if o.plan != "" && run.modules != 1 {
		return usagef("--plan is of one module; there are %d", run.modules)
	}
	prune, err := run.planPrune(ctx, modules)
	if err != nil {
		if !run.dry() { // nothing is put, and whose modules these files have is not to prune them meanwhile
			_ = run.refusedIn(ctx, found)
			run.wants(ctx, found)
		}
		return err
	}
	run.deletes = prune.not() != nil
	if run.dry() {
		return run.tell(ctx, found, prune)
	}
	return run.all(ctx, found, prune)
}

// readFiles are the resources of the files, with what they say of local folders uploaded.
func (a *app) readFiles(ctx context.Context, o *applyOptions, stdin io.Reader) ([]resource.Resource, error) {
	found, err := resource.Load(o.files, resource.Options{Stdin: stdin, Kinds: inFiles(), Recursive: o.recursive, KeepGeneration: o.unchanged, Whole: o.set.prune})
	if err != nil {
		return nil, err
	}
	if err := a.settleProjects(found); err != nil {
		return nil, err
	}
	if err := resource.Unique(found); err != nil {
		return nil, err
	}
	return found, a.upload(ctx, &o.from, found)
}

// only are those of one kind.
func only[M proto.Message](all []resource.Resource) (out []resource.Resource) {
	for _, x := range all {
		if _, is := x.Message.(M); is {
			out = append(out, x)
		}
	}
	return out
}

// tell says what an apply would do, and what is wrong with it.
func (r *applyRun) tell(ctx context.Context, all []resource.Resource, prune *pruning) error {
	_, errs := r.torn(ctx, all)
	if errs = append(errs, r.putAll(ctx, all)...); len(errs) > 0 {
		return joinCodes(append(errs, prune.not(), r.print()))
	}
	return joinCodes([]error{r.prune(ctx, prune), r.print()})
}

// all puts what is in the files, and deletes what is to go then. Nothing of it begins until all of it is known to be able to, and what
// comes after one that fails all the same does not begin, but for the rest of a batch of modules.
func (r *applyRun) all(ctx context.Context, all []resource.Resource, prune *pruning) error {
	if len(all) > 1 || r.deletes {
		var errs []error
		if all, errs = r.refused(ctx, all, prune); len(errs) > 0 {
			return joinCodes(append(errs, prune.not(), r.print()))
		}
	}
	if r.several = r.modules > 1; r.several || r.deletes {
		r.batch = rand.Text()
	}
	var errs []error
	for i, x := range all {
		if _, is := x.Message.(*v1.Module); len(errs) > 0 && (!(is && r.broken) || ctx.Err() != nil) {
			errs = append(errs, becausef("not put, because of that: %s", strings.Join(namesOf(all[i:], nameOf), ", ")))
			break
		}
		errs = append(errs, r.putAll(ctx, all[i:i+1])...)
	}
	if r.broken {
		errs = append(errs, r.half())
	}
	timed, cancel := r.o.deadline(ctx)
	defer cancel()
	switch {
	case r.broken && ctx.Err() != nil: // nothing that was put goes on
		return joinCodes(append(errs, prune.not(), r.print()))
	case len(errs) > 0:
		return joinCodes(append(errs, prune.not(), r.print(), r.follow(ctx, timed)))
	}
	pruned := r.prune(ctx, prune)
	return joinCodes([]error{pruned, r.print(), r.follow(ctx, timed), r.pruneLater(ctx, prune), r.gone(ctx, timed, prune)})
}

// half says what becomes of the modules that were put where a batch is not whole. The first rollout of a module lets nothing go, so it waits
// for no other one.
func (r *applyRun) half() error {
	begin := ""
	switch n := len(r.first); {
	case n == 1:
		begin = "module " + r.first[0] + " is new, and begins all the same"
	case n > 1:
		begin = "modules " + enumerate(r.first, "and") + " are new, and begin all the same"
	}
	said, others := "", ""
	if begin != "" {
		begin, others = "; "+begin, "other "
	}
	switch {
	case r.waits && r.open:
		said = "whether the " + others + "modules that were put begin is not known, for the last one may be put, too" + begin
	case r.waits:
		said = "the " + others + "modules that were put do not begin without the rest, and what runs stays" + begin
	case begin != "":
		said = strings.TrimPrefix(begin, "; ")
	default:
		said = "none of the modules is known to be put"
	}
	return becausef("%s: apply all of them again", said)
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
	modules  int      // that are not put yet
	batch    string   // of several modules, or of what is put and what is deleted
	several  bool     // modules are put
	deletes  bool     // modules go when all of it is put
	broken   bool     // the put of a module failed: the batch is not whole
	open     bool     // it is not known whether the last put of the batch was taken, which has all begin
	waits    bool     // a module was put whose rollout does not begin before the batch is whole
	first    []string // modules that were put and are new: their first rollouts wait for nothing
	insists  insistence
	with     []*v1.ModuleOrder
	tried    map[proto.Message]tried
	asked    map[*v1.Module]*v1.DeleteModuleResponse // what a deletion would do
}

// passes reports that a put is repeated after an error: it found no hub. One that was taken, and of which the answer was lost, changes nothing by
// that. With --if-unchanged it would take its own change for that of somebody else.
func (r *applyRun) passes(err error) bool {
	return errors.Is(err, fleet.ErrUnavailable) && !r.dry() && !r.o.unchanged
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

func (r *applyRun) putModule(ctx context.Context, res resource.Resource) error {
	r.modules--
	req := &v1.PutModuleRequest{Module: res.Message.(*v1.Module), Reason: r.o.reason, DryRun: r.dry(), Batch: r.batch, More: r.modules > 0 || r.broken, Plan: r.o.plan, With: r.with,
		Set: r.o.set.name, Take: r.o.set.take, Deletes: r.deletes}
	resp, _, err := insisted(ctx, r.a, &r.insists, func() (*v1.PutModuleResponse, error) { return r.c.Modules.PutModule(ctx, req) })
	if err != nil {
		r.broken, r.open = r.several, !req.GetMore() && undecided(err)
		return err
	}
	return r.module(resp)
}

func (r *applyRun) putCluster(ctx context.Context, res resource.Resource) error {
	req := &v1.PutClusterRequest{Cluster: res.Message.(*v1.Cluster), Reason: r.o.reason, Apply: true, DryRun: r.dry()}
	resp, _, err := insisted(ctx, r.a, &r.insists, func() (*v1.PutClusterResponse, error) { return r.c.Clusters.PutCluster(ctx, req) })
	if err != nil {
		return err
	}
	r.stored = append(r.stored, resp.GetCluster())
	r.say("cluster/"+resp.GetCluster().GetMetadata().GetName(), resp.GetResult(), movesText(resp))
	return nil
}

func (r *applyRun) putProject(ctx context.Context, res resource.Resource) error {
	req := &v1.PutProjectRequest{Project: res.Message.(*v1.Project), Reason: r.o.reason, DryRun: r.dry()}
	resp, _, err := insisted(ctx, r.a, &r.insists, func() (*v1.PutProjectResponse, error) { return r.c.Identity.PutProject(ctx, req) })
	if err != nil {
		return err
	}
	r.stored = append(r.stored, resp.GetProject())
	r.say("project/"+resp.GetProject().GetMetadata().GetName(), resp.GetResult(), "")
	return nil
}

// nameOf is such as "module shop".
func nameOf(res resource.Resource) string {
	name := res.Meta().GetName()
	if kindNamed(res.Kind).project {
		name = moduleName(res.Meta().GetProject(), name)
	}
	return strings.ToLower(res.Kind) + " " + name
}

// inFile names the resource in front of an error of the hub that does not name it.
func inFile(res resource.Resource, err error) error {
	name := nameOf(res)
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
	switch {
	case resp.GetResult() == "created":
		r.first = append(r.first, moduleName(meta.GetProject(), meta.GetName()))
	case id != "":
		r.waits = true
	}
	if id == "" {
		id = resp.GetModule().GetStatus().GetRollout()
	}
	if !r.o.wait {
		return nil
	}
	of := followed{RolloutID: fleet.RolloutID{Module: refOfModule(resp.GetModule())}, uid: meta.GetUid()}
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
		leaves := "leaves " + count(n, "cluster") + ", where what it has goes (towline diff says what)"
		if resp.GetLeavingAsks() {
			leaves += "; the rollout waits until that is confirmed: towline get holds"
		}
		parts = append(parts, leaves)
	}
	if m := resp.GetModule(); resp.GetResult() == "unchanged" && moves(m.GetSpec().GetSource()) {
		parts = append(parts, "its source was not looked at (towline resync module "+refOfModule(m).Display()+" does)")
	}
	return strings.Join(parts, "; ")
}

// moves reports that a source may have something else under the same words later.
func moves(s *v1.Source) bool {
	exact, _ := wire.Exact(s)
	return s != nil && exact == ""
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

// follow stays with every rollout of the apply.
func (r *applyRun) follow(ctx, timed context.Context) error {
	return r.a.followAll(ctx, timed, r.rollouts, &r.o.waitOptions)
}

// delivered says what a rollout that succeeded has not done of what was put: it went nowhere, or what the revision drops, or the clusters that
// it leaves, wait for a person. One that another program assigns has nothing to do but to cut the revision.
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
			what := fmt.Sprintf("what r%d does not list waits for a person", r.GetRevision())
			if holds[0].GetCode() == fleet.HoldLeaves {
				what = count(int32(itemCount(holds[0])), "cluster") + " would lose the module; that waits for a person"
			}
			return &exitError{exitWaits, fmt.Errorf("rollout %s: %s: towline confirm %s", r.GetId(), what, holds[0].GetId())}
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
