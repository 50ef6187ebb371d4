// Package registry owns the clusters that are registered, and identities: the hub's CA, join tokens, the certificates of
// clusters, people's tokens, and who has the session of a cluster. It must not know what agents and people do once they are known, nor how a session is served.
package registry

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
)

// Options of a Registry. All are required but those with a default.
type Options struct {
	Store store.Store
	CA    *CA
	// HubID is in meta/hub; agents pin it.
	HubID string
	Log   *slog.Logger
	// Audit records which clusters enrolled, and who was refused. It may be nil.
	Audit func(context.Context, *v1.AuditEntry)
	// LockCopied has a cluster locked by the hub when a certificate is shown that its agent has replaced; without it the cluster's
	// attention alone says that, for whoever has an old copy of an agent's state could take its cluster out of service else.
	LockCopied bool
	// Now defaults to time.Now.
	Now func() time.Time
}

// Registry gives and checks identities.
type Registry struct {
	store    store.Store
	ca       *CA
	hubID    string
	log      *slog.Logger
	audit    func(context.Context, *v1.AuditEntry)
	now      func() time.Time
	failures *limiter
	// lockCopied: see Options.
	lockCopied bool
	// alarms are attentions that were seen on a path that does no I/O; Run writes them.
	alarms alarms
	// strangers are agents whose clusters are not in the store.
	strangers  strangers
	onStranger func()
	rivals     rivals
	refusals   refusals
	// firsts are certificates of people that were used and are not in the store; Run writes them.
	firsts firsts
}

// New checks the options.
func New(o Options) (*Registry, error) {
	if o.Store == nil || o.CA == nil || o.HubID == "" || o.Log == nil {
		return nil, fmt.Errorf("registry: Store, CA, HubID and Log are required")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Registry{store: o.Store, ca: o.CA, hubID: o.HubID, log: o.Log, audit: o.Audit, now: o.Now, failures: newLimiter(), lockCopied: o.LockCopied,
		alarms:    alarms{wake: make(chan struct{}, 1), pending: map[fleet.ClusterName]alarm{}},
		strangers: strangers{seen: map[fleet.ClusterName]time.Time{}}, onStranger: func() {}, rivals: rivals{seen: map[fleet.ClusterName]rival{}},
		firsts: firsts{wake: make(chan struct{}, 1), pending: map[string]*storev1.CertificateRecord{}}}, nil
}

// tokenSweep is how often Run looks for tokens to forget.
const tokenSweep = 10 * time.Minute

// Run records what was noticed during handshakes and forgets old tokens and certificates, until ctx ends.
func (r *Registry) Run(ctx context.Context) error {
	tick := time.NewTicker(tokenSweep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.alarms.wake:
			for c, what := range r.alarms.take() {
				r.round("raise an attention", func() { r.raise(ctx, c, what) })
			}
		case <-r.firsts.wake:
			r.round("list certificates", func() { r.list(ctx) })
		case <-tick.C:
			r.round("forget", func() { r.forget(ctx) })
		}
	}
}

// round runs one turn of the loop. A bug in it ends that turn alone.
func (r *Registry) round(what string, turn func()) {
	if err := guard.Run(func() error { turn(); return nil }); err != nil {
		r.log.Error("a loop panicked; it goes on", "at", what, "stack", guard.Stack(err))
	}
}

// forget drops what nobody needs any more.
func (r *Registry) forget(ctx context.Context) {
	if err := r.forgetTokens(ctx); err != nil && ctx.Err() == nil {
		r.log.Warn("old tokens are still there", "error", err)
	}
	if err := r.forgetCertificates(ctx); err != nil && ctx.Err() == nil {
		r.log.Warn("old certificates of people are still listed", "error", err)
	}
	if err := r.retire(ctx); err != nil && ctx.Err() == nil {
		r.log.Warn("CAs that nobody needs are still trusted", "error", err)
	}
}

// alarm is an attention that is to be put on a cluster.
type alarm struct {
	code   string
	issued time.Time // of AttentionCopied: when the certificate was made that was shown
}

// alarms hold at most one attention per cluster.
type alarms struct {
	wake    chan struct{}
	mu      sync.Mutex
	pending map[fleet.ClusterName]alarm
}

