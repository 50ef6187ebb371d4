package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/rollout"
)

type diffOptions struct {
	files     []string
	recursive bool
	clusters  []string
	exitCode  bool
	from      fromFlag
	output
}

func (a *app) diffCommand() *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use: "diff -f FILE|DIR|-", Short: "Say what an apply of modules would do, cluster by cluster, and change nothing",
		Long: "Has the agent of each selected cluster ask its API server what an apply would do, by a dry run: what would be made, changed, made again,\n" +
			"adopted or deleted, and what would be refused. Clusters that say the same are told together. Nothing is changed anywhere.",
		Example: "  towline diff -f shop.yaml\n  towline diff -f shop.yaml --from deploy/\n  towline diff -f shop.yaml --exit-code   # 1 if anything would change",
		Args:    exactly(0, "no arguments; name files with -f"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.from.check(cmd); err != nil {
				return err
			}
			return a.diff(cmd.Context(), &o)
		},
	}
	f := cmd.Flags()
	f.StringSliceVarP(&o.files, "filename", "f", nil, "file or directory with modules; - is standard input")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "read directories with those in them")
	f.StringSliceVar(&o.clusters, "clusters", nil, "ask only these of the selected clusters")
	f.BoolVar(&o.exitCode, "exit-code", false, "exit with 1 if anything would change, be it when a pin, a cordon or a hold has ended, or a cluster does not say")
	f.StringVarP(&o.format, "output", "o", "table", "table, json or yaml")
	o.from.flag(cmd)
	return cmd
}

func (a *app) diff(ctx context.Context, o *diffOptions) error {
	switch {
	case len(o.files) == 0:
		return usagef("diff: name the modules with -f FILE, -f DIR or -f -")
	case !slices.Contains([]string{"table", "json", "yaml"}, o.format):
		return usagef("-o %s: diff prints table, json or yaml", o.format)
	}
	found, err := resource.Load(o.files, resource.Options{Stdin: a.In, Kinds: inFiles(), Recursive: o.recursive})
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
	all, refused := a.readDiffs(ctx, c, found, o.clusters)
	if len(all) > 0 || refused == nil {
		if err := a.printDiffs(o, all, refused == nil); err != nil {
			return joined(refused, err)
		}
	}
	if refused == nil && o.exitCode && slices.ContainsFunc(all, (*moduleDiff).differs) {
		return &exitError{code: exitFailed}
	}
	return refused
}

// readDiffs asks about each module, and goes on with the others where one is refused. Where no hub answers, or nobody waits any more, it ends.
func (a *app) readDiffs(ctx context.Context, c *client.Client, found []resource.Resource, clusters []string) (all []*moduleDiff, refused error) {
	var errs []error
	for _, r := range found {
		m, isModule := r.Message.(*v1.Module)
		if !isModule {
			a.warnf("%s %s: diff looks at modules only", strings.ToLower(r.Kind), r.Meta().GetName())
			continue
		}
		d, err := readDiff(ctx, c, m, clusters)
		if err == nil {
			all = append(all, d)
			continue
		}
		errs = append(errs, inFile(r, err))
		if ctx.Err() != nil || errors.Is(err, fleet.ErrUnavailable) {
			break
		}
	}
	return all, joined(errs...)
}

// moduleDiff is all that was said of one module.
type moduleDiff struct {
	name     string
	plan     *v1.DiffPlan
	groups   []*v1.DiffGroup
	clusters []*v1.DiffCluster
}

func readDiff(ctx context.Context, c *client.Client, m *v1.Module, clusters []string) (*moduleDiff, error) {
	d := &moduleDiff{name: moduleName(m.GetMetadata().GetProject(), m.GetMetadata().GetName())}
	st, err := c.Modules.DiffModule(ctx, &v1.DiffModuleRequest{Module: m, Clusters: clusters})
	if err != nil {
		return nil, err
	}
	for {
		part, err := st.Recv()
		if errors.Is(err, io.EOF) {
			slices.SortFunc(d.clusters, func(x, y *v1.DiffCluster) int { return strings.Compare(x.GetCluster(), y.GetCluster()) })
			return d, nil
		}
		if err != nil {
			return nil, err
		}
		switch p := part.GetPart().(type) {
		case *v1.DiffModuleResponse_Plan:
			d.plan = p.Plan
		case *v1.DiffModuleResponse_Group:
			d.groups = append(d.groups, p.Group)
		case *v1.DiffModuleResponse_Cluster:
			d.clusters = append(d.clusters, p.Cluster)
		}
	}
}

// differs reports that something would change, or that this is not known of a cluster.
func (d *moduleDiff) differs() bool {
	return slices.ContainsFunc(d.groups, changesSomething) || slices.ContainsFunc(d.clusters, func(c *v1.DiffCluster) bool { return c.GetGroup() == 0 })
}

// changes reports that something is known to change.
func (d *moduleDiff) changes() bool {
	return slices.ContainsFunc(d.groups, changesSomething) || slices.ContainsFunc(d.clusters, leaves)
}

