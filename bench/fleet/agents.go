package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// beat is the time between heartbeats, as the hub tells real agents.
const beat = 10 * time.Second

// patience is how long anything may take that all agents are to do.
const patience = 5 * time.Minute

// crowd is the child that is many agents.
type crowd struct {
	agents []*member
	muted  atomic.Bool
}

type member struct {
	*simagent.Agent
	revision atomic.Int64 // of the newest module that it has taken
	marked   int64        // sessions that it had when that was marked
}

func newAgents() func(words []string) (string, error) {
	c := &crowd{}
	return func(words []string) (string, error) {
		switch words[0] {
		case "join":
			return c.join(words[1], words[2])
		case "mute":
			c.muted.Store(true)
			return "muted", nil
		case "report":
			return c.report()
		case "took":
			revision, err := strconv.ParseInt(words[1], 10, 64)
			if err != nil {
				return "", err
			}
			return c.await("took the revision", func(m *member) bool { return m.revision.Load() >= revision })
		case "acked":
			revision, err := strconv.ParseInt(words[1], 10, 64)
			if err != nil {
				return "", err
			}
			return c.await("was acknowledged", func(m *member) bool { return m.revision.Load() >= revision && m.Acked() })
		case "mark":
			for _, m := range c.agents {
				m.marked = m.Sessions.Load()
			}
			return "marked", nil
		case "back":
			return c.await("is back", func(m *member) bool { return m.Sessions.Load() > m.marked })
		case "sent":
			return c.sent(), nil
		}
		return "", fmt.Errorf("agents do not know %q", words[0])
	}
}

// join joins an agent for each token of a file, and returns when each has a session.
func (c *crowd) join(hub, file string) (string, error) {
	tokens, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var g errgroup.Group
	g.SetLimit(16)
	var mu sync.Mutex
	for token := range strings.FieldsSeq(string(tokens)) {
		g.Go(func() error {
			name, token, _ := strings.Cut(token, "=")
			id, err := simagent.Join(context.Background(), hub, token, "uid-"+name)
			if err != nil {
				return err
			}
			m := &member{}
			m.Agent = simagent.New(simagent.Options{Hub: hub, Identity: id, Keep: true, Beat: beat, Reconnect: 200 * time.Millisecond, MaxReconnect: fleet.MaxReconnect, Took: m.took, Report: c.says})
			go func() { _ = m.Run(context.Background()) }() // ends with the process
			mu.Lock()
			defer mu.Unlock()
			c.agents = append(c.agents, m)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	return c.await("has a session", func(m *member) bool { return m.Sessions.Load() > 0 })
}

func (m *member) took(a fleet.Assemblage) {
	for _, s := range a.Syncs {
		m.revision.Store(max(m.revision.Load(), s.Revision))
	}
}

// says is ready at once, or nothing while the agents are muted.
func (c *crowd) says(s fleet.Sync) fleet.SyncStatus {
	if c.muted.Load() {
		return fleet.SyncStatus{}
	}
	return simagent.Ready(s)
}

// report has all agents tell what they have.
func (c *crowd) report() (string, error) {
	c.muted.Store(false)
	for _, m := range c.agents {
		if err := m.Again(); err != nil {
			return "", err
		}
	}
	return "reported", nil
}

// await waits until something is so of every agent.
func (c *crowd) await(what string, is func(*member) bool) (string, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for i := 0; i < len(c.agents); {
		if is(c.agents[i]) {
			i++
			continue
		}
		if time.Since(began) > patience {
			return "", fmt.Errorf("not every agent of %d %s", len(c.agents), what)
		}
		<-tick.C
	}
	return "all", nil
}

// sent is what the hub has sent to all of them: indexes, moves and contents.
func (c *crowd) sent() string {
	var n int64
	for _, m := range c.agents {
		n += m.Indexes.Load() + m.Moves.Load() + m.Contents.Load()
	}
	return strconv.FormatInt(n, 10)
}
