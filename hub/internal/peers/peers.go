// Package peers knows the hubs that share a store: which of them live, whose agents' streams each of them holds, and which one
// leads. It owns what one hub asks another; it must not know how a session is served or how rollouts are decided.
//
// Who is there follows from the store alone: the session of a cluster names the hub that holds it, and a hub that lives has a record
// under a lease. A hub that dies, or is paused for longer than its lease, takes its sessions with it.
package peers

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// Local are the sessions of this hub.
type Local interface {
	Connected(fleet.ClusterName) bool
	Lost(fleet.ClusterName) time.Time
	LastSeen(fleet.ClusterName) (time.Time, bool)
	Started() time.Time
	Query(context.Context, fleet.ClusterName, *agentv1.Query) (*agentv1.QueryResult, error)
}

// Options of Peers. All are required but those with a default.
type Options struct {
	Store store.Store
	Local Local
	// Instance names this hub process.
	Instance string
	// Version is of what it runs.
	Version string
	// Lasting is how long a session has to last to be one that an agent comes back from.
	Lasting time.Duration
	// Announce puts the record of this hub again, as of one that leads since then; zero: it does not. With a Dialer it is required.
	Announce func(ctx context.Context, leads time.Time)
	// Dialer connects to other hubs; nil: this hub shares its store with nobody.
	Dialer Dialer
	Log    *slog.Logger
	// Now defaults to time.Now.
	Now func() time.Time
}

// Peers is the sessions of all hubs of the store. It answers what is asked about agents, wherever their streams are.
type Peers struct {
	o     Options
	sub   store.Subscription // nil: this hub is alone
	lines lines
	owed  owed

	mu        sync.Mutex
	hubs      map[string]*storev1.HubRecord // that live, this one too
	held      map[fleet.ClusterName]held    // sessions that other hubs hold, or held when they died
	lost      map[fleet.ClusterName]time.Time
	led       time.Time            // since when this hub leads; zero: it does not
	leads     map[string]time.Time // since when another hub says that it leads, by this hub's clock: theirs may differ
	listeners []func(fleet.ClusterName)
	witnesses []func(fleet.ClusterName)
}

// held is a session that has not ended.
type held struct {
	hub   string
	began time.Time
}

