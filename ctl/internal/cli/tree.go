package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

func (a *app) treeCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "tree module/X | cluster/Y", Short: "Draw a module's clusters, or a cluster's modules, with their objects",
		Args: atLeast(1, "a module or a cluster"), ValidArgsFunction: a.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, name, err := one(args)
			if err != nil {
				return err
			}
			if k.tree == nil {
				return usagef("tree draws %s", enumerate(singulars(kindsWith(func(k *kind) bool { return k.tree != nil })), "or"))
			}
			return a.tree(cmd.Context(), k, name, all)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every object, not only where something is not fine")
	return cmd
}

// branch is a line of a tree with the lines below it.
type branch struct {
	text string
	kids []*branch
}

func (a *app) tree(ctx context.Context, k *kind, name string, all bool) error {
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	root, err := k.tree(a, ctx, name)
	if err != nil {
		return err
	}
	if err := a.grow(ctx, c, &root, all); err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(root.text + "\n")
	writeBranches(&b, root.kids, "")
	a.printf("%s", b.String())
	return nil
}

// trunk is the root of a tree: which trackers are below it, and what is said of each.
type trunk struct {
	branch
	filter  *v1.ObjectFilter
	subject func(*v1.Tracker) string
}

func (a *app) moduleTrunk(ctx context.Context, name string) (trunk, error) {
	m, err := a.module(ctx, name)
	if err != nil {
		return trunk{}, err
	}
	project, module := m.GetMetadata().GetProject(), m.GetMetadata().GetName()
	out := trunk{filter: &v1.ObjectFilter{Project: project, Module: module}, subject: func(t *v1.Tracker) string { return "cluster/" + t.GetCluster() }}
	out.text = fmt.Sprintf("module/%s  %s  %s", moduleName(project, module), moduleRevision(m.GetStatus()), a.cell(a.moduleRollout(m)))
	return out, nil
}

func (a *app) clusterTrunk(ctx context.Context, name string) (trunk, error) {
	c, err := a.cluster(ctx, name)
	if err != nil {
		return trunk{}, err
	}
	out := trunk{filter: &v1.ObjectFilter{Cluster: name}, subject: func(t *v1.Tracker) string { return "module/" + moduleName(t.GetProject(), t.GetModule()) }}
	out.text = fmt.Sprintf("cluster/%s  %s  last seen %s", name, a.cell(state(c.GetStatus().GetState())), a.lastSeen(c.GetStatus()))
	return out, nil
}

// grow adds a branch for each tracker and below it the objects; where all is well they are counted.
func (a *app) grow(ctx context.Context, c *client.Client, root *trunk, all bool) error {
	trackers, err := collect(c.AllTrackers(ctx, &v1.ListTrackersRequest{Filter: root.filter}))
	if err != nil {
		return err
	}
	objects, _, err := a.objects(ctx, c, root.filter)
	if err != nil {
		return err
	}
	type key struct{ cluster, project, module string }
	below := map[key][]*v1.Object{}
	for _, o := range objects {
		k := key{o.GetCluster(), o.GetProject(), o.GetModule()}
		below[k] = append(below[k], o)
	}
	for _, t := range trackers {
		health, healthy := a.cell(state(t.GetHealth())), fmt.Sprintf("%d of %s healthy", t.GetHealthy(), count(t.GetObjects(), "object"))
		if t.GetLastHeard() != nil {
			health, healthy = a.cell(was(t.GetHealth(), t.GetWasHealth())), count(t.GetObjects(), "object")
		}
		line := fmt.Sprintf("%s  %s  %s  %s", root.subject(t), revision(t.GetRevision()), health, healthy)
		if m := a.trackerSays(t); m != "" && !t.GetReady() {
			line += "  " + table.Clean(m)
		}
		if len(t.GetRevisions()) > 0 {
			line += "  (" + partsText(t) + ")"
		}
		root.kids = append(root.kids, &branch{line, a.objectBranches(below[key{t.GetCluster(), t.GetProject(), t.GetModule()}], all)})
	}
	return nil
}

func (a *app) objectBranches(objects []*v1.Object, all bool) []*branch {
	var out []*branch
	fine, unseen := 0, 0
	for _, o := range objects {
		at := fleet.ObjectState{Sync: fleet.SyncState(o.GetSync()), Health: fleet.Health(o.GetHealth()), Drift: fleet.Drift(o.GetDrift())}
		if at.Fine() && !o.GetExtra() && !all {
			fine++
			continue
		}
		if o.GetLastHeard() != nil && !all {
			unseen++
			continue
		}
		line := objectText(o.GetObject()) + "  " + a.cell(objectHealth(o))
		if d := o.GetDrift(); d != "" && d != string(fleet.DriftInSync) {
			line += "  " + a.cell(state(d))
		}
		if o.GetExtra() {
			line += "  of an older revision"
			if o.GetRevision() != 0 {
				line = strings.TrimSuffix(line, "an older revision") + revision(o.GetRevision())
			}
		}
		if o.GetWatched() {
			line += "  watched only"
		}
		if m := a.objectSays(o); m != "" {
			line += "  " + table.Clean(m)
		}
		out = append(out, &branch{text: line})
	}
	if unseen > 0 {
		out = append(out, &branch{text: count(unseen, "object") + " not seen"})
	}
	if fine > 0 && len(out) > 0 {
		out = append(out, &branch{text: count(fine, "more object") + " fine"})
	}
	return out
}

func objectHealth(o *v1.Object) table.Cell {
	if o.GetLastHeard() != nil {
		return was(o.GetHealth(), o.GetWasHealth())
	}
	return state(o.GetHealth())
}

func (a *app) cell(c table.Cell) string { return a.paint(c.Color, table.Clean(c.Text)) }

func writeBranches(b *strings.Builder, kids []*branch, indent string) {
	for i, kid := range kids {
		mark, below := "├ ", "│ "
		if i == len(kids)-1 {
			mark, below = "└ ", "  "
		}
		b.WriteString(indent + mark + kid.text + "\n")
		writeBranches(b, kid.kids, indent+below)
	}
}
