package cli

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
)

// getRevisions shows revisions by name (shop-r42), or all of the modules named.
func (a *app) getRevisions(ctx context.Context, c *client.Client, o *getOptions, names []string) error {
	if len(names) == 0 {
		names = []string{o.filter.Module}
	}
	var items []*v1.Revision
	single := false
	err := eachName(names, func(name string) error {
		module, number := splitRevision(name)
		req := &v1.ListRevisionsRequest{Project: a.projectFilter(o), Module: module}
		if project, rest, found := strings.Cut(module, "/"); found {
			req.Project, req.Module = project, rest
		}
		found, err := collect(c.AllRevisions(ctx, req))
		if err != nil {
			return err
		}
		if number == 0 {
			items = append(items, found...)
			if len(found) == 0 && req.Module != "" && req.Project != "" {
				_, err = a.module(ctx, req.Project+"/"+req.Module)
			}
			return err
		}
		single = len(names) == 1
		found, err = pick(found, []string{module + "-r" + strconv.FormatInt(number, 10)}, "revision",
			func(r *v1.Revision) string { return module + "-r" + strconv.FormatInt(r.GetNumber(), 10) })
		items = append(items, found...)
		return err
	})
	if err != nil && len(items) == 0 {
		return err
	}
	if len(items) == 0 && !o.structured() {
		a.notef("No revisions%s.\n", a.inProject(o))
		return nil
	}
	items = matching(items, o.selector)
	if o.structured() {
		var failed error
		items, failed = whole(ctx, c, items)
		err = errors.Join(err, failed)
	}
	return errors.Join(revisionView(o.all).print(a, &o.output, items, single), err)
}

// whole reads revisions of a list again, each with the files of its source.
func whole(ctx context.Context, c *client.Client, listed []*v1.Revision) (out []*v1.Revision, err error) {
	for _, r := range listed {
		resp, err := c.Modules.GetRevision(ctx, &v1.GetRevisionRequest{Project: r.GetMetadata().GetProject(), Module: r.GetModule(), Number: r.GetNumber()})
		if err != nil {
			return out, err
		}
		out = append(out, resp.GetRevision())
	}
	return out, nil
}

// splitRevision reads MODULE-rN; number 0: it is a module.
func splitRevision(s string) (module string, number int64) {
	i := strings.LastIndex(s, "-r")
	if i < 0 {
		return s, 0
	}
	n, err := strconv.ParseInt(s[i+2:], 10, 64)
	if err != nil || n < 1 {
		return s, 0
	}
	return s[:i], n
}