// New takes stock of the store.
func New(o Options) (*Peers, error) {
	if o.Store == nil || o.Local == nil || o.Instance == "" || o.Log == nil {
		return nil, fmt.Errorf("peers: Store, Local, Instance and Log are required")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	p := &Peers{o: o, hubs: map[string]*storev1.HubRecord{}, held: map[fleet.ClusterName]held{}, lost: map[fleet.ClusterName]time.Time{}, leads: map[string]time.Time{}, owed: newOwed()}
	p.lines.open = map[string]line{}
	if o.Dialer != nil {
		p.sub = o.Store.Subscribe(p.takeStock, store.PeerPrefix, store.SessionPrefix)
	}
	return p, nil
}

// takeStock reads all hubs and sessions.
func (p *Peers) takeStock(r store.Reader) {
	store.Scan(r, store.PeerPrefix, func(h *storev1.HubRecord, _ store.Entry) bool {
		p.hubs[h.GetInstance()] = h
		p.compareVersion(h)
		if at, now := h.GetLeads().AsTime(), p.o.Now(); h.GetLeads() != nil {
			p.leads[h.GetInstance()] = now
			if at.Before(now) {
				p.leads[h.GetInstance()] = at
			}
		}
		return true
	})
	store.Scan(r, store.SessionPrefix, func(s *storev1.SessionRecord, e store.Entry) bool {
		if h, is := p.elsewhere(s); is {
			p.held[fleet.ClusterName(strings.TrimPrefix(e.Key, store.SessionPrefix))] = h
		}
		return true
	})
}

// elsewhere is the session as another hub holds it; false: it has ended, or is this hub's.
func (p *Peers) elsewhere(s *storev1.SessionRecord) (held, bool) {
	if s.GetHub() == "" || s.GetHub() == p.o.Instance || s.GetEnded() != nil {
		return held{}, false
	}
	return held{hub: s.GetHub(), began: s.GetStarted().AsTime()}, true
}

// OnChange registers fn to be called when an agent at another hub connects or is lost. fn must not block. Call it before Run.
func (p *Peers) OnChange(fn func(fleet.ClusterName)) { p.listeners = append(p.listeners, fn) }

// OnConnected registers fn to be called in the moment in which Connected begins to say something else of a cluster at another hub. fn
// must neither block nor ask anything here. Call it before Run.
func (p *Peers) OnConnected(fn func(fleet.ClusterName)) { p.witnesses = append(p.witnesses, fn) }

// Run follows the store, and tells again what the hub that leads has not heard, until ctx ends.
func (p *Peers) Run(ctx context.Context) error {
	if p.sub == nil {
		p.owed.run(ctx)
		return nil
	}
	telling, cancel := context.WithCancel(ctx)
	var told sync.WaitGroup
	told.Go(func() { p.owed.run(telling) })
	defer told.Wait()
	defer cancel()
	defer p.sub.Stop()
	defer p.lines.closeAll()
	var damaged bool
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-p.sub.C():
			if !ok {
				return fmt.Errorf("peers: the store closed")
			}
			keys, rev := p.sub.Take()
			if err := p.o.Store.View(ctx, rev, func(r store.Reader) error {
				p.follow(r, keys)
				damaged = store.DamageOf(r, store.PeerKey(p.o.Instance)) != nil
				return nil
			}); err != nil && ctx.Err() == nil {
				return fmt.Errorf("peers: %w", err)
			}
			if damaged { // its lease lives, and the other hubs take this one for gone
				p.o.Announce(ctx, p.leadsSince())
			}
		}
	}
}

// follow takes over what has changed, and tells whom it concerns.
func (p *Peers) follow(r store.Reader, keys []string) {
	p.mu.Lock()
	changed := map[fleet.ClusterName]bool{}
	for _, k := range keys {
		if instance, is := strings.CutPrefix(k, store.PeerPrefix); is {
			h, _, _ := store.Get[*storev1.HubRecord](store.Untracked(r), k)
			p.meet(instance, h, changed)
			continue
		}
		s, _, _ := store.Get[*storev1.SessionRecord](store.Untracked(r), k)
		p.note(fleet.ClusterName(strings.TrimPrefix(k, store.SessionPrefix)), s, changed)
	}
	for c := range changed {
		for _, fn := range p.witnesses {
			fn(c)
		}
	}
	p.mu.Unlock()
	for c := range changed {
		for _, fn := range p.listeners {
			fn(c)
		}
	}
}

// meet notes that a hub lives, or with nil that it does not. The caller holds mu.
func (p *Peers) meet(instance string, h *storev1.HubRecord, changed map[fleet.ClusterName]bool) {
	before, lived := p.hubs[instance]
	switch {
	case h.GetLeads() == nil:
		delete(p.leads, instance)
	case !proto.Equal(before.GetLeads(), h.GetLeads()):
		p.leads[instance] = p.o.Now()
		p.compare(instance, h.GetLeads().AsTime())
	}
	if h != nil {
		p.hubs[instance] = h
	} else {
		delete(p.hubs, instance)
	}
	if lived == (h != nil) {
		return
	}
	if instance != p.o.Instance {
		p.o.Log.Info("another hub of this store came or went", "instance", instance, "there", h != nil, "address", h.GetAddress())
		p.compareVersion(h)
	}
	if h == nil {
		p.lines.close(instance)
	}
	for c, x := range p.held {
		if x.hub != instance {
			continue
		}
		if h == nil {
			p.lost[c] = p.o.Now()
		}
		changed[c] = true
	}
}

// clocksDiffer is from when on it matters by how much the clocks of two hubs do.
const clocksDiffer = time.Minute

