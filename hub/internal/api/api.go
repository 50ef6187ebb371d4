// Package api serves people and programs: the public services over the store. It owns checking, writing of what people
// want, and the shape in which they see what is; it must not know how rollouts are decided or how agents are reached.
package api

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/labels"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/counts"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/secrets"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/tracing"
	"towline.dev/towline/pkg/wire"
)

// Sessions is what the API asks about agents.
type Sessions interface {
	Connected(fleet.ClusterName) bool
	// Lost is when a session of the cluster ended here last; zero: none did.
	Lost(fleet.ClusterName) time.Time
	LastSeen(fleet.ClusterName) (time.Time, bool)
	// Started is when this hub began to serve agents.
	Started() time.Time
	// Query asks the cluster's agent and waits for its answer.
	Query(ctx context.Context, c fleet.ClusterName, q *agentv1.Query) (*agentv1.QueryResult, error)
}

// Options of the services; the functions are not required.
type Options struct {
	Store    store.Store
	Bundles  *bundle.Cache
	Sessions Sessions
	// Grace is how long the hub waits for agents, after their sessions ended or after its own start, before rollouts call them away.
	Grace    time.Duration
	Registry *registry.Registry
	// Keys seal secrets; nil: none can be kept.
	Keys *secrets.Keys
	Log  *slog.Logger
	// Tracer sends spans of puts; nil: none are.
	Tracer *tracing.Tracer
	// HubID and Incarnation are in meta/hub.
	HubID, Incarnation string
	// Advertise are the addresses for agents.
	Advertise []string
	// Hubs, if set, are those of all hubs of the store; nil or none: this one is alone.
	Hubs func() []string
	// Render, if set, refuses a module whose source is all in it and cannot be rendered. What it returns is called when the
	// module is about to be committed; it must not wait.
	Render func(ctx context.Context, m *wire.Module, spec fleet.Digest) (store func(), err error)
	// Propose, if set, renders a module and stores what agents need to say what it would do.
	Propose func(ctx context.Context, m *wire.Module, spec fleet.Digest) (record.Proposal, error)
	// Resync, if set, looks at the source of a module now, and waits for what comes of it; with are others whose rollouts begin with its own.
	Resync func(ctx context.Context, ref fleet.ModuleRef, by record.Ask, with []fleet.ModuleRef) (record.Resynced, error)
	// Followed, if set, is what is known of the looks at the source of a module, newer than what is stored, and when the next one is.
	Followed func(fleet.ModuleRef) (*storev1.FollowRecord, time.Time)
	// ResyncCatalog, if set, looks at the source of a catalog now, and waits for what comes of it; take is for what is of others, too.
	ResyncCatalog func(ctx context.Context, ref fleet.ModuleRef, by record.Ask, take bool) (record.CatalogDone, error)
	// CatalogSeen, if set, is what came of the last look at a catalog, newer than what is stored, and when the next one is.
	CatalogSeen func(fleet.ModuleRef) (*storev1.CatalogState, time.Time)
	// Audit, if set, records what the hub does by itself for people.
	Audit func(context.Context, *towlinev1.AuditEntry)
	// Snapshot is the whole store as it is at one moment.
	Snapshot func(context.Context) (io.ReadCloser, error)
	// Hooks says that the hub serves calls that ask for looks at sources.
	Hooks bool
	// Trouble, if set, says why a module's newest rollout has no revision yet although its source does not fail.
	Trouble func(fleet.ModuleRef) error
}

// API implements every public service.
type API struct {
	towlinev1.UnimplementedModuleServiceServer
	towlinev1.UnimplementedClusterServiceServer
	towlinev1.UnimplementedTrackerServiceServer
	towlinev1.UnimplementedRolloutServiceServer
	towlinev1.UnimplementedAssignmentServiceServer
	towlinev1.UnimplementedIdentityServiceServer
	towlinev1.UnimplementedSecretServiceServer
	towlinev1.UnimplementedArtifactServiceServer
	towlinev1.UnimplementedCatalogServiceServer
	towlinev1.UnimplementedStoreServiceServer
	towlinev1.UnimplementedAuditServiceServer
	o Options
	// touches counts changes of sessions, which are in no record of the store.
	touches *broadcast
	// uploads has one for each that is under way.
	uploads  chan struct{}
	watchers *watchers
	counts   *counts.Index
	// What watches are shown from.
	moduleBoards  *boards[*towlinev1.Module]
	clusterBoards *boards[*towlinev1.Cluster]
	objectBoards  *boards[*towlinev1.Object]
	now           func() time.Time
}