func (a *alarms) add(c fleet.ClusterName, what alarm) {
	a.mu.Lock()
	a.pending[c] = what
	a.mu.Unlock()
	dirty.Poke(a.wake)
}

func (a *alarms) take() map[fleet.ClusterName]alarm {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.pending
	a.pending = map[fleet.ClusterName]alarm{}
	return out
}

const (
	// attentionRepeat is how soon the same attention is written again: a copy that dials all day writes little.
	attentionRepeat = 10 * time.Minute
	// attentionLife is how long after it was seen last a session that is in order clears an attention.
	attentionLife = time.Hour
)

// raise puts an attention on the cluster. It locks none of which no newer certificate was used, nor one whose agent has said last that it
// cannot write its state: that may have used a certificate which it could not save, and comes back with the one before. That there are two
// agents is not noted anew while the one with the session does not see the cluster: since when they are known tells who else may take it.
func (r *Registry) raise(ctx context.Context, c fleet.ClusterName, what alarm) {
	raised, locked, code := false, false, what.code
	_, err := r.commit(ctx, func(w store.Writer) error {
		rec, ok := cluster(w, c)
		locked = ok && r.lockCopied && code == fleet.AttentionCopied && rec.GetLock() == nil && superseded(rec, what.issued) && !forgets(w, c)
		known := code == fleet.AttentionCloned && rec.GetAttention() == code && fleet.Blinding(record.Conditions(w, c)) != nil
		if raised = ok && (locked || needsAttention(rec, code, r.now())) && !known; !raised {
			return nil
		}
		attend(rec, code, r.now())
		if locked {
			lock(w, rec, &v1.ClusterLock{By: hubName, Reason: "a certificate was shown that the agent has replaced", Since: timestamppb.New(r.now())})
		}
		w.Put(store.ClusterKey(c), rec)
		return nil
	})
	if err == nil && raised {
		r.log.Warn("the identity of a cluster's agent needs attention", "cluster", c, "attention", code, "locked", locked)
		r.noted(ctx, "Attention", c, code)
	}
	if err == nil && locked {
		r.noted(ctx, "LockCluster", c, code)
	}
	if err != nil && ctx.Err() == nil {
		r.log.Warn("attention not recorded", "cluster", c, "attention", code, "error", err)
	}
}

// forgets reports that the agent of a cluster has said last that it cannot write its state.
func forgets(r store.Reader, c fleet.ClusterName) bool {
	return slices.ContainsFunc(record.Conditions(r, c), func(x fleet.Condition) bool {
		return x.Type == fleet.ConditionStateWritable && x.Status == fleet.ConditionFalse
	})
}

// noted puts what the hub did by itself into the audit.
func (r *Registry) noted(ctx context.Context, method string, c fleet.ClusterName, detail string) {
	if r.audit != nil {
		r.audit(ctx, &v1.AuditEntry{Caller: hubName, Method: method, Subject: string(c), Result: codes.OK.String(), Detail: detail})
	}
}

// needsAttention reports that an attention is to be written. That an agent of before still runs takes the place of none that may be of the one
// that is let in.
func needsAttention(rec *storev1.ClusterRecord, code string, now time.Time) bool {
	if code == fleet.AttentionFormer && rec.GetAttention() != "" && rec.GetAttention() != code && now.Sub(rec.GetAttentionAt().AsTime()) <= attentionLife {
		return false
	}
	return rec.GetAttention() != code || now.Sub(rec.GetAttentionAt().AsTime()) > attentionRepeat
}

func attend(rec *storev1.ClusterRecord, code string, now time.Time) {
	rec.Attention, rec.AttentionAt = code, timestamppb.New(now)
}

// commit updates the store and waits until this hub's read model has the change: what was answered is true at once.
func (r *Registry) commit(ctx context.Context, fn func(store.Writer) error) (int64, error) {
	rev, err := r.store.Update(ctx, fn)
	if err != nil {
		return rev, err
	}
	// A wait that is cut short does not undo the commit.
	_ = r.store.View(ctx, rev, func(store.Reader) error { return nil })
	return rev, nil
}

// cluster is a copy of the cluster's record, to be changed.
func cluster(r store.Reader, c fleet.ClusterName) (*storev1.ClusterRecord, bool) {
	rec, _, ok := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(c))
	if !ok {
		return nil, false
	}
	return proto.CloneOf(rec), true
}