// changesSomething leaves out what is kept: it stays as it is.
func changesSomething(g *v1.DiffGroup) bool {
	return g.GetOmitted() > 0 || slices.ContainsFunc(g.GetObjects(), func(o *v1.ObjectDiff) bool { return o.GetAction() != fleet.PreviewKeep })
}

// of are the clusters of a group, sorted; 0: those that say nothing.
func (d *moduleDiff) of(group int32) (out []*v1.DiffCluster) {
	for _, c := range d.clusters {
		if c.GetGroup() == group {
			out = append(out, c)
		}
	}
	return out
}

// printDiffs prints them; whole says that none of the files' modules is missing.
func (a *app) printDiffs(o *diffOptions, all []*moduleDiff, whole bool) error {
	if o.format == "table" {
		for i, d := range all {
			if i > 0 {
				a.printf("\n")
			}
			a.printDiff(d)
		}
		if whole && len(all) == 1 && all[0].changes() {
			a.printf("\nPlan   %s\n", all[0].plan.GetDigest())
			from := ""
			if o.from.dir != "" {
				from = " --from " + o.from.dir
			}
			a.footf("Next   towline apply -f %s%s --plan %s\n", strings.Join(o.files, ","), from, all[0].plan.GetDigest())
		}
		return nil
	}
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for _, d := range all {
		list.Content = append(list.Content, resource.Mapping(resource.Member{Name: "module", Value: resource.Text(d.name)}, resource.Member{Name: "plan", Value: resource.Node(d.plan)},
			resource.Member{Name: "groups", Value: resource.Items(d.groups)}, resource.Member{Name: "clusters", Value: resource.Items(d.clusters)}))
	}
	return o.node(a, resource.Mapping(resource.Member{Name: "items", Value: list}))
}

func (a *app) printDiff(d *moduleDiff) {
	each := count(d.plan.GetObjects(), "object") + " in each"
	if n := d.plan.GetVariants(); n > 1 {
		each = count(n, "variant") + ", with up to " + count(d.plan.GetObjects(), "object")
	}
	a.printf("module/%s selects %s of %s; %s\n", d.name, number(d.plan.GetSelected()), count(d.plan.GetTotal(), "cluster"), each)
	if waves := d.plan.GetWaves(); len(waves) > 0 {
		a.printf("%s\n", wavesText(waves))
	}
	if word := d.plan.GetDeleting(); word != "" {
		rid := "removed"
		if word == fleet.DeleteOrphan {
			rid = "let go"
		}
		a.printf("\nThe module is being deleted: an apply makes another one of its name, which a cluster gets when all that this one has there is %s. The diff is with what is there now.\n", rid)
	}
	groups := slices.Clone(d.groups)
	slices.SortFunc(groups, func(x, y *v1.DiffGroup) int {
		return strings.Compare(d.of(x.GetNumber())[0].GetCluster(), d.of(y.GetNumber())[0].GetCluster())
	})
	for _, g := range groups {
		a.printf("\n%s: %s\n", clusterNames(d.of(g.GetNumber())), diffCounts(g))
		if changesSomething(g) {
			a.printWaiting(d.name, d.of(g.GetNumber()))
		}
		for _, o := range g.GetObjects() {
			a.printObjectDiff(o)
		}
		if n := g.GetOmitted(); n > 0 {
			a.printf("  and %s more\n", count(n, "object"))
		}
	}
	a.printUngrouped(d.of(0))
	if d.plan.GetLeavingAsks() {
		a.printf("\nThe rollout waits until a person confirms that clusters lose the module: towline get holds, after the apply.\n")
	}
	if d.plan.GetSameSpec() && d.changes() {
		a.printf("\nThe hub has this spec already: an apply changes nothing, unless it is bound to the plan and that is not what the newest rollout is about.\n")
	}
}

