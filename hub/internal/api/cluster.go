package api

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/labels"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/wire"
)

// JoinCluster makes the cluster and a single-use token for its agent.
func (a *API) JoinCluster(ctx context.Context, req *towlinev1.JoinClusterRequest) (*towlinev1.JoinClusterResponse, error) {
	in := &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: req.GetName(), Labels: req.GetLabels()}}
	if _, err := wire.ClusterFromProto(in); err != nil {
		return nil, named("cluster", req.GetName(), err)
	}
	ttl, err := wire.Duration("ttl", req.GetTtl(), 0)
	if err != nil {
		return nil, err
	}
	caller, _ := rpc.CallerFrom(ctx)
	join, err := a.o.Registry.CreateJoin(ctx, caller, registry.JoinRequest{Cluster: fleet.ClusterName(req.GetName()),
		Labels: req.GetLabels(), TTL: ttl, Reissue: req.GetReissue(), UID: req.GetUid(), Reason: req.GetReason()})
	if err != nil {
		return nil, err
	}
	got, err := a.GetCluster(ctx, &towlinev1.GetClusterRequest{Name: req.GetName(), MinRevision: join.Revision})
	return &towlinev1.JoinClusterResponse{Token: join.Token, Expires: timestamppb.New(join.Expires), HubAddresses: a.addresses(),
		Cluster: got.GetCluster(), Revision: join.Revision}, err
}

// PutCluster creates a cluster or changes its labels and spec. A dry run tells what it would move.
func (a *API) PutCluster(ctx context.Context, req *towlinev1.PutClusterRequest) (*towlinev1.PutClusterResponse, error) {
	if _, err := wire.ClusterFromProto(req.GetCluster()); err != nil {
		return nil, named("cluster", req.GetCluster().GetMetadata().GetName(), err)
	}
	wanted, err := a.o.Registry.Wanted(ctx, req.GetCluster(), req.GetApply())
	if err != nil {
		return nil, err
	}
	resp := &towlinev1.PutClusterResponse{}
	if err := a.describeMove(ctx, wire.ClusterOf(wanted), resp); err != nil {
		return nil, err
	}
	put, err := a.o.Registry.PutCluster(ctx, req.GetCluster(), registry.How{Word: registry.Word{By: who(ctx), Reason: req.GetReason()}, Apply: req.GetApply(), Dry: req.GetDryRun()})
	if err != nil {
		return nil, err
	}
	rpc.NoteDetail(ctx, put.Did)
	resp.Revision, resp.Result = put.Revision, putResult(put.Created, put.Changed)
	return resp, a.overview(ctx, resp.Revision, func(r overview) error {
		resp.Cluster = a.showCluster(r, put.Record)
		return nil
	})
}

// describeMove tells which modules a cluster with these labels enters and leaves. One that selects it already by the labels that it has, and
// has not come to it yet, is not entered by the change.
func (a *API) describeMove(ctx context.Context, c fleet.Cluster, resp *towlinev1.PutClusterResponse) error {
	var leaves []record.Tracked
	var changes []variantChange
	err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
		old, _, known := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(c.Name))
		store.Scan(r, store.ModulePrefix, func(rec *storev1.ModuleRecord, _ store.Entry) bool {
			m, err := wire.ModuleFromProto(rec.GetModule())
			if err != nil || rec.GetDeleting() != "" {
				return true
			}
			t, has := record.Track(r, c.Name, m.Ref, false)
			has = has && !t.Tracker.Removing
			comes := func(p fleet.Placement) bool { return known && record.Placed(p, record.Cluster(old), t.Desired) }
			takes := func(p fleet.Placement) bool { return record.Placed(p, c, t.Desired) }
			switch by := record.Placements(r, m, rec); {
			case !has && slices.ContainsFunc(by, comes):
			case !has && slices.ContainsFunc(by, takes):
				resp.Enters = append(resp.Enters, m.Ref.String())
			case has && slices.ContainsFunc(by, func(p fleet.Placement) bool { return !takes(p) }):
				resp.Leaves = append(resp.Leaves, m.Ref.String())
				leaves = append(leaves, t)
				if record.AsksToPart(r, m, c) {
					resp.Asks = append(resp.Asks, m.Ref.String())
				}
			case has:
				if next, is := changesVariant(r, c, t); is {
					changes = append(changes, next)
				}
			}
			return true
		})
		return nil
	})
	for i := range leaves {
		goes := &towlinev1.DeleteModuleResponse{}
		if err := a.countDelete(ctx, &leaves[i], false, map[string]int32{}, goes); err != nil {
			return err
		}
		resp.RemovesObjects += goes.GetObjects()
	}
	for _, x := range changes {
		dropped, known := int32(0), !x.bundle.IsZero()
		if known {
			if dropped, err = a.countDropped(ctx, x); err != nil {
				return err
			}
		}
		resp.RemovesObjects += dropped
		if dropped > 0 || !known {
			resp.Loses = append(resp.Loses, x.has.Module.String())
		}
	}
	return err
}

