package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/agent/internal/report"
	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/pkg/fleet"
)

// failing is a state whose writes fail.
type failing struct {
	state.Store
	mu     sync.Mutex
	err    error
	writes int
}

func (f *failing) Write(context.Context, string, []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	return f.err
}

func (f *failing) Remove(context.Context, string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// fail sets what writes answer from here on; tries is how many there were.
func (f *failing) fail(err error) (tries int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	return f.writes
}

func TestStateThatTakesNoWritesIsACondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, holds, excused := &failing{}, report.NewConditions(), false
		g := &guarded{Store: s, conditions: holds, excused: func() bool { return excused }, signs: make(chan struct{}, 1)}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.run(ctx) }()
		write := func(err error) {
			s.fail(err)
			_ = g.Write(ctx, "a", nil)
		}
		write(nil)
		write(fleet.Errorf(fleet.ErrStale, "an agent with a newer epoch has it"))
		if all := holds.All(); len(all) != 0 {
			t.Errorf("conditions %+v", all)
		}
		write(fmt.Errorf("state a: %w", syscall.ENOSPC))
		all := holds.All()
		if len(all) != 1 || all[0].Type != fleet.ConditionStateWritable || all[0].Status != fleet.ConditionFalse || all[0].Reason != "NoSpace" {
			t.Fatalf("conditions %+v", all)
		}
		full := fmt.Errorf("state a: %w", syscall.ENOSPC)
		before := s.fail(full)
		<-time.After(3 * probeEvery)
		synctest.Wait()
		if tries := s.fail(full) - before; tries < 2 || len(holds.All()) != 1 {
			t.Errorf("%d tries, conditions %+v", tries, holds.All())
		}
		s.fail(nil)
		<-time.After(probeEvery)
		synctest.Wait()
		if all := holds.All(); len(all) != 0 {
			t.Errorf("conditions of a state that takes writes again: %+v", all)
		}
		excused = true
		write(errors.New("the API server does not answer"))
		if all := holds.All(); len(all) != 0 {
			t.Errorf("conditions of what is told already: %+v", all)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
