package cli

import (
	"context"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
)

// watcher prints a list when it is complete and then every change of it.
type watcher[M proto.Message] struct {
	a    *app
	o    *getOptions
	view view[M]
	keep func(M) bool
	// absent says what of that which was named does not exist; it is asked when the list is complete for the first time, so
	// that nobody waits for a name that is misspelt.
	absent func(found []M) error
	first  []M
	synced bool
}

func (w *watcher[M]) take(c client.Change[M]) error {
	switch {
	case c.Type == client.Synced:
		if !w.synced {
			if err := w.absent(w.first); err != nil {
				return err
			}
		}
		w.synced = true
		if w.o.forPrograms() {
			for _, item := range w.first {
				if err := w.change(client.Added, item); err != nil {
					return err
				}
			}
			return nil
		}
		return w.view.table(w.a, w.first).Write(w.a.Out, w.o.style(w.a))
	case !w.keep(c.Item):
		return nil
	case !w.synced:
		w.first = append(w.first, c.Item)
		return nil
	}
	return w.change(c.Type, c.Item)
}

func (w *watcher[M]) change(kind string, item M) error {
	n := resource.Node(item)
	switch {
	case w.o.format == "name":
		w.a.printf("%s/%s\n", w.view.kind, w.view.name(item))
		return nil
	case w.o.path != nil:
		return w.o.node(w.a, n)
	case w.o.format == "yaml":
		w.a.printf("---\n")
		return resource.WriteYAML(w.a.Out, n)
	case w.o.format == "json":
		return resource.WriteJSONLine(w.a.Out, resource.Event(kind, n))
	}
	// The widths are those of the list, so that rows stay under their headers.
	t := w.view.table(w.a, w.first)
	rows := w.view.table(w.a, []M{item}).Rows
	if kind == client.Deleted {
		rows[0][t.Last(w.o.style(w.a))].Text += " (deleted)"
	}
	return t.Append(w.a.Out, w.o.style(w.a), rows[0])
}

func (a *app) watchModules(ctx context.Context, c *client.Client, o *getOptions, names []string) error {
	req := &v1.WatchModulesRequest{Project: a.projectFilter(o), LabelSelector: o.selector}
	wanted := map[fleet.ModuleRef]bool{}
	for i, name := range names {
		ref, err := a.moduleRef(name)
		if err != nil {
			return err
		}
		wanted[ref] = true
		switch {
		case i == 0:
			req.Project, req.Name = ref.Project, ref.Name
		case req.Project != ref.Project: // a watch is of one project, or of all
			req.Project = ""
		}
	}
	if len(wanted) > 1 {
		req.Name = ""
	}
	w := &watcher[*v1.Module]{a: a, o: o, view: moduleListing.view(a, ctx, c, o),
		keep: func(m *v1.Module) bool { return len(wanted) == 0 || wanted[refOfModule(m)] },
		absent: func([]*v1.Module) error {
			return eachName(names, func(name string) error { _, err := a.module(ctx, name); return err })
		}}
	return c.WatchModules(ctx, req, w.take)
}

func (a *app) watchClusters(ctx context.Context, c *client.Client, o *getOptions, names []string) error {
	req := &v1.WatchClustersRequest{LabelSelector: o.selector}
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	if len(names) == 1 {
		req.Name = names[0]
	}
	w := &watcher[*v1.Cluster]{a: a, o: o, view: clusterListing.view(a, ctx, c, o),
		keep: func(m *v1.Cluster) bool { return len(wanted) == 0 || wanted[m.GetMetadata().GetName()] },
		absent: func([]*v1.Cluster) error {
			return eachName(names, func(name string) error { _, err := a.cluster(ctx, name); return err })
		}}
	return c.WatchClusters(ctx, req, w.take)
}

func (a *app) watchObjects(ctx context.Context, c *client.Client, o *getOptions, names []string) error {
	f, err := a.objectFilter(o, names)
	if err != nil {
		return err
	}
	w := &watcher[*v1.Object]{a: a, o: o, view: objectView(o.filter.Drift != ""), keep: func(*v1.Object) bool { return true },
		absent: func(found []*v1.Object) error {
			if len(found) > 0 {
				return nil
			}
			return a.exist(ctx, o, names)
		}}
	return c.WatchObjects(ctx, &v1.WatchObjectsRequest{Filter: f}, w.take)
}
