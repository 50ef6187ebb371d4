package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
)

type eventsOptions struct {
	output
	clusters []string
	selector string
	limit    int32
	all      bool
}

func (a *app) eventsCommand() *cobra.Command {
	o := &eventsOptions{}
	cmd := &cobra.Command{
		Use: "events module/X | KIND/NAMESPACE/NAME", Short: "Show the Kubernetes Events about a module's objects, in all of its clusters",
		Long: "Asks the agents for the Events about what a module has in their clusters, or about one object that a module has, and about the pods that\n" +
			"belong to it. The newest are last. Clusters that are away, or do not answer, are named, and make the command exit with 1.",
		Example: "  towline events module/shop\n  towline events Deployment/shop/web --cluster prod-eu-01\n  towline events module/shop -l env=prod --limit 20",
		Args:    atLeast(1, "a module or an object"), ValidArgsFunction: a.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error { return a.events(cmd.Context(), o, args) },
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&o.clusters, "cluster", nil, "only in this cluster; may be given again")
	f.StringVarP(&o.selector, "selector", "l", "", "only in clusters with these labels, as `KEY=VALUE,…`")
	f.Int32Var(&o.limit, "limit", 100, "how many of a cluster at most, the newest")
	f.BoolVarP(&o.all, "all-projects", "A", false, "of an object: whichever project its module is of")
	must(cmd.RegisterFlagCompletionFunc("cluster", a.completeKind("cluster")))
	return cmd
}

// asksOf reads module/X, or an object, as a filter.
func (a *app) asksOf(args []string, all bool) (*v1.ObjectFilter, error) {
	if o, is, err := heldObject(args); is {
		f := &v1.ObjectFilter{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(), Project: a.project}
		if all {
			f.Project = ""
		}
		return f, err
	}
	k, name, err := one(args)
	switch {
	case err != nil:
		return nil, err
	case k.events == nil:
		return nil, usagef("name module/X or KIND/NAMESPACE/NAME")
	}
	return k.events(a, name)
}

func (a *app) objectsOfModule(name string) (*v1.ObjectFilter, error) {
	ref, err := a.moduleRef(name)
	return &v1.ObjectFilter{Project: ref.Project, Module: ref.Name}, err
}

func (a *app) events(ctx context.Context, o *eventsOptions, args []string) error {
	if err := o.parse(); err != nil {
		return err
	}
	if o.format == "name" {
		return usagef("events have no names; leave -o out, or use -o json or -o yaml")
	}
	f, err := a.asksOf(args, o.all)
	if err != nil {
		return err
	}
	if f.ClusterSelector = o.selector; o.limit < 1 {
		return usagef("--limit %d: at least 1", o.limit)
	}
	if len(o.clusters) == 0 {
		o.clusters = []string{""}
	}
	var all []*v1.ListEventsResponse
	for _, c := range o.clusters {
		f.Cluster = c
		found, err := a.eventsIn(ctx, f, o.limit)
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, func(x, y *v1.ListEventsResponse) int { return strings.Compare(x.GetCluster(), y.GetCluster()) })
	if len(all) == 0 {
		return a.nothingToAsk(ctx, f, args)
	}
	if err := eventsView.print(a, &o.output, all, false); err != nil {
		return err
	}
	return a.silentClusters(all)
}

func (a *app) eventsIn(ctx context.Context, f *v1.ObjectFilter, limit int32) (out []*v1.ListEventsResponse, err error) {
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	st, err := c.Trackers.ListEvents(ctx, &v1.ListEventsRequest{Filter: f, Limit: limit})
	for err == nil {
		var r *v1.ListEventsResponse
		if r, err = st.Recv(); err == nil {
			out = append(out, r)
		}
	}
	if errors.Is(err, io.EOF) {
		return out, nil
	}
	return out, err
}

// nothingToAsk says what of that which was named does not exist.
func (a *app) nothingToAsk(ctx context.Context, f *v1.ObjectFilter, args []string) error {
	if f.GetCluster() != "" {
		if _, err := a.cluster(ctx, f.GetCluster()); err != nil {
			return err
		}
	}
	if f.GetModule() != "" {
		if _, err := a.module(ctx, f.GetProject()+"/"+f.GetModule()); err != nil {
			return err
		}
		a.notef("No cluster that is selected has module %s.\n", f.GetModule())
		return nil
	}
	return fmt.Errorf("%s: no module has it in the clusters that are selected", strings.Join(args, " "))
}

// silentClusters names those that said nothing.
func (a *app) silentClusters(all []*v1.ListEventsResponse) error {
	silent, omitted := 0, 0
	for _, r := range all {
		if omitted += int(r.GetOmitted()); r.GetReason() != "" {
			silent++
			said := "cluster " + r.GetCluster() + ": " // the hub's answer begins with it, too, where it asked in vain
			a.warnf("%s%s", said, table.Clean(strings.TrimPrefix(r.GetMessage(), said)))
		}
	}
	if omitted > 0 {
		a.footf("%s are not shown; --limit shows more.\n", count(omitted, "older event"))
	}
	if silent > 0 {
		return &exitError{code: exitFailed}
	}
	return nil
}

var eventsView = view[*v1.ListEventsResponse]{
	kind: "event", name: (*v1.ListEventsResponse).GetCluster,
	table: func(a *app, items []*v1.ListEventsResponse) *table.Table {
		t := &table.Table{Columns: columns(left("CLUSTER", "LAST"), right("SEEN"), left("TYPE", "REASON", "OBJECT", "BY"), prose("MESSAGE"))}
		type row struct {
			cluster string
			event   *v1.ObjectEvent
		}
		var rows []row
		for _, r := range items {
			for _, e := range r.GetEvents() {
				rows = append(rows, row{r.GetCluster(), e})
			}
		}
		slices.SortStableFunc(rows, func(x, y row) int { return x.event.GetLast().AsTime().Compare(y.event.GetLast().AsTime()) })
		for _, r := range rows {
			e := r.event
			kind := text(e.GetType())
			if e.GetType() == "Warning" {
				kind = colored(table.Yellow, e.GetType())
			}
			t.Add(text(r.cluster), text(a.since(e.GetLast())), num(int(e.GetCount())), kind, text(e.GetReason()), text(objectText(e.GetObject())), text(orDash(e.GetBy())), text(oneLine(e.GetMessage())))
		}
		return t
	},
}

// oneLine puts the lines of a text behind each other.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