// GetCluster reads one.
func (a *API) GetCluster(ctx context.Context, req *towlinev1.GetClusterRequest) (*towlinev1.GetClusterResponse, error) {
	resp := &towlinev1.GetClusterResponse{}
	err := a.overview(ctx, req.GetMinRevision(), func(r overview) error {
		name := fleet.ClusterName(req.GetName())
		if err := record.ReadableCluster(r, name); err != nil {
			return err
		}
		rec, _, ok := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(name))
		if ok {
			resp.Cluster = a.showCluster(r, rec)
			return nil
		}
		for _, s := range a.o.Registry.Strangers() {
			if string(s.Cluster) == req.GetName() {
				resp.Cluster = showStranger(s)
				return nil
			}
		}
		return noCluster(fleet.ClusterName(req.GetName()))
	})
	return resp, err
}

func (a *API) showCluster(r overview, rec *storev1.ClusterRecord) *towlinev1.Cluster {
	out := proto.CloneOf(rec.GetCluster())
	name := fleet.ClusterName(out.GetMetadata().GetName())
	if e, ok := r.Get(store.ClusterKey(name)); ok {
		out.Metadata.ResourceVersion = e.ModRevision
	}
	connected := record.Connected(rec, a.o.Sessions.Connected(name))
	state, since := record.State(r, rec, connected)
	s := &towlinev1.ClusterStatus{State: string(state), Uid: rec.GetUid(), Lock: rec.GetLock(), Away: rec.GetJoined() != nil && !connected}
	if code := rec.GetAttention(); code != "" {
		s.Attention = note(code, nil)
	}
	if !since.IsZero() {
		s.Since = timestamppb.New(since)
	}
	a.describeSession(r, name, connected, s)
	sum := r.sums.Cluster(name)
	s.Generation, s.Modules, s.Healthy, s.Drift = sum.Generation, int32(sum.Modules), int32(sum.Healthy), int32(sum.Drifted)
	s.WasHealthy, s.WasDrift, s.Strays = int32(sum.WasHealthy), int32(sum.WasDrifted), sum.Strays
	r.describeStops(name, s)
	for _, c := range rec.GetCertificates() {
		if c.GetActive() || s.CertificateNotAfter == nil {
			s.CertificateNotAfter = c.GetNotAfter()
		}
	}
	a.describeTokens(r, name, rec, s)
	if len(s.Strays) > 0 && s.Attention == nil {
		s.Attention = note(fleet.AttentionStrays, &towlinev1.Facts{Count: int32(len(s.Strays))})
	}
	for _, c := range record.Conditions(r, name) {
		s.Conditions = append(s.Conditions, showCondition(c))
	}
	if state == fleet.ClusterDisconnected && s.Attention == nil && a.presence().Expected(r, name, a.now()) {
		s.Attention = note(fleet.AttentionExpected, &towlinev1.Facts{Until: timestamppb.New(a.presence().Ends())})
	}
	if why := rec.GetRegressed(); why != "" && !record.AcceptedRestore(r, name) {
		s.Attention = note(fleet.AttentionRegressed, &towlinev1.Facts{Detail: why}) // whatever else there is to say follows from it
	}
	out.Status = s
	return out
}

// note is what a person should know.
func note(code string, facts *towlinev1.Facts) *towlinev1.Note {
	return &towlinev1.Note{Code: code, Facts: facts}
}

