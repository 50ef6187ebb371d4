package hubs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/test/lab"
)

// trouble is what was done to a process, until when.
type trouble struct {
	p      *lab.Process
	paused bool
	until  time.Time
}

// havoc kills and pauses hubs and members until the time is up, and then lets all of them run.
func (w *world) havoc(ctx context.Context) {
	random := rand.New(rand.NewPCG(w.seed, 1000))
	var troubles []*trouble
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	next := time.Now()
	for ctx.Err() == nil {
		troubles = w.heal(troubles, false)
		w.supervise(troubles)
		if time.Now().After(next) {
			if x := w.harm(random, troubles); x != nil {
				troubles = append(troubles, x)
			}
			next = time.Now().Add(500*time.Millisecond + time.Duration(random.IntN(4000))*time.Millisecond)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	w.heal(troubles, true)
}

// heal ends what has lasted long enough.
func (w *world) heal(troubles []*trouble, all bool) []*trouble {
	var left []*trouble
	for _, x := range troubles {
		switch {
		case !all && time.Now().Before(x.until):
			left = append(left, x)
		case x.paused:
			x.p.Resume()
		default:
			w.begin(x.p)
		}
	}
	return left
}

// begin starts a process that was killed or has ended.
func (w *world) begin(p *lab.Process) {
	if err := p.Start(); err != nil {
		w.t.Errorf("%s: %v", p.Name, err)
	}
}

// supervise starts what has ended by itself, as whatever runs hubs does.
func (w *world) supervise(troubles []*trouble) {
	for _, p := range w.processes() {
		if !p.Running() && find(troubles, p) == nil {
			w.did(kind(p) + " ended by itself")
			w.t.Logf("%s ended by itself: %s", p.Name, last(p.Tail()))
			w.begin(p)
		}
	}
}

func (w *world) processes() []*lab.Process {
	all := append([]*lab.Process{}, w.Members...)
	for _, h := range w.Hubs {
		all = append(all, h.Process)
	}
	return all
}

func find(troubles []*trouble, p *lab.Process) *trouble {
	for _, x := range troubles {
		if x.p == p {
			return x
		}
	}
	return nil
}

func kind(p *lab.Process) string {
	if strings.HasPrefix(p.Name, "etcd") {
		return "member"
	}
	return "hub"
}

func last(text string) string { return text[strings.LastIndexByte(text, '\n')+1:] }

// harm kills or pauses one process that runs. Mostly two members are left, which is what etcd needs, and sometimes one.
func (w *world) harm(random *rand.Rand, troubles []*trouble) *trouble {
	p := w.processes()[random.IntN(2*hubs)]
	down := 0
	for _, x := range troubles {
		if kind(x.p) == kind(p) {
			down++
		}
	}
	quorum := kind(p) == "member" && down == 1
	if find(troubles, p) != nil || down == 2 || quorum && random.IntN(4) > 0 {
		return nil
	}
	lasts := 200*time.Millisecond + time.Duration(random.IntN(12000))*time.Millisecond
	if quorum {
		lasts /= 3
		w.did("quorum lost")
	}
	x := &trouble{p: p, paused: random.IntN(2) == 0, until: time.Now().Add(lasts)}
	if x.paused {
		p.Pause()
		w.did(kind(p) + " paused")
	} else {
		p.Kill()
		w.did(kind(p) + " killed")
	}
	return x
}

// rest waits until every hub says of every module what was put last, that it is everywhere, and that its rollout has ended as it
// must.
func (w *world) rest(ctx context.Context) {
	began := time.Now()
	err := lab.PollFor(ctx, patience, func() error {
		w.supervise(nil)
		for i := range w.clients {
			for _, x := range w.writers {
				if err := w.settled(ctx, i, x); err != nil {
					return fmt.Errorf("%s: %w", w.Hubs[i].Name, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		w.t.Errorf("after %v: %v", time.Since(began).Round(time.Second), err)
	}
	w.t.Logf("at rest after %v", time.Since(began).Round(100*time.Millisecond))
}

// settled holds one module, as one hub has it, against what was put and what the agents have.
func (w *world) settled(ctx context.Context, hub int, x *writer) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	got, err := w.clients[hub].Modules.GetModule(ctx, &v1.GetModuleRequest{Name: x.name})
	if err != nil {
		return err
	}
	m := got.GetModule()
	if n := numberOf(m); n < x.acked || n > x.attempted {
		return lab.Final(fmt.Errorf("module %s has %d; %d was acknowledged, and %d put last", x.name, n, x.acked, x.attempted))
	}
	state, newest, err := w.rollout(ctx, hub, x.name)
	if err != nil {
		return err
	}
	if strings.HasPrefix(x.name, badPrefix) {
		if state == "Succeeded" {
			return lab.Final(fmt.Errorf("the rollout of %s, which fails in every canary, has succeeded", x.name))
		}
		if m.GetStatus().GetHealthy() > 0 {
			return lab.Final(fmt.Errorf("module %s is healthy in %d clusters, and fails in every canary", x.name, m.GetStatus().GetHealthy()))
		}
		if state != "Paused" {
			return fmt.Errorf("the rollout of %s, which fails in every canary, is %s", x.name, state)
		}
		if w.agents[0].has(x.name) != newest {
			return fmt.Errorf("the canaries have revision %d of %s, of %d", w.agents[0].has(x.name), x.name, newest)
		}
		return nil
	}
	if state != "Succeeded" || m.GetStatus().GetHealthy() != clusters {
		return fmt.Errorf("module %s: its rollout is %s, and it is healthy in %d of %d clusters", x.name, state, m.GetStatus().GetHealthy(), clusters)
	}
	for _, a := range w.agents {
		if a.has(x.name) != newest {
			return fmt.Errorf("cluster %s has revision %d of %s, of %d", a.name, a.has(x.name), x.name, newest)
		}
	}
	return nil
}

// rollout is the state of the newest one of a module, and the number of the revision that it brings.
func (w *world) rollout(ctx context.Context, hub int, module string) (string, int64, error) {
	got, err := w.clients[hub].Rollouts.ListRollouts(ctx, &v1.ListRolloutsRequest{Module: module})
	if err != nil {
		return "", 0, err
	}
	if len(got.GetRollouts()) == 0 {
		return "", 0, fmt.Errorf("module %s has no rollout", module)
	}
	newest := got.GetRollouts()[0]
	return newest.GetStatus().GetState(), newest.GetRevision(), nil
}
