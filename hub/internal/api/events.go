package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/wire"
)

const (
	// eventsTimeout is how long an agent may take to find Events.
	eventsTimeout = 20 * time.Second
	// defaultEvents and maxEvents are how many of a cluster are told.
	defaultEvents = 100
	maxEvents     = 1000
	// maxAskedObjects is about how many single objects one cluster is asked.
	maxAskedObjects = 500
)

// ListEvents asks the agents of the clusters that have the objects.
func (a *API) ListEvents(req *towlinev1.ListEventsRequest, st grpc.ServerStreamingServer[towlinev1.ListEventsResponse]) error {
	f := req.GetFilter()
	switch {
	case f.GetModule() == "" && (f.GetKind() == "" || f.GetName() == ""):
		return fleet.Invalid("filter", "name a module, or objects by kind and name")
	case f.GetHealth() != "" || f.GetDrift() != "" || f.GetReason() != "" || f.GetRevision() != 0 || f.GetExpression() != "":
		return fleet.Invalid("filter", "events are not selected by health, drift, reason, revision or an expression")
	}
	ctx := st.Context()
	asked, err := a.eventTargets(ctx, f, req.GetMinRevision())
	if err != nil {
		return err
	}
	limit := min(cmp.Or(max(int(req.GetLimit()), 0), defaultEvents), maxEvents)
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(askedAtOnce)
	for _, t := range asked {
		g.Go(func() error {
			var out *towlinev1.ListEventsResponse
			if err := guard.Run(func() error {
				out = a.eventsIn(ctx, t, limit)
				return nil
			}); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			return st.Send(out)
		})
	}
	return g.Wait()
}

// eventTarget is what a cluster is asked for.
type eventTarget struct {
	cluster fleet.ClusterName
	modules []*agentv1.Query // one for each
	reason  string           // why it is not asked
	message string
}

// eventTargets finds the clusters that have what the filter takes, sorted. Of a whole module all is asked for; else the objects that
// match.
func (a *API) eventTargets(ctx context.Context, f *towlinev1.ObjectFilter, minRevision int64) ([]*eventTarget, error) {
	var all []record.Tracked
	var err error
	if all, _, err = a.tracked(ctx, f, minRevision); err != nil {
		return nil, err
	}
	asked := map[fleet.ClusterName]*eventTarget{}
	var lost error // of a module that may have what is asked for
	for _, t := range all {
		q := &agentv1.Query{Type: wire.QueryEvents, Module: t.Module.String()}
		if byIdentity(f) {
			rows, err := a.objectsOf(ctx, f, nil, []record.Tracked{t})
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(rows, isUnread) {
				lost = errUnread(rows[0])
				continue
			}
			if len(rows) == 0 {
				continue
			}
			if len(rows) > maxAskedObjects {
				return nil, fleet.Invalidf("filter", "takes %d objects of module %s in cluster %s; at most %d, or the whole module", len(rows), t.Module.Display(), t.Cluster, maxAskedObjects)
			}
			for _, row := range rows {
				o := row.GetObject()
				e := fleet.BundleEntry{ID: record.ObjectOf(o)}
				_, e.Version = fleet.SplitAPIVersion(o.GetApiVersion())
				q.Objects = append(q.Objects, wire.BundleEntryToProto(e))
			}
		}
		if asked[t.Cluster] == nil {
			asked[t.Cluster] = &eventTarget{cluster: t.Cluster}
		}
		asked[t.Cluster].modules = append(asked[t.Cluster].modules, q)
	}
	if len(asked) == 0 && lost != nil {
		return nil, lost
	}
	var out []*eventTarget
	for _, t := range asked {
		out = append(out, t)
	}
	slices.SortFunc(out, func(x, y *eventTarget) int { return strings.Compare(string(x.cluster), string(y.cluster)) })
	return out, a.view(ctx, 0, func(r store.Reader) error {
		for _, t := range out {
			t.reason, t.message = a.cannotAsk(r, t.cluster, wire.QueryEvents)
		}
		return nil
	})
}

// cannotAsk says why the agent of a cluster is not asked something; empty: it can be.
func (a *API) cannotAsk(r store.Reader, c fleet.ClusterName, feature string) (reason, message string) {
	s, _, _ := store.Get[*storev1.SessionRecord](r, store.SessionKey(c))
	switch {
	case !a.o.Sessions.Connected(c):
		return diffDisconnected, "its agent is not connected"
	case !slices.Contains(s.GetFeatures(), feature):
		return diffUnsupported, "its agent is too old to say"
	}
	return "", ""
}

// eventsIn asks one cluster. That it does not answer is told and ends nothing.
func (a *API) eventsIn(ctx context.Context, t *eventTarget, limit int) *towlinev1.ListEventsResponse {
	out := &towlinev1.ListEventsResponse{Cluster: string(t.cluster), Reason: t.reason, Message: t.message}
	if t.reason != "" {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, eventsTimeout)
	defer cancel()
	for _, q := range t.modules {
		q.Limit, q.MaxBytes = uint32(limit), maxDiffBytes
		got, err := a.o.Sessions.Query(ctx, t.cluster, q)
		if err == nil && got.GetEvents() == nil {
			err = errors.New("the agent's answer has no events")
		}
		if err != nil {
			out.Reason, out.Message = diffUnanswered, unanswered(ctx, err, eventsTimeout)
			return out
		}
		ref, err := fleet.ParseModuleRef(q.GetModule())
		if err != nil {
			out.Reason, out.Message = diffUnanswered, err.Error()
			return out
		}
		events, omitted := wire.EventsOf(got.GetEvents(), ref)
		out.Events, out.Omitted = append(out.Events, events...), out.Omitted+omitted
	}
	slices.SortStableFunc(out.Events, func(x, y *towlinev1.ObjectEvent) int { return x.GetLast().AsTime().Compare(y.GetLast().AsTime()) })
	if n := len(out.Events) - limit; n > 0 {
		out.Events, out.Omitted = out.Events[n:], out.Omitted+int32(n)
	}
	return out
}

// unanswered is why an agent did not answer.
func unanswered(ctx context.Context, err error, most time.Duration) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "its agent has not answered within " + most.String()
	}
	return err.Error()
}