func showCondition(c fleet.Condition) *towlinev1.Condition {
	out := &towlinev1.Condition{Type: string(c.Type), Status: c.Status, Reason: c.Reason, Message: c.Message}
	if !c.Since.IsZero() {
		out.LastTransitionTime = timestamppb.New(c.Since)
	}
	return out
}

func (a *API) describeSession(r store.Reader, name fleet.ClusterName, connected bool, s *towlinev1.ClusterStatus) {
	x, _, ok := store.Get[*storev1.SessionRecord](r, store.SessionKey(name))
	if ok {
		s.AgentVersion, s.KubernetesVersion, s.Epoch = x.GetAgentVersion(), x.GetKubernetesVersion(), x.GetEpoch()
	}
	if can := record.CapabilitiesSum(r, name); slices.Contains(x.GetFeatures(), wire.FeatureCapabilities) && can != nil { // the session may have begun before an upgrade
		s.KubernetesVersion, s.Apis = can.GetKubernetesVersion(), can.GetApis()
	}
	if seen, live := a.o.Sessions.LastSeen(name); live && connected {
		s.LastSeen = timestamppb.New(seen)
	} else if at := record.LastWord(r, name, x); !at.IsZero() {
		s.LastSeen = timestamppb.New(at)
	}
	if ack, _, ok := store.Get[*storev1.AckRecord](r, store.AckKey(name)); ok && !record.Voided(x, ack) {
		s.AcknowledgedGeneration = ack.GetGeneration()
		if ack.GetCode() != "" {
			s.Attention = note(fleet.AttentionRefused, &towlinev1.Facts{Code: ack.GetCode(), Detail: ack.GetMessage()})
		}
		if c := reportsAccepted(ack); c != nil && ack.GetEpoch() == x.GetEpoch() {
			s.Conditions = append(s.Conditions, c)
		}
	}
}

// reportsAccepted says what of an agent's reports was not kept; nil: nothing.
func reportsAccepted(ack *storev1.AckRecord) *towlinev1.Condition {
	c := &towlinev1.Condition{Type: string(fleet.ConditionReportsAccepted), Status: fleet.ConditionFalse}
	switch {
	case ack.GetUnasked() > 0:
		c.Reason = fleet.ReportsNotDesired
		c.Facts = &towlinev1.Facts{Count: int32(ack.GetUnasked()), Names: []string{ack.GetUnaskedModule()}}
	case ack.GetShortened() > 0:
		c.Reason = fleet.ReportsTooLarge
		c.Facts = &towlinev1.Facts{Count: int32(ack.GetShortened())}
	default:
		return nil
	}
	return c
}

func (a *API) describeTokens(r store.Reader, name fleet.ClusterName, rec *storev1.ClusterRecord, s *towlinev1.ClusterStatus) {
	if rec.GetJoined() != nil {
		return
	}
	store.Scan(r, store.TokenPrefix, func(t *storev1.TokenRecord, _ store.Entry) bool {
		if t.GetToken().GetCluster() == string(name) && t.GetUsed() == nil {
			s.TokenExpires = t.GetToken().GetExpires()
		}
		return true
	})
}

// ListClusters reads many.
func (a *API) ListClusters(ctx context.Context, req *towlinev1.ListClustersRequest) (*towlinev1.ListClustersResponse, error) {
	resp := &towlinev1.ListClustersResponse{}
	return resp, a.clusters(ctx, "", req.GetLabelSelector(), req.GetMinRevision(), func(r overview, lines []line[*towlinev1.Cluster]) (err error) {
		resp.Revision = r.Revision()
		resp.Clusters, resp.NextPageToken, resp.Total, err = paginate(req, lines)
		return err
	})
}

func clusterKey(c *towlinev1.Cluster) string { return c.GetMetadata().GetName() }

