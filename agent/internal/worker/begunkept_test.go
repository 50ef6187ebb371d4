package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// choosy is a state that refuses to write one thing.
type choosy struct {
	State
	name    string
	refuses *atomic.Bool
}

func (c choosy) Write(ctx context.Context, name string, data []byte) error {
	if name == c.name && c.refuses.Load() {
		return errors.New("the server is currently unable to handle the request")
	}
	return c.State.Write(ctx, name, data)
}

// TestWhatIsBegunIsKeptWhenTheStateTakesItAgain: the state refuses the note that a revision, or a wave, is begun, as while an API server starts. It is
// noted when the state takes it again, so that a restart of the agent after that has nothing wait which is begun.
func TestWhatIsBegunIsKeptWhenTheStateTakesItAgain(t *testing.T) {
	for _, name := range []string{begunName, wavesName} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var refuses atomic.Bool
			r.stop()
			r.options = append(r.options, func(o *Options) { o.State = choosy{o.State, name, &refuses} })
			r.start()
			base := r.gated(r.bundle("base", nil, gate("db", "1")))
			shop := r.bundle("shop", nil, configMap("a", "k: one"))
			shop.DependsOn = moduleOf("base")
			if name == wavesName {
				shop = r.inWaves("shop", 1, gate("db", "1"), inWave("1", configMap("a", "k: one")), inWave("1", gate("late", "1")),
					inWave("2", configMap("z", "k: one")))
				base = r.bundle("base", nil, configMap("b", "k: v"))
			}
			base.Revision, shop.Revision = 1, 1
			r.set([]fleet.Sync{base, shop})
			r.awaits("shop", map[string]string{begunName: "AwaitingDependency", wavesName: "AwaitingWave"}[name], "")
			r.eventually("the gate is there", func() bool { return r.get("v1", "services", "db") != nil })
			refuses.Store(true)
			r.sets("db", "1")
			r.eventually("begun", func() bool { return r.keyOf("a") == "one" })
			refuses.Store(false)
			is := map[string]*begun{begunName: r.m.begun, wavesName: r.m.waves}[name].what(shop.Module)
			r.eventually("it is noted: "+is, func() bool {
				after := newBegun(name) // as after a restart
				return is != "" && after.load(t.Context(), r.store, slog.New(slog.DiscardHandler)) == nil && after.what(shop.Module) == is
			})
		})
	}
}

// TestWhatEndsIsForgottenWhenTheStateTakesItAgain: the same of a module that goes, also where nobody tries again before the agent ends.
func TestWhatEndsIsForgottenWhenTheStateTakesItAgain(t *testing.T) {
	for _, ends := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var refuses atomic.Bool
			store, quiet := newMemory(), slog.New(slog.DiscardHandler)
			in, ref := choosy{store, begunName, &refuses}, fleet.ModuleRef{Project: "default", Name: "shop"}
			b := newBegun(begunName)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go b.keep(ctx, in)
			if err := b.note(ctx, in, ref, "1"); err != nil {
				t.Fatal(err)
			}
			refuses.Store(true)
			if err := b.forget(ctx, in, ref); err == nil {
				t.Fatal("it is said to be noted")
			}
			synctest.Wait()
			refuses.Store(false)
			if ends {
				cancel()
				synctest.Wait()
			}
			<-time.After(2 * begunRetry) // of the bubble
			synctest.Wait()
			again := newBegun(begunName)
			if err := again.load(t.Context(), in, quiet); err != nil || again.what(ref) != "" {
				t.Errorf("%q is noted, %v", again.what(ref), err)
			}
		})
	}
}