// compare says that the clock of a hub is ahead of this one's: it says that it leads since a time that is still to come. One that is behind looks
// like one that was heard late.
func (p *Peers) compare(instance string, leads time.Time) {
	if ahead := leads.Sub(p.o.Now()).Round(time.Second); instance != p.o.Instance && ahead >= clocksDiffer {
		p.o.Log.Warn("the clock of the hub that leads is ahead of this hub's: keep both in step, for what begins by one of them ends too soon or too late by the other", "instance", instance, "ahead", ahead)
	}
}

// compareVersion says that a hub that lives is of another version than this one.
func (p *Peers) compareVersion(h *storev1.HubRecord) {
	if h != nil && h.GetInstance() != p.o.Instance && h.GetVersion() != p.o.Version {
		p.o.Log.Warn("another hub of this store is of another version: the older of the two does not know what the newer one has noted, so have all be of one",
			"instance", h.GetInstance(), "address", h.GetAddress(), "version", h.GetVersion(), "own", p.o.Version)
	}
}

// note takes over the session of a cluster. The caller holds mu.
func (p *Peers) note(c fleet.ClusterName, s *storev1.SessionRecord, changed map[fleet.ClusterName]bool) {
	before, was := p.held[c]
	now, is := p.elsewhere(s)
	if was == is && before == now {
		return
	}
	if is {
		p.held[c] = now
	} else {
		delete(p.held, c)
	}
	if s == nil {
		delete(p.lost, c) // the cluster is forgotten
	} else if was && p.hubs[before.hub] != nil && !is {
		if _, lostBefore := p.lost[c]; !lostBefore || p.o.Now().Sub(before.began) >= p.o.Lasting {
			p.lost[c] = p.o.Now()
		}
	}
	changed[c] = true
}

// holder is the other hub that lives and holds the stream of a cluster; nil: none does.
func (p *Peers) holder(c fleet.ClusterName) *storev1.HubRecord {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, ok := p.held[c]
	if !ok {
		return nil
	}
	return p.hubs[x.hub]
}

// Connected reports whether any hub holds a live session of the cluster's agent.
func (p *Peers) Connected(c fleet.ClusterName) bool {
	return p.o.Local.Connected(c) || p.holder(c) != nil
}

// Lost is when a session of the cluster ended last, here or with another hub, as far as this hub saw it; zero: none did.
func (p *Peers) Lost(c fleet.ClusterName) time.Time {
	here := p.o.Local.Lost(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	if there := p.lost[c]; there.After(here) {
		return there
	}
	return here
}

// LastSeen is when the agent was last heard of, if its stream is here.
func (p *Peers) LastSeen(c fleet.ClusterName) (time.Time, bool) { return p.o.Local.LastSeen(c) }

// Started is from when on agents are given time to come back: since this hub serves, or the hub that leads leads.
func (p *Peers) Started() time.Time {
	started := p.o.Local.Started()
	if p.sub == nil {
		return started
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch h := p.leader(); {
	case !p.led.IsZero():
		started = p.led
	case h != nil:
		started = p.leads[h.GetInstance()]
	}
	return started
}

// leader is the other hub that says that it leads, the latest to say so; nil: none does. The caller holds mu.
func (p *Peers) leader() *storev1.HubRecord {
	var found *storev1.HubRecord
	for instance, since := range p.leads {
		if instance != p.o.Instance && (found == nil || since.After(p.leads[found.GetInstance()])) {
			found = p.hubs[instance]
		}
	}
	return found
}

// Leads says since when this hub leads; zero: it does not.
func (p *Peers) Leads(since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.led = since
}

func (p *Peers) leadsSince() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.led
}

// Addresses are where agents may dial the hubs that live; nil: this hub shares its store with nobody.
func (p *Peers) Addresses() []string {
	if p.sub == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, h := range p.hubs {
		out = append(out, h.GetAdvertise()...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
