// Package reach owns the judgement whether the agent sees its cluster. It lives on signs of the API server that others
// hear; it must not ask the server itself, nor know what is in the cluster.
package reach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"time"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

// Conditions are where the judgement is told.
type Conditions interface {
	Set(fleet.Condition)
	Clear(fleet.ConditionType)
}

// Eyes are what looks at the cluster.
type Eyes interface {
	// Behind reports that something which should be watched is not, so that what is known of it may be old.
	Behind() bool
	// Reached says that the API server answers again after it did not: what it could not do for that is tried again.
	Reached()
}

// Options are what a Monitor needs. Conditions is required.
type Options struct {
	Conditions Conditions
	// Patience is how long the API server may fail to answer before it counts as not reached; 25 s by default. A restart
	// of it, a change of etcd's leader, or a request that is lost is over by then, and people see the rest within 40 s.
	Patience time.Duration
	// Settle is how long the watches have to begin anew when the server answers again; 15 s by default. What is not watched
	// by then is said to be unknown by itself.
	Settle time.Duration
	// Log defaults to a logger that drops everything.
	Log *slog.Logger
}

// Monitor is safe for concurrent use.
type Monitor struct {
	o     Options
	signs chan struct{}
	again chan struct{}

	mu    sync.Mutex
	heard time.Time // when the API server last did what it was asked
	fault error     // why it did not since; nil: it was not asked
	blind bool
	told  string // the reason for which it is
}

// New makes a Monitor that has just heard the API server.
func New(o Options) *Monitor {
	if o.Patience <= 0 {
		o.Patience = 25 * time.Second
	}
	if o.Settle <= 0 {
		o.Settle = 15 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Monitor{o: o, signs: make(chan struct{}, 1), again: make(chan struct{}, 1), heard: time.Now()}
}

// Heard takes a sign of the API server: nil if it did what it was asked, else why not. It returns at once.
func (m *Monitor) Heard(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && m.fault != nil {
		dirty.Poke(m.again)
	}
	m.fault = err
	if err == nil {
		m.heard = time.Now()
	}
	if m.blind {
		m.signal()
	}
}

// Again carries a signal when the API server does what it is asked after it did not, also where that was too short to count as not reached:
// whoever waits to write to it again need not wait longer. There is one taker.
func (m *Monitor) Again() <-chan struct{} { return m.again }

// Reachable reports that the cluster is seen, or was a moment ago.
func (m *Monitor) Reachable() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.blind
}

func (m *Monitor) signal() {
	dirty.Poke(m.signs)
}

// Run judges until the context ends. It begins as if the API server had just been heard.
func (m *Monitor) Run(ctx context.Context, eyes Eyes) error {
	m.set(false)
	m.Heard(nil)
	for m.awaitSilence(ctx) {
		m.set(true)
		if !m.awaitAnswer(ctx, eyes) {
			break
		}
		m.set(false)
		eyes.Reached()
	}
	return nil
}

// awaitSilence returns true when the API server has not been heard for too long.
func (m *Monitor) awaitSilence(ctx context.Context) bool {
	for {
		left := m.o.Patience - m.silence()
		if left <= 0 {
			return true
		}
		if backoff.Wait(ctx, left) != nil {
			return false
		}
	}
}

// silence is for how long the API server has not been heard.
func (m *Monitor) silence() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.heard)
}

const (
	// settlePoll is how often the watches are looked at while they begin anew.
	settlePoll = 100 * time.Millisecond
	settleTime = time.Second
)

// awaitAnswer returns true when the API server is heard again, and what it knows was read anew.
func (m *Monitor) awaitAnswer(ctx context.Context, eyes Eyes) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-m.signs:
		}
		if m.silence() >= m.o.Patience {
			m.set(true) // it may be for another reason by now
			continue
		}
		for began := time.Now(); eyes.Behind() && time.Since(began) < m.o.Settle; {
			if backoff.Wait(ctx, settlePoll) != nil {
				return false
			}
		}
		if backoff.Wait(ctx, settleTime) != nil { // what the watches brought is looked at, and told, first
			return false
		}
		if m.silence() < m.o.Patience {
			return true
		}
	}
}

// set tells the judgement.
func (m *Monitor) set(blind bool) {
	m.mu.Lock()
	c := describe(m.fault)
	c.Since = m.heard
	was, said := m.blind, m.told
	m.blind, m.told = blind, c.Reason
	m.mu.Unlock()
	if blind {
		m.o.Conditions.Set(c)
		if was && said == c.Reason {
			return
		}
		m.o.Log.Warn("the cluster is not seen; what is reported of it is as last seen", "since", c.Since, "reason", c.Reason, "error", c.Message)
		return
	}
	m.o.Conditions.Clear(c.Type)
	if was {
		m.o.Log.Info("the cluster is seen again")
	}
}

// describe is the condition for a fault. A server that was not even asked hangs, for what asks it waits for its answer.
func describe(fault error) fleet.Condition {
	c := fleet.Condition{Type: fleet.ConditionAPIServerReachable, Status: fleet.ConditionFalse}
	status := kube.StatusOf(fault)
	var timeout net.Error
	var at *url.Error
	if errors.As(fault, &at) {
		fault = at.Err
	}
	switch {
	case status != nil && kube.Is(fault, kube.Unauthorized, kube.Forbidden):
		c.Reason, c.Message = "Refused", fmt.Sprintf("the API server refuses the agent: %s", status.Message)
	case status != nil && kube.Is(fault, kube.Stranger):
		c.Reason, c.Message = "Unavailable", kube.ByStranger(status)
	case status != nil:
		c.Reason, c.Message = "Unavailable", fmt.Sprintf("the API server does not do its work: %s", status.Message)
	case fault == nil, errors.As(fault, &timeout) && timeout.Timeout(), errors.Is(fault, context.DeadlineExceeded):
		c.Reason, c.Message = "NoAnswer", "the API server does not answer in time"
	default:
		c.Reason, c.Message = "NotReached", fmt.Sprintf("the API server is not reached: %v", fault)
	}
	return c
}