// clusters calls fn with the clusters of a name, or all, sorted.
func (a *API) clusters(ctx context.Context, name, labelSelector string, minRevision int64, fn func(overview, []line[*towlinev1.Cluster]) error) error {
	sel, err := selector(labelSelector)
	if err != nil {
		return err
	}
	return a.overview(ctx, minRevision, func(r overview) error {
		var lines []line[*towlinev1.Cluster]
		store.Scan(r, store.ClusterPrefix, func(rec *storev1.ClusterRecord, _ store.Entry) bool {
			meta := rec.GetCluster().GetMetadata()
			if (name == "" || name == meta.GetName()) && sel.Matches(labels.Set(meta.GetLabels())) {
				lines = append(lines, line[*towlinev1.Cluster]{key: meta.GetName(), show: func() *towlinev1.Cluster { return a.showCluster(r, rec) }})
			}
			return true
		})
		for _, s := range a.o.Registry.Strangers() {
			if _, known := store.Untracked(r).Get(store.ClusterKey(s.Cluster)); !known && (name == "" || name == string(s.Cluster)) && sel.Empty() {
				lines = append(lines, shown(showStranger(s), clusterKey))
			}
		}
		if sel.Empty() {
			lines = append(lines, shownAll(damagedClusters(r, name), clusterKey)...)
		}
		sortLines(lines)
		return fn(r, lines)
	})
}

// showStranger is an agent that this hub does not know. It is no cluster of the fleet: nothing selects it.
func showStranger(s registry.Stranger) *towlinev1.Cluster {
	return &towlinev1.Cluster{ApiVersion: fleet.APIVersion, Kind: "Cluster", Metadata: &towlinev1.Metadata{Name: string(s.Cluster)},
		Status: &towlinev1.ClusterStatus{State: stateUnregistered, LastSeen: timestamppb.New(s.Seen), Attention: note(fleet.AttentionUnregistered, nil)}}
}

// stateUnregistered is shown for an agent whose cluster the hub does not have.
const stateUnregistered = "Unregistered"

// WatchClusters sends clusters and their changes. A live agent's last-seen time alone is no change.
func (a *API) WatchClusters(req *towlinev1.WatchClustersRequest, st grpc.ServerStreamingServer[towlinev1.WatchClustersResponse]) error {
	sel, err := selector(req.GetLabelSelector())
	if err != nil {
		return err
	}
	name := req.GetName()
	return a.clusterBoards.watch(st.Context(), watching[*towlinev1.Cluster]{question: name, from: req,
		look: func(ctx context.Context, s *board[*towlinev1.Cluster]) error {
			return a.watchClusters(ctx, name, s)
		},
		match: func(c *towlinev1.Cluster) bool { return selects(sel, c.GetMetadata()) },
		send: func(x told[*towlinev1.Cluster]) error {
			return st.Send(&towlinev1.WatchClustersResponse{Type: x.kind, Cluster: x.row, Revision: x.revision, ResumeToken: x.token})
		}})
}

// watchClusters keeps the board of the cluster of a name; empty: all.
func (a *API) watchClusters(ctx context.Context, name string, s *board[*towlinev1.Cluster]) error {
	turn := time.AfterFunc(time.Hour, a.touches.signal)
	defer turn.Stop()
	list := func(ctx context.Context) (rows []*towlinev1.Cluster, rev int64, err error) {
		err = a.clusters(ctx, name, "", 0, func(r overview, lines []line[*towlinev1.Cluster]) error {
			rows, rev = showAll(lines), r.Revision()
			a.steady(r, rows)
			if at := turns(rows); !at.IsZero() {
				turn.Reset(at.Sub(a.now()))
			}
			return nil
		})
		return rows, rev, err
	}
	prefixes := []string{store.ClusterPrefix, store.SessionPrefix, store.AckPrefix, store.ConditionPrefix, store.CapabilityPrefix, store.DesiredPrefix, store.ObservedPrefix, store.TokenPrefix,
		store.HoldPrefix, store.ConfirmPrefix, store.StartPrefix, store.RolloutPrefix, store.AcceptedKey, store.AcceptedPrefix}
	return watchRows(ctx, a, prefixes, list, s)
}