// getRollouts shows rollouts by id (shop/57), or all of the modules named.
func (a *app) getRollouts(ctx context.Context, c *client.Client, o *getOptions, names []string) error {
	v := rolloutView(o.all)
	if len(names) == 0 {
		names = []string{""}
	}
	var items []*v1.Rollout
	single := false
	err := eachName(names, func(name string) error {
		req := &v1.ListRolloutsRequest{Project: a.projectFilter(o), Module: o.filter.Module, Active: o.active}
		if name != "" {
			id, err := a.rolloutRef(name)
			if err != nil {
				return err
			}
			if id.Number > 0 {
				single = len(names) == 1
				resp, err := c.Rollouts.GetRollout(ctx, &v1.GetRolloutRequest{Project: id.Module.Project, Module: id.Module.Name, Number: id.Number})
				if err == nil {
					items = append(items, resp.GetRollout())
				}
				return err
			}
			req.Project, req.Module = id.Module.Project, id.Module.Name
		}
		found, err := collect(c.AllRollouts(ctx, req))
		items = append(items, found...)
		if err == nil && len(found) == 0 && req.Module != "" && req.Project != "" {
			_, err = a.module(ctx, req.Project+"/"+req.Module)
		}
		return err
	})
	if len(items) == 0 {
		if err == nil && !o.structured() {
			a.notef("No rollouts%s.\n", a.inProject(o))
			return nil
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(v.print(a, &o.output, matching(items, o.selector), single), err)
}

// objectFilter is what the flags of get select.
func (a *app) objectFilter(o *getOptions, names []string) (*v1.ObjectFilter, error) {
	f := proto.Clone(&o.filter).(*v1.ObjectFilter)
	f.Project, f.ClusterSelector = a.projectFilter(o), o.selector
	if project, module, found := strings.Cut(f.Module, "/"); found {
		f.Project, f.Module = project, module
	}
	if o.revision != "" {
		n, err := strconv.ParseInt(strings.TrimPrefix(o.revision, "r"), 10, 64)
		if err != nil || n < 1 {
			return nil, usagef("--revision %s: write r42 or 42", o.revision)
		}
		f.Revision = n
	}
	if len(names) > 1 {
		return nil, usagef("objects are selected by flags: --module, --cluster, --kind, -n, --name, --health, --drift, --revision, --filter")
	}
	if len(names) == 1 {
		f.Name = names[0]
	}
	return f, nil
}

func (a *app) getTrackers(ctx context.Context, c *client.Client, o *getOptions, names []string) error {
	if len(names) > 1 {
		return usagef("get trackers takes one module, or --module and --cluster")
	}
	if len(names) == 1 {
		ref, err := a.moduleRef(names[0])
		if err != nil {
			return err
		}
		o.filter.Module = ref.String()
	}
	f, err := a.objectFilter(o, nil)
	if err != nil {
		return err
	}
	items, away, err := trackersBy(ctx, c, f)
	if err != nil {
		return err
	}
	if len(items) == 0 {
		if err := a.exist(ctx, o, nil); err != nil {
			return err
		}
	}
	err = printOrSay(a, o, trackerView, items, nil, a.inProject(o)+awayUnknown(away))
	if err == nil && away > 0 && len(items) > 0 && !o.structured() && o.format != "name" {
		a.footf("%s%s.\n", count(len(items), "tracker"), awayUnknown(away))
	}
	return err
}

// trackersBy reads every page, and of how many clusters nobody knows now.
func trackersBy(ctx context.Context, c *client.Client, f *v1.ObjectFilter) (out []*v1.Tracker, away int32, err error) {
	last, err := lastPage(func(token string) (*v1.ListTrackersResponse, error) {
		resp, err := c.Trackers.ListTrackers(ctx, &v1.ListTrackersRequest{Filter: f, PageToken: token})
		out = append(out, resp.GetTrackers()...)
		return resp, err
	})
	return out, last.GetAway(), err
}

// lastPage asks for every page, and returns the last one, which holds what is told of all.
func lastPage[R interface{ GetNextPageToken() string }](ask func(token string) (R, error)) (R, error) {
	for token := ""; ; {
		resp, err := ask(token)
		if token = resp.GetNextPageToken(); err != nil || token == "" {
			return resp, err
		}
	}
}

func (a *app) getObjects(ctx context.Context, c *client.Client, o *getOptions, names []string) error {
	f, err := a.objectFilter(o, names)
	if err != nil {
		return err
	}
	v := objectView(o.filter.Drift != "")
	items, sum, err := a.objects(ctx, c, f)
	if err != nil {
		return err
	}
	if len(items) == 0 {
		if err := a.exist(ctx, o, names); err != nil {
			return err
		}
	}
	if o.live && len(items) > 0 {
		return a.printLive(ctx, c, o, items)
	}
	if len(items) == 0 && !o.structured() && o.format != "name" {
		if o.filter.Drift == "*" {
			a.notef("No objects%s drift now%s.\n", a.inProject(o), driftFooter(sum))
			return nil
		}
		a.notef("No objects%s%s.\n", a.inProject(o), awayUnknown(sum.GetAway()))
		return nil
	}
	if err := v.print(a, &o.output, items, false); err != nil || o.forPrograms() {
		return err
	}
	a.footf("%s\n", objectsFooter(items, f, sum))
	return nil
}

// objects reads every page. The last one holds what is told of all.
func (a *app) objects(ctx context.Context, c *client.Client, f *v1.ObjectFilter) (out []*v1.Object, last *v1.ListObjectsResponse, err error) {
	last, err = lastPage(func(token string) (*v1.ListObjectsResponse, error) {
		resp, err := c.Trackers.ListObjects(ctx, &v1.ListObjectsRequest{Filter: f, PageSize: 1000, PageToken: token})
		out = append(out, resp.GetObjects()...)
		return resp, err
	})
	return out, last, err
}

// awayUnknown says of how many clusters it is not known whether anything matches there now.
func awayUnknown(n int32) string {
	if n == 0 {
		return ""
	}
	return "; " + count(n, "cluster") + " away: unknown"
}

func objectsFooter(items []*v1.Object, f *v1.ObjectFilter, sum *v1.ListObjectsResponse) string {
	drift := f.GetDrift() == "*"
	clusters := map[string]bool{}
	for _, item := range items {
		clusters[item.GetCluster()] = true
	}
	out := count(len(items), "object") + " in " + count(len(clusters), "cluster")
	switch {
	case drift && len(items) == 1:
		out += " drifts now" + driftFooter(sum)
	case drift:
		out += " drift now" + driftFooter(sum)
	case f.GetDrift() != "" || f.GetHealth() != "" || f.GetReason() != "" || f.GetExpression() != "":
		out += awayUnknown(sum.GetAway())
	case sum.GetAway() > 0:
		out += "; " + count(sum.GetAway(), "cluster") + " away: as last heard"
	}
	return out + "."
}

// driftFooter says what the rows that drift now do not: what was corrected, and what is not known.
func driftFooter(sum *v1.ListObjectsResponse) string {
	out := ""
	if n := sum.GetCorrectionsDay(); n > 0 {
		out = "; " + count(int(n), "correction") + " in the last 24 h"
	}
	if sum.GetAway() > 0 {
		out += ". " + count(sum.GetAway(), "cluster") + " away: unknown"
	}
	return out
}
