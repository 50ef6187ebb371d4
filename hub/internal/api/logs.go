package api

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

const (
	// logsTimeout is how long an agent may take to read logs once.
	logsTimeout = 15 * time.Second
	// followEvery is how often a log that is followed is read.
	followEvery = time.Second
	maxLogBytes = 1 << 20
	maxLogTail  = 1_000_000
)

// logKinds are the API versions and kinds that have logs, by their names and kubectl's short ones.
var logKinds = map[string][2]string{
	"pod": {"v1", "Pod"}, "po": {"v1", "Pod"}, "replicationcontroller": {"v1", "ReplicationController"}, "rc": {"v1", "ReplicationController"},
	"deployment": {"apps/v1", "Deployment"}, "deploy": {"apps/v1", "Deployment"}, "statefulset": {"apps/v1", "StatefulSet"}, "sts": {"apps/v1", "StatefulSet"},
	"daemonset": {"apps/v1", "DaemonSet"}, "ds": {"apps/v1", "DaemonSet"}, "replicaset": {"apps/v1", "ReplicaSet"}, "rs": {"apps/v1", "ReplicaSet"},
	"job": {"batch/v1", "Job"},
}

// GetLogs asks an agent for logs, and for what comes if they are followed.
func (a *API) GetLogs(req *towlinev1.GetLogsRequest, st grpc.ServerStreamingServer[towlinev1.GetLogsResponse]) error {
	q, err := logQuery(req)
	if err != nil {
		return err
	}
	c := fleet.ClusterName(req.GetCluster())
	if err := a.view(st.Context(), req.GetMinRevision(), func(r store.Reader) error {
		if _, ok := r.Get(store.ClusterKey(c)); !ok {
			return noCluster(c)
		}
		if reason, message := a.cannotAsk(r, c, wire.QueryLogs); reason != "" {
			return fleet.Errorf(fleet.ErrUnavailable, "cluster %s: %s", c, message)
		}
		return nil
	}); err != nil {
		return err
	}
	f := &following{a: a, cluster: c, query: q, began: a.now(), since: q.GetLogs().GetSinceMillis(), send: st.Send, said: map[string]string{}}
	for {
		if err := f.read(st.Context()); err != nil || !req.GetFollow() {
			return err
		}
		if backoff.Wait(st.Context(), followEvery) != nil {
			return nil // the caller has enough
		}
	}
}

// logQuery checks what is asked for.
func logQuery(req *towlinev1.GetLogsRequest) (*agentv1.Query, error) {
	o := req.GetObject()
	kind, known := logKinds[strings.ToLower(o.GetKind())]
	since, err := time.ParseDuration(cmp.Or(req.GetSince(), "0s"))
	switch {
	case req.GetCluster() == "":
		return nil, fleet.Invalid("cluster", "is required")
	case !known, o.GetApiVersion() != "" && o.GetApiVersion() != kind[0]:
		return nil, fleet.Invalidf("object.kind", "%q has no logs; name a Pod, Deployment, StatefulSet, DaemonSet, ReplicaSet, Job or ReplicationController", o.GetKind())
	case o.GetName() == "" || o.GetNamespace() == "":
		return nil, fleet.Invalid("object", "namespace and name are required")
	case err != nil || since < 0:
		return nil, fleet.Invalidf("since", "%q is no duration such as 1h30m", req.GetSince())
	case req.GetTail() < 0 || req.GetTail() > maxLogTail:
		return nil, fleet.Invalidf("tail", "%d is not between 0 and %d", req.GetTail(), maxLogTail)
	case req.GetPrevious() && req.GetFollow():
		return nil, fleet.Invalid("follow", "nothing comes any more of the container that ran before; leave previous or follow out")
	}
	group, version := fleet.SplitAPIVersion(kind[0])
	most := maxLogBytes
	if n := int(req.GetMaxBytes()); n > 0 {
		most = min(n, most)
	}
	return &agentv1.Query{Type: wire.QueryLogs, MaxBytes: uint32(most), Object: &agentv1.BundleEntry{Group: group, Version: version, Kind: kind[1], Namespace: o.GetNamespace(), Name: o.GetName()},
		Logs: &agentv1.LogOptions{Container: req.GetContainer(), Tail: uint32(req.GetTail()), SinceMillis: uint64(since.Milliseconds()), Previous: req.GetPrevious(), Timestamps: req.GetTimestamps()}}, nil
}

// following reads logs, again and again.
type following struct {
	a       *API
	cluster fleet.ClusterName
	query   *agentv1.Query
	began   time.Time
	since   uint64 // milliseconds before it began; 0: any
	send    func(*towlinev1.GetLogsResponse) error
	said    map[string]string // by pod, why there is no log of it
	omitted uint32
}

// read asks once, sends what is new, and notes how far that is.
func (f *following) read(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, logsTimeout)
	defer cancel()
	if f.since > 0 { // a pod that had no line within that time is read from the same moment again
		f.query.Logs.SinceMillis = f.since + uint64(f.a.now().Sub(f.began).Truncate(time.Second).Milliseconds())
	}
	got, err := f.a.o.Sessions.Query(asking, f.cluster, &agentv1.Query{Type: f.query.GetType(), MaxBytes: f.query.GetMaxBytes(), Object: f.query.GetObject(), Logs: f.query.GetLogs()})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case asking.Err() != nil:
		return fleet.Errorf(fleet.ErrUnavailable, "cluster %s: %s", f.cluster, unanswered(asking, err, logsTimeout))
	case err != nil:
		return err
	case got.GetLogs() == nil:
		return errors.New("the agent's answer has no logs")
	}
	if n := got.GetLogs().GetOmitted(); n != f.omitted {
		f.omitted = n
		if err := f.send(&towlinev1.GetLogsResponse{OmittedPods: int32(min(n, 1<<30))}); err != nil {
			return err
		}
	}
	next := make([]*agentv1.LogCursor, 0, len(got.GetLogs().GetPods()))
	for _, p := range got.GetLogs().GetPods() {
		if p.GetAt().GetNanos() != 0 {
			next = append(next, p.GetAt())
		}
		if err := f.tell(p); err != nil {
			return err
		}
	}
	// A pod that comes later is read from its beginning.
	f.query.Logs.After, f.query.Logs.Tail = next, 0
	return nil
}

func (f *following) tell(p *agentv1.PodLog) error {
	pod := p.GetAt().GetPod()
	news := f.said[pod] != p.GetError()
	f.said[pod] = p.GetError()
	if len(p.GetData()) == 0 && !p.GetCut() && !(news && p.GetError() != "") {
		return nil
	}
	out := &towlinev1.GetLogsResponse{Pod: wire.CutText(pod), Container: wire.CutText(p.GetContainer()), Data: p.GetData(), Cut: p.GetCut()}
	if news {
		out.Error = p.GetError()
	}
	return f.send(out)
}
