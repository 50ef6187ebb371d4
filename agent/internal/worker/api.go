package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/meter"
	"towline.dev/towline/agent/internal/vault"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/tracing"
)

// Contents reads what the agent holds locally, by digest. Objects are canonical JSON whose string values may still
// contain ${NAME}. A digest that is not there is fleet.ErrNotFound.
type Contents interface {
	Bundle(d fleet.Digest) (fleet.Bundle, error)
	Object(d fleet.Digest) ([]byte, error)
	Policies(d fleet.Digest) (fleet.PolicySet, error)
}

// State is a small durable store of named bytes: local files, or Secrets. Write is atomic and durable when it returns.
// A name that is not there is fleet.ErrNotFound.
type State interface {
	Read(ctx context.Context, name string) ([]byte, error)
	Write(ctx context.Context, name string, data []byte) error
	Remove(ctx context.Context, name string) error
	List(ctx context.Context, prefix string) ([]string, error)
}

// mayHave reports that a read failed of a state that may have what was asked for: it neither lacks it nor has it damaged.
func mayHave(err error) bool {
	return err != nil && !errors.Is(err, fleet.ErrNotFound) && !errors.Is(err, fleet.ErrCorrupt)
}

// Fence opens a batch of writes: it returns nil only while this process is the one that may write to the cluster.
type Fence interface {
	Open(ctx context.Context) error
	// Check says right before a request why it must not be sent any more, and Covered ends when none may.
	Check() error
	Covered() context.Context
	// Prove says whether what was read before may have been read from another cluster; nil: it was this one.
	Prove(ctx context.Context) error
	// Ahead has a batch opened for writes that are about to come. It returns at once.
	Ahead(ctx context.Context)
}

// Options are what a Manager needs. Config, Contents, State, HubID, ClusterUID and Report are required.
type Options struct {
	// Config reaches the cluster's API server. Client-side rate limits in it are ignored: the server's fairness rules.
	Config *rest.Config
	// Contents are bundles, objects and policies by digest.
	Contents Contents
	// State keeps the inventory.
	State State
	// Vault keeps values in it that nobody is to read; one on State by default.
	Vault *vault.Vault
	// Incomplete says that the state may lack what was written last, so that the cluster is searched for objects of ours.
	Incomplete bool
	// Newest is what NoteNewest noted last, also in a process before: the newest part of the inventory. It is kept in a place
	// that the state does not take with it; empty: it is not known. NoteNewest must return at once.
	Newest     string
	NoteNewest func(part string)
	// HubID is the value of the label on managed objects.
	HubID string
	// Hubs are those of the lineages that the inventory's records name by number, from 1 on.
	Hubs []string
	// ClusterUID is part of the owner mark: the UID of kube-system.
	ClusterUID string
	// Namespace is the agent's own: nothing in it is written for a module. Default fleet.AgentNamespace.
	Namespace string
	// Report takes the newest status of a module whenever it changed. It must return at once.
	Report func(fleet.SyncStatus)
	// Removed is told that a tombstone of this age is carried out, before the status says so; nothing by default. It must return at once.
	Removed func(fleet.ModuleRef, fleet.Age)
	// Meter counts what goes on; it may be nil.
	Meter *meter.Meter
	// Tracer sends spans of what goes on, and Marks says in which traces it belongs; both may be nil.
	Tracer *tracing.Tracer
	Marks  *tracing.Marks
	// Log defaults to a logger that drops everything.
	Log *slog.Logger
	// Concurrency is how many writes are in flight in the cluster; 16 by default.
	Concurrency int
	// Fence guards writes against a second agent; none by default.
	Fence Fence
	// Reachable reports whether the API server as a whole is reached; always by default. While it is not, what fails for
	// that fails no module, and what was known of the cluster stays.
	Reachable func() bool
	// Accepts is what the cluster accepts at first; Manager.Accept says when that changed.
	Accepts Accepts
	// Served are the hubs for which other agents of the cluster work; none by default. An error says that this is not known now. It must come to
	// an end by itself.
	Served func(ctx context.Context) (map[string]bool, error)
	// Restored is told that the cluster's store was restored from an older copy; nothing by default. It must return at once.
	Restored func()
	// Others is told of other hubs whose agents wrote in this cluster, and how many kinds (or APIs) could not be searched: in the course
	// of each search for objects, whenever that changes, and at its end; nothing by default.
	Others func(ctx context.Context, found []OtherHub, unseen int)
	// EstablishTimeout is how long a sync waits for the CRDs in it before it goes on without them; 30 s by default.
	EstablishTimeout time.Duration
	// Recheck is how often the agent looks again at what no watch tells it; a minute by default.
	Recheck time.Duration

	blindAfter time.Duration // of watches; shorter in tests
	landing    time.Duration // see late; shorter in tests
	objectTime time.Duration // as the constant; shorter in tests
	linger     time.Duration // of watches; 0: as watch.Options has it
}

// setDefaults fills in what is not said.
func (o *Options) setDefaults() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Namespace == "" {
		o.Namespace = fleet.AgentNamespace
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 16
	}
	if o.NoteNewest == nil {
		o.NoteNewest = func(string) {}
	}
	if o.Removed == nil {
		o.Removed = func(fleet.ModuleRef, fleet.Age) {}
	}
	if o.Restored == nil {
		o.Restored = func() {}
	}
	if o.Served == nil {
		o.Served = func(context.Context) (map[string]bool, error) { return nil, nil }
	}
	if o.Others == nil {
		o.Others = func(context.Context, []OtherHub, int) {}
	}
	if o.Reachable == nil {
		o.Reachable = func() bool { return true }
	}
	if o.EstablishTimeout <= 0 {
		o.EstablishTimeout = 30 * time.Second
	}
	if o.objectTime <= 0 {
		o.objectTime = objectTime
	}
	if o.landing <= 0 {
		o.landing = landing
	}
	if o.blindAfter <= 0 {
		o.blindAfter = watch.BlindAfter
	}
	if o.Recheck <= 0 {
		o.Recheck = time.Minute
	}
}

// formerHubs are those that the agent does not belong to any more.
func (o *Options) formerHubs() []string {
	return slices.DeleteFunc(slices.Clone(o.Hubs), func(hub string) bool { return hub == o.HubID || hub == "" })
}

// markedFor reports whether what was written in a lineage has the mark of the hub that the agent belongs to.
func (o *Options) markedFor(lineage uint64) bool {
	return lineage == 0 || lineage > uint64(len(o.Hubs)) || o.Hubs[lineage-1] == o.HubID
}