// New checks the options.
func New(o Options) (*API, error) {
	if o.Store == nil || o.Bundles == nil || o.Sessions == nil || o.Registry == nil || o.Log == nil {
		return nil, fmt.Errorf("api: Store, Bundles, Sessions, Registry and Log are required")
	}
	if o.Keys == nil {
		o.Keys = secrets.NoKeys("it was started without")
	}
	a := &API{o: o, touches: newBroadcast(), watchers: &watchers{}, uploads: make(chan struct{}, maxUploads), now: time.Now}
	o.Registry.OnStranger(a.touches.signal)
	a.moduleBoards, a.clusterBoards, a.objectBoards = newBoards(a, moduleKey), newBoards(a, clusterKey), newBoards(a, objectKey)
	a.counts = counts.New(o.Store, func(c fleet.ClusterName) bool { return a.o.Sessions.Connected(c) })
	return a, nil
}

// presence is by what rollouts are decided, so that they are explained by the same.
func (a *API) presence() record.Presence {
	return record.Presence{Live: a.o.Sessions.Connected, Lost: a.o.Sessions.Lost, Started: a.o.Sessions.Started(), Grace: a.o.Grace}
}

// Register registers every service.
func (a *API) Register(s grpc.ServiceRegistrar) {
	towlinev1.RegisterModuleServiceServer(s, a)
	towlinev1.RegisterClusterServiceServer(s, a)
	towlinev1.RegisterTrackerServiceServer(s, a)
	towlinev1.RegisterRolloutServiceServer(s, a)
	towlinev1.RegisterAssignmentServiceServer(s, a)
	towlinev1.RegisterIdentityServiceServer(s, a)
	towlinev1.RegisterSecretServiceServer(s, a)
	towlinev1.RegisterArtifactServiceServer(s, a)
	towlinev1.RegisterCatalogServiceServer(s, a)
	towlinev1.RegisterStoreServiceServer(s, a)
	towlinev1.RegisterAuditServiceServer(s, a)
}

// addresses are where agents may dial a hub, this one's first.
func (a *API) addresses() []string {
	out := slices.Clone(a.o.Advertise)
	if a.o.Hubs == nil {
		return out
	}
	for _, addr := range a.o.Hubs() {
		if !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	return out
}

// Touch says that a cluster connected or was lost.
func (a *API) Touch(c fleet.ClusterName) {
	a.counts.Touch(c)
	a.touches.signal()
}

// Troubled says that what Options.Trouble says of a module has changed.
func (a *API) Troubled() { a.touches.signal() }

// who is the caller's name for records.
func who(ctx context.Context) string {
	c, ok := rpc.CallerFrom(ctx)
	if !ok {
		return ""
	}
	return c.String()
}

func project(s string) string {
	if s == "" {
		return fleet.DefaultProject
	}
	return s
}

func refOf(proj, name string) (fleet.ModuleRef, error) {
	ref := fleet.ModuleRef{Project: project(proj), Name: name}
	if err := fleet.ValidateLabel(name); err != nil {
		return ref, fleet.Invalid("name", err.Error())
	}
	return ref, nil
}

// selector reads kubectl's syntax; empty selects everything.
func selector(s string) (labels.Selector, error) {
	sel, err := labels.Parse(s)
	if err != nil {
		return nil, fleet.Invalidf("label_selector", "%q: %v", s, err)
	}
	return sel, nil
}

// selects reports that a selector takes a row that is shown. One without a version is no record that can be read: it has no
// labels to go by, and is taken only with everything.
func selects(sel labels.Selector, meta *towlinev1.Metadata) bool {
	return sel.Empty() || meta.GetResourceVersion() != 0 && sel.Matches(labels.Set(meta.GetLabels()))
}
