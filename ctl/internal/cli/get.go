package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

// getOptions are the flags of get.
type getOptions struct {
	output
	selector string
	watch    bool
	all      bool // every project
	filter   v1.ObjectFilter
	active   bool
	revision string
	live     bool
	// Of the audit.
	by      string
	since   time.Duration
	refused bool
}

func (a *app) getCommand() *cobra.Command {
	o := &getOptions{}
	cmd := &cobra.Command{
		Use:   "get KIND [NAME…] | KIND/NAME…",
		Short: "Show modules, clusters, rollouts, objects, …",
		Example: "  towline get modules\n  towline get clusters -l env=prod -o wide\n  towline get module/shop -o yaml\n" +
			"  towline get objects --module shop --drift\n  towline get objects --module shop --cluster c1 --name web --live\n" +
			"  towline get objects --filter 'kind == \"Deployment\" && reason.contains(\"Pull\")' -A\n  towline get rollouts shop",
		ValidArgsFunction: a.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(); err != nil {
				return err
			}
			found, err := targets(args)
			if err != nil {
				return err
			}
			if err := o.checkFilters(cmd, found); err != nil {
				return err
			}
			if o.watch && len(found) > 1 {
				return usagef("-w follows one kind at a time")
			}
			var errs []error
			for i, t := range found {
				if i > 0 && !o.structured() && o.format != "name" {
					a.printf("\n")
				}
				errs = append(errs, a.get(cmd.Context(), o, t))
			}
			return errors.Join(errs...)
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.selector, "selector", "l", "", "labels, as `KEY=VALUE,…`; of the clusters for trackers and objects")
	f.BoolVarP(&o.watch, "watch", "w", false, "go on and print every change ("+strings.Join(plurals(kindsWith(func(k *kind) bool { return k.watch != nil })), ", ")+")")
	f.BoolVarP(&o.all, "all-projects", "A", false, "every project")
	f.StringVar(&o.filter.Module, "module", "", selects("module")+": of this module")
	f.StringVar(&o.filter.Cluster, "cluster", "", selects("cluster")+": in this cluster")
	f.StringVar(&o.filter.Kind, "kind", "", selects("kind")+": of this kind")
	f.StringVarP(&o.filter.Namespace, "namespace", "n", "", selects("namespace")+": in this namespace")
	f.StringVar(&o.filter.Name, "name", "", selects("name")+": of this name")
	f.StringVar(&o.filter.Health, "health", "", selects("health")+": in this health state")
	f.StringVar(&o.filter.Reason, "reason", "", selects("reason")+": for this reason, such as NoStatus or NoRule: healthy for want of anything to judge by")
	f.StringVar(&o.filter.Drift, "drift", "", selects("drift")+": that drift, or in this drift `STATE`")
	f.Lookup("drift").NoOptDefVal = "*"
	f.StringVar(&o.revision, "revision", "", selects("revision")+": listed by this revision, such as r42")
	f.StringVar(&o.filter.Expression, "filter", "", selects("filter")+": for which this `CEL` is true, such as 'health != \"Healthy\" && now - since > duration(\"10m\")'; its fields are those of -o json, and ns is the namespace")
	f.BoolVar(&o.live, "live", false, "objects: as they are in their clusters now; the agents are asked")
	f.BoolVar(&o.active, "active", false, selects("active")+": that have not ended")
	f.StringVar(&o.by, "by", "", selects("by")+": what this user, or \"cluster NAME\" or \"catalog NAME\", did")
	f.DurationVar(&o.since, "since", 24*time.Hour, selects("since")+": of the last so long")
	f.BoolVar(&o.refused, "refused", false, selects("refused")+": only what was refused or failed")
	must(cmd.RegisterFlagCompletionFunc("module", a.completeKind("module")))
	must(cmd.RegisterFlagCompletionFunc("cluster", a.completeKind("cluster")))
	must(cmd.RegisterFlagCompletionFunc("health", cobra.FixedCompletions(healthStates, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("drift", cobra.FixedCompletions(driftStates, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// projectFilter is the project to list; empty: all.
func (a *app) projectFilter(o *getOptions) string {
	if o.all {
		return ""
	}
	return a.project
}

func (a *app) get(ctx context.Context, o *getOptions, t target) error {
	if _, err := labels.Parse(o.selector); err != nil {
		return usagef("-l %s: %w", o.selector, err)
	}
	show := t.kind.get
	if o.watch {
		if show = t.kind.watch; show == nil {
			with := kindsWith(func(k *kind) bool { return k.watch != nil })
			return usagef("get %s has no -w; %s have, and `towline rollout status` follows a rollout", t.kind.plural, enumerate(plurals(with), "and"))
		}
	}
	if o.live && (!t.kind.live || o.watch) {
		return usagef("--live is for get %s, without -w", enumerate(plurals(kindsWith(func(k *kind) bool { return k.live })), "and"))
	}
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	return show(a, ctx, c, o, t.names)
}

// printOrSay prints items, or says to people that there are none.
func printOrSay[M proto.Message](a *app, o *getOptions, v view[M], items []M, names []string, where string) error {
	if len(items) == 0 && len(names) == 0 && !o.structured() {
		a.notef("No %ss%s.\n", v.kind, where)
		return nil
	}
	if len(items) == 0 && len(names) > 0 {
		return nil // the errors say it
	}
	return v.print(a, &o.output, items, len(names) == 1)
}

// named gets each name and goes on after those that are not there.
func named[M any](names []string, get func(name string) (M, error)) ([]M, error) {
	var out []M
	err := eachName(names, func(name string) error {
		item, err := get(name)
		if err == nil {
			out = append(out, item)
		}
		return err
	})
	return out, err
}

// pick keeps the items with the given names, in the order of the names, and misses those that are not there.
func pick[M any](items []M, names []string, kind string, name func(M) string) ([]M, error) {
	if len(names) == 0 {
		return items, nil
	}
	return named(names, func(want string) (M, error) {
		for _, item := range items {
			if name(item) == want {
				return item, nil
			}
		}
		var none M
		return none, fleet.Errorf(fleet.ErrNotFound, "%s %s: there is none of that name", kind, want)
	})
}

// matching keeps what the labels select.
func matching[M interface{ GetMetadata() *v1.Metadata }](items []M, selector string) []M {
	if selector == "" {
		return items
	}
	parsed, err := labels.Parse(selector)
	if err != nil {
		return nil // get has checked it
	}
	var out []M
	for _, item := range items {
		if parsed.Matches(labels.Set(item.GetMetadata().GetLabels())) {
			out = append(out, item)
		}
	}
	return out
}

func metaName[M interface{ GetMetadata() *v1.Metadata }](m M) string {
	return m.GetMetadata().GetName()
}

func (a *app) inProject(o *getOptions) string {
	if o.all {
		return ""
	}
	return " in project " + a.project
}

// listing is how get shows a kind of which the hub has a list.
type listing[M proto.Message] struct {
	view func(a *app, ctx context.Context, c *client.Client, o *getOptions) view[M]
	list func(a *app, ctx context.Context, c *client.Client, o *getOptions) ([]M, error)
	// one reads one by its name; nil: it is picked from the list.
	one func(a *app, ctx context.Context, name string) (M, error)
	// where is said of an empty list; nil: nothing.
	where func(a *app, o *getOptions) string
}

func (l listing[M]) get(a *app, ctx context.Context, c *client.Client, o *getOptions, names []string) error {
	v := l.view(a, ctx, c, o)
	if len(names) > 0 && l.one != nil {
		items, err := named(names, func(name string) (M, error) { return l.one(a, ctx, name) })
		return errors.Join(printOrSay(a, o, v, items, names, ""), err)
	}
	all, err := l.list(a, ctx, c, o)
	if err != nil {
		return err
	}
	items, err := pick(all, names, v.kind, v.name)
	where := ""
	if l.where != nil {
		where = l.where(a, o)
	}
	return errors.Join(printOrSay(a, o, v, items, names, where), err)
}

// always is a view that is the same with every flag.
func always[M proto.Message](v view[M]) func(*app, context.Context, *client.Client, *getOptions) view[M] {
	return func(*app, context.Context, *client.Client, *getOptions) view[M] { return v }
}

var moduleListing = listing[*v1.Module]{
	view: func(_ *app, _ context.Context, _ *client.Client, o *getOptions) view[*v1.Module] {
		return moduleView(o.all)
	},
	list: func(a *app, ctx context.Context, c *client.Client, o *getOptions) ([]*v1.Module, error) {
		return collect(c.AllModules(ctx, &v1.ListModulesRequest{Project: a.projectFilter(o), LabelSelector: o.selector}))
	},
	one: (*app).module, where: (*app).inProject,
}

// module reads one module.
func (a *app) module(ctx context.Context, name string) (*v1.Module, error) {
	ref, err := a.moduleRef(name)
	if err != nil {
		return nil, err
	}
	return a.moduleOf(ctx, ref)
}

func (a *app) moduleOf(ctx context.Context, ref fleet.ModuleRef) (*v1.Module, error) {
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := c.Modules.GetModule(ctx, &v1.GetModuleRequest{Project: ref.Project, Name: ref.Name})
	return resp.GetModule(), err
}

var clusterListing = listing[*v1.Cluster]{
	view: func(a *app, ctx context.Context, c *client.Client, o *getOptions) view[*v1.Cluster] {
		return clusterView(a.hubVersion(ctx, c, o))
	},
	list: func(_ *app, ctx context.Context, c *client.Client, o *getOptions) ([]*v1.Cluster, error) {
		return collect(c.AllClusters(ctx, &v1.ListClustersRequest{LabelSelector: o.selector}))
	},
	one: (*app).cluster,
}

// hubVersion is asked to mark agents that are older; without an answer none is marked.
func (a *app) hubVersion(ctx context.Context, c *client.Client, o *getOptions) string {
	if o.forPrograms() {
		return ""
	}
	resp, err := c.Identity.GetServerInfo(ctx, &v1.GetServerInfoRequest{})
	if err != nil {
		return ""
	}
	return resp.GetVersion()
}

// cluster reads one cluster.
func (a *app) cluster(ctx context.Context, name string) (*v1.Cluster, error) {
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := c.Clusters.GetCluster(ctx, &v1.GetClusterRequest{Name: name})
	return resp.GetCluster(), err
}

var projectListing = listing[*v1.Project]{
	view: always(projectView),
	list: func(_ *app, ctx context.Context, c *client.Client, o *getOptions) ([]*v1.Project, error) {
		all, err := collect(c.AllProjects(ctx, &v1.ListProjectsRequest{}))
		return matching(all, o.selector), err
	},
}

var tokenListing = listing[*v1.Token]{
	view: always(tokenView),
	list: func(_ *app, ctx context.Context, c *client.Client, _ *getOptions) ([]*v1.Token, error) {
		return collect(c.AllTokens(ctx, &v1.ListTokensRequest{}))
	},
}

var userListing = listing[*v1.User]{
	view: always(userView),
	list: func(_ *app, ctx context.Context, c *client.Client, _ *getOptions) ([]*v1.User, error) {
		return collect(c.AllUsers(ctx, &v1.ListUsersRequest{}))
	},
}

var certificateListing = listing[*v1.Certificate]{
	view: always(certificateView),
	list: func(_ *app, ctx context.Context, c *client.Client, _ *getOptions) ([]*v1.Certificate, error) {
		return collect(c.AllCertificates(ctx, &v1.ListCertificatesRequest{}))
	},
}

var holdListing = listing[*v1.Hold]{
	view: always(holdView),
	list: func(a *app, ctx context.Context, c *client.Client, o *getOptions) ([]*v1.Hold, error) {
		all, err := collect(c.AllHolds(ctx, &v1.ListHoldsRequest{Project: a.projectFilter(o), Module: o.filter.Module, Cluster: o.filter.Cluster}))
		if err == nil && len(all) == 0 {
			err = a.exist(ctx, o, nil)
		}
		return all, err
	},
	where: (*app).inProject,
}