// printWaiting tells where an apply brings nothing at once, and what ends that, together where it is the same.
func (a *app) printWaiting(module string, clusters []*v1.DiffCluster) {
	by := map[string][]*v1.DiffCluster{}
	for _, c := range clusters {
		if c.GetReason() != "" {
			key := c.GetReason() + " " + c.GetMessage()
			by[key] = append(by[key], c)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(by)) {
		a.printf("  %s\n", a.paint(table.Yellow, table.Clean(clusterNames(by[key])+": "+diffWaits(module, by[key]))))
	}
}

// diffWaits is why clusters get nothing of an apply at once, all for the same reason.
func diffWaits(module string, clusters []*v1.DiffCluster) string {
	names := make([]string, len(clusters))
	for i, c := range clusters {
		names[i] = c.GetCluster()
	}
	list := "CLUSTER"
	if len(names) <= maxNamedClusters {
		list = strings.Join(names, ",")
	}
	switch reason, kept := clusters[0].GetReason(), clusters[0].GetMessage(); reason {
	case "External":
		return "not by an apply: another program assigns the module"
	case rollout.ReasonPinned:
		at := "pinned"
		if kept != "" {
			at += " at " + kept
		}
		return at + ", so not before that ends: towline rollout unpin " + module + " --cluster " + list
	case rollout.ReasonCordoned:
		one := names[0]
		if len(names) > 1 {
			one = "CLUSTER"
		}
		return "not before it is uncordoned: towline cluster uncordon " + one
	case rollout.ReasonHeld:
		return "not before its hold ends: towline get holds"
	default:
		return "not at once: " + reason
	}
}

// printUngrouped tells of clusters that have not said what would change there, together where it is the same.
func (a *app) printUngrouped(clusters []*v1.DiffCluster) {
	var said []string
	by := map[string][]*v1.DiffCluster{}
	for _, c := range clusters {
		text := a.paint(ungroupedColor(c), table.Clean(unanswered(c)))
		if by[text] == nil {
			said = append(said, text)
		}
		by[text] = append(by[text], c)
	}
	for i, text := range said {
		if i == 0 {
			a.printf("\n")
		}
		a.printf("%s: %s\n", clusterNames(by[text]), text)
	}
}

func ungroupedColor(c *v1.DiffCluster) table.Color {
	if leaves(c) {
		return table.Red
	}
	return table.Grey
}

// leaves reports that the cluster would lose the module.
func leaves(c *v1.DiffCluster) bool { return c.GetReason() == "Leaves" }

// unanswered says why nothing is known of a cluster.
func unanswered(c *v1.DiffCluster) string {
	switch c.GetReason() {
	case "Leaves":
		text := "loses the module: " + removesText(c.GetRemoves())
		if len(c.GetKeeps()) > 0 {
			text += "; keeps " + kindsText(c.GetKeeps())
		}
		return text
	case "Disconnected":
		return "not asked: " + cmp.Or(c.GetMessage(), "disconnected")
	case "Unsupported":
		return "not asked: " + c.GetMessage()
	case "NoSync":
		return "would get nothing: " + c.GetMessage()
	}
	return "does not say: " + strings.TrimPrefix(c.GetMessage(), "cluster "+c.GetCluster()+": ")
}

// maxNamedClusters is how many clusters of a group are named.
const maxNamedClusters = 5

func clusterNames(list []*v1.DiffCluster) string {
	names := make([]string, len(list))
	for i, c := range list {
		names[i] = c.GetCluster()
	}
	return fleet.Some(names, maxNamedClusters)
}

// diffActions are in the order in which they are counted, with their word and their colour.
var diffActions = []struct {
	action, word string
	color        table.Color
}{
	{fleet.PreviewCreate, "create", table.Green},
	{fleet.PreviewAdopt, "adopt", table.Yellow},
	{fleet.PreviewChange, "change", table.Yellow},
	{fleet.PreviewRecreate, "recreate", table.Red},
	{fleet.PreviewDelete, "delete", table.Red},
	{fleet.PreviewRelease, "release", table.Yellow},
	{fleet.PreviewHandOver, "hand over", table.Yellow},
	{fleet.PreviewKeep, "keep", table.Grey},
	{fleet.PreviewRefuse, "refuse", table.Red},
}

// diffCounts is "1 to create, 2 to change, 12 as they are".
func diffCounts(g *v1.DiffGroup) string {
	var parts []string
	for _, x := range diffActions {
		n := 0
		for _, o := range g.GetObjects() {
			if o.GetAction() == x.action {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d to %s", n, x.word))
		}
	}
	if n := g.GetOmitted(); n > 0 {
		parts = append(parts, number(n)+" more")
	}
	if n := g.GetUnchanged(); n > 0 || len(parts) == 0 {
		parts = append(parts, number(n)+" unchanged")
	}
	return strings.Join(parts, ", ")
}

func (a *app) printObjectDiff(o *v1.ObjectDiff) {
	word, color := table.Clean(strings.ToLower(o.GetAction())), table.Yellow
	for _, x := range diffActions {
		if x.action == o.GetAction() {
			word, color = x.word, x.color
		}
	}
	line := fmt.Sprintf("  %s%s  %s", a.paint(color, word), strings.Repeat(" ", max(0, len("hand over")-len(word))), table.Clean(objectText(o.GetObject())))
	if why := diffWhy(o); why != "" {
		line += ": " + table.Clean(why)
	}
	a.printf("%s\n", line)
	for _, f := range o.GetFields() {
		a.printf("               %s\n", table.Clean(fmt.Sprintf("%s: %s → %s", f.GetField(), valueText(f.GetLive()), valueText(f.GetWant()))))
	}
	if n := o.GetMoreFields(); n > 0 {
		a.printf("               and %s more\n", count(n, "field"))
	}
}

// diffWhy is what is said of an object beside its action.
func diffWhy(o *v1.ObjectDiff) string {
	_, name, cut := strings.Cut(o.GetMessage(), o.GetObject().GetName()+": ")
	why := o.GetMessage()
	if cut {
		why = name
	}
	switch {
	case why != "":
	case o.GetAction() == fleet.PreviewHandOver:
		why = "to module " + o.GetBy()
	case o.GetAction() == fleet.PreviewAdopt && o.GetBy() != "":
		why = "from " + o.GetBy()
	}
	return why
}

func valueText(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}
