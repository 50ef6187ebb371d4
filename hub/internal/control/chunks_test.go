package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// cutting is a store that takes some commits more, and then none.
type cutting struct {
	backend.Backend
	cut  atomic.Bool
	left atomic.Int64
}

var errCut = errors.New("the hub ended here")

func (c *cutting) Commit(ctx context.Context, parts []backend.Part) (int64, []bool, error) {
	if c.cut.Load() && c.left.Add(-1) < 0 {
		return 0, nil, errCut
	}
	return c.Backend.Commit(ctx, parts)
}

// Clusters join a rollout of so many that one transaction does not take all that a decision changes, and the hub ends between any two
// commits of it: the next one can read the rollout.
func TestRolloutOfManyIsReadableWhereverTheHubEnds(t *testing.T) {
	const room = inlineChunks * rollout.ChunkSize
	for name, tc := range map[string]struct{ planned, join int }{
		"a chunk is begun": {room, 1},
		"a chunk grows":    {room + 1, 1},
		"it is planned":    {room + 2*rollout.ChunkSize, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for commits, ended := 0, true; ended; commits++ {
				ended = manyJoin(t, tc.planned, tc.join, int64(commits))
			}
		})
	}
}

// Whatever a head refers to is there before it or with it, and what it refers to already grows with it.
func TestChunksOfAHeadAreThere(t *testing.T) {
	for stored := range 3 * inlineChunks {
		for total := stored; total < 3*inlineChunks; total++ {
			var changed []int
			for chunk := range total {
				changed = append(changed, chunk)
			}
			before, with, after := divide(changed, stored)
			if len(with) > inlineChunks || len(with)+len(after) != total {
				t.Fatalf("%d stored, %d in all: with %v, after %v", stored, total, with, after)
			}
			for _, chunk := range changed {
				there := slices.Contains(with, chunk)
				if chunk == stored-1 && !there || chunk >= stored && !there && !slices.Contains(before, chunk) {
					t.Fatalf("%d stored, %d in all: chunk %d is neither before nor with the head", stored, total, chunk)
				}
				if chunk < stored && slices.Contains(before, chunk) {
					t.Fatalf("%d stored, %d in all: chunk %d is changed before the head is", stored, total, chunk)
				}
			}
		}
	}
}

// manyJoin has clusters join a rollout that has some, and the hub end after some commits of that, or not.
func manyJoin(t *testing.T, planned, join int, commits int64) (ended bool) {
	b := &cutting{Backend: memory.New()}
	l := newLeaderOn(t, b)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Progressing)))
	})
	var all []rollout.Candidate
	for n := range planned {
		all = append(all, rollout.Candidate{Selected: true, Cluster: fleet.Cluster{Name: fleet.ClusterName(fmt.Sprintf("c%05d", n))}})
	}
	var run *rollouts.Run
	l.read(func(r store.Reader) {
		rec, _, _ := store.Get[*storev1.RolloutRecord](r, store.RolloutKey(shop, 1))
		var err error
		run, err = rollouts.Plan(r, shop, rec, all, nil)
		l.must(err)
	})
	run.Observed = make([]rollout.Observed, planned)
	for i := range run.Observed {
		run.Observed[i].Connected = true
	}
	decide := func() error {
		_, err := l.commit(t.Context(), run, rollout.Decide(run.Input(time.Now())))
		return err
	}
	if join > 0 {
		l.must(decide())
		for i := range run.Observed {
			run.Observed[i].Gone = true // which changes each
		}
		for n := range join {
			run.Newcomers = append(run.Newcomers, rollout.Newcomer{Cluster: fleet.Cluster{Name: fleet.ClusterName(fmt.Sprintf("d%05d", n))}})
		}
	}
	b.left.Store(commits)
	b.cut.Store(true)
	err := decide()
	b.cut.Store(false)
	if err != nil && !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	l.read(func(r store.Reader) {
		got, broken := rollouts.Load(r, shop, 1)
		if broken != nil {
			t.Fatalf("ended after %d commits (%v): %v", commits, err, broken)
		}
		if got == nil {
			return // it is not planned yet
		}
		for i := range got.State.Len(got.Plan) {
			if x := got.State.Record(i); x.State == rollout.ClusterProgressing && x.Generation == 0 {
				t.Fatalf("ended after %d commits (%v): %s is on its way to what nobody gave it", commits, err, got.State.Member(got.Plan, i).Cluster)
			}
		}
	})
	return errors.Is(err, errCut)
}
