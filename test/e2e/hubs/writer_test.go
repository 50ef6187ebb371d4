package hubs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

// writer puts one module, again and again, with a number that grows, at any hub.
type writer struct {
	w      *world
	name   string
	random *rand.Rand
	// attempted is the number that was put last, and acked the one that was acknowledged last.
	attempted, acked int
}

const (
	callTimeout    = 10 * time.Second
	rolloutTimeout = 30 * time.Second
	// badTimeout is how long a writer waits for the end of a rollout that can only fail, before it puts the next.
	badTimeout = 3 * time.Second
)

// write goes on until the time is up.
func (x *writer) write(ctx context.Context) {
	for ctx.Err() == nil {
		revision, err := x.put(ctx)
		switch {
		case errors.Is(err, fleet.ErrInvalid):
			x.w.t.Errorf("module %s is refused: %v", x.name, err)
			return
		case err != nil:
			x.w.did("writes of unknown outcome")
		case x.random.IntN(2) == 0:
			x.await(ctx, revision)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(x.random.IntN(1500)) * time.Millisecond):
		}
	}
}

func (x *writer) any() *client.Client { return x.w.clients[x.random.IntN(len(x.w.clients))] }

// put puts the next number, and reads it back at any hub when it was acknowledged.
func (x *writer) put(ctx context.Context) (int64, error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	x.attempted++
	got, err := x.any().Modules.PutModule(call, &v1.PutModuleRequest{Module: module(x.name, x.attempted)})
	if err != nil {
		return 0, err
	}
	x.acked = x.attempted
	x.w.did("writes acknowledged")
	read, err := x.any().Modules.GetModule(call, &v1.GetModuleRequest{Name: x.name, MinRevision: got.GetRevision()})
	if err != nil {
		return got.GetRevision(), nil // that hub is away
	}
	if n := numberOf(read.GetModule()); n != x.acked {
		x.w.t.Errorf("module %s: %d was acknowledged at revision %d, and %d is read", x.name, x.acked, got.GetRevision(), n)
	}
	x.w.did("writes read at once")
	return got.GetRevision(), nil
}

// await waits for the end of a rollout, for a while.
func (x *writer) await(ctx context.Context, revision int64) {
	limit := rolloutTimeout
	if strings.HasPrefix(x.name, badPrefix) {
		limit = badTimeout
	}
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	st, err := x.any().Rollouts.WatchRollout(call, &v1.WatchRolloutRequest{Module: x.name, MinRevision: revision})
	for err == nil {
		var m *v1.WatchRolloutResponse
		if m, err = st.Recv(); err != nil || !m.GetEnded() {
			continue
		}
		state := m.GetRollout().GetStatus().GetState()
		if state == "Succeeded" && strings.HasPrefix(x.name, badPrefix) {
			x.w.t.Errorf("rollout %s, which fails in every canary, has succeeded: %v", m.GetRollout().GetId(), m.GetRollout().GetStatus())
		}
		x.w.did("rollouts " + strings.ToLower(state))
		return
	}
}

// module has the canaries first.
func module(name string, n int) *v1.Module {
	return &v1.Module{Metadata: &v1.Metadata{Name: name}, Spec: &v1.ModuleSpec{
		Source: &v1.Source{Inline: &v1.InlineSource{Files: map[string]string{
			"a.yaml": fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: default}\ndata: {count: \"%d\"}\n", name, n)}}},
		Placement: &v1.Placement{Selector: &v1.LabelSelector{}},
		Rollout: &v1.RolloutStrategy{Stages: []*v1.Stage{
			{Name: "canary", Selector: &v1.LabelSelector{MatchLabels: map[string]string{"ring": "canary"}}}, {Name: "rest", MaxConcurrency: "50%"}}},
	}}
}

var number = regexp.MustCompile(`count: "(\d+)"`)

// numberOf is what was put; 0: nothing of it is there.
func numberOf(m *v1.Module) int {
	found := number.FindStringSubmatch(m.GetSpec().GetSource().GetInline().GetFiles()["a.yaml"])
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		return 0
	}
	return n
}