// turns is when the next row changes with time alone; zero: none does.
func turns(rows []*towlinev1.Cluster) (next time.Time) {
	for _, c := range rows {
		var at time.Time
		switch note := c.GetStatus().GetAttention(); note.GetCode() {
		case fleet.AttentionExpected:
			at = note.GetFacts().GetUntil().AsTime()
		case fleet.AttentionUnregistered:
			at = c.GetStatus().GetLastSeen().AsTime().Add(registry.StrangerLife)
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// steady has agents that are there be heard of last when their sessions began: that they are heard of again is no change.
func (a *API) steady(r store.Reader, rows []*towlinev1.Cluster) {
	for _, c := range rows {
		name := fleet.ClusterName(clusterKey(c))
		if !a.o.Sessions.Connected(name) {
			continue
		}
		if s, _, _ := store.Get[*storev1.SessionRecord](store.Untracked(r), store.SessionKey(name)); s.GetStarted() != nil {
			c.Status.LastSeen = s.GetStarted()
		}
	}
}

// RemoveCluster takes a cluster out of the fleet. Its objects stay unless "delete" is asked for.
func (a *API) RemoveCluster(ctx context.Context, req *towlinev1.RemoveClusterRequest) (*towlinev1.RemoveClusterResponse, error) {
	objects := req.GetObjects()
	if objects == "" {
		objects = "keep"
	}
	if err := wire.Choice("objects", objects, "keep", "delete"); err != nil {
		return nil, err
	}
	name := fleet.ClusterName(req.GetName())
	resp := &towlinev1.RemoveClusterResponse{AgentConnected: a.o.Sessions.Connected(name)}
	rev, told, err := a.o.Registry.RemoveCluster(ctx, name, registry.Removal{UID: req.GetUid(), Objects: objects, Force: req.GetForce()},
		registry.Word{By: who(ctx), Reason: req.GetReason()})
	resp.Revision, resp.AgentConnected = rev, resp.GetAgentConnected() && told
	return resp, err
}

// RevokeCluster cuts the cluster's identity.
func (a *API) RevokeCluster(ctx context.Context, req *towlinev1.RevokeClusterRequest) (*towlinev1.RevokeClusterResponse, error) {
	caller, _ := rpc.CallerFrom(ctx)
	rev, err := a.o.Registry.Revoke(ctx, caller, fleet.ClusterName(req.GetName()), req.GetUid(), req.GetReason())
	return &towlinev1.RevokeClusterResponse{Revision: rev}, err
}

// LockCluster keeps its agent out until a person unlocks it.
func (a *API) LockCluster(ctx context.Context, req *towlinev1.LockClusterRequest) (*towlinev1.LockClusterResponse, error) {
	caller, _ := rpc.CallerFrom(ctx)
	changed, rev, err := a.o.Registry.Lock(ctx, caller, fleet.ClusterName(req.GetName()), req.GetUid(), req.GetReason())
	return &towlinev1.LockClusterResponse{Result: orUnchanged("locked", changed), Revision: rev}, err
}

// UnlockCluster lets its agent in again.
func (a *API) UnlockCluster(ctx context.Context, req *towlinev1.UnlockClusterRequest) (*towlinev1.UnlockClusterResponse, error) {
	ttl, err := wire.Duration("ttl", req.GetTtl(), 0)
	if err != nil {
		return nil, err
	}
	caller, _ := rpc.CallerFrom(ctx)
	join, changed, err := a.o.Registry.Unlock(ctx, caller, fleet.ClusterName(req.GetName()),
		registry.Unlocking{Reissue: req.GetReissue(), TTL: ttl, UID: req.GetUid(), Reason: req.GetReason()})
	if err != nil {
		return nil, err
	}
	resp := &towlinev1.UnlockClusterResponse{Result: orUnchanged("unlocked", changed), Revision: join.Revision}
	if join.Token != "" {
		resp.Token, resp.Expires, resp.HubAddresses = join.Token, timestamppb.New(join.Expires), a.addresses()
	}
	return resp, nil
}

func orUnchanged(word string, changed bool) string {
	if !changed {
		return resultUnchanged
	}
	return word
}

// sameCluster checks that a cluster is the one of a UID; any is one of no UID.
func sameCluster(r store.Reader, name fleet.ClusterName, uid string) error {
	rec, _, _ := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(name))
	return fleet.SameUID(name.Object(), rec.GetCluster().GetMetadata().GetUid(), uid)
}
