package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"towline.dev/towline/test/lab"
	"towline.dev/towline/test/lab/measure"
)

// row is one figure beside its reference.
type row struct {
	goal, what string
	hub, bare  string // as people read them
	got, limit float64
	// bound is what fails the run: the goal where it is met, else what it is now with room for the machine.
	bound float64
}

// part is one measurement of a fleet that is joined.
type part struct {
	name string
	run  func(context.Context, *world, int, options) ([]row, error)
}

func measureFleet(ctx context.Context, n int, o options) ([]row, error) {
	fmt.Printf("%d agents, load average %s\n", n, measure.Load())
	w, err := newWorld(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.close() }() // what matters is measured
	var rows []row
	for _, p := range chosen(o.only) {
		began := time.Now()
		if err := w.profile("begin", n, p.name, o); err != nil {
			return nil, err
		}
		got, err := p.run(ctx, w, n, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		if err := w.profile("end", n, p.name, o); err != nil {
			return nil, err
		}
		fmt.Printf("  %s measured in %v\n", p.name, time.Since(began).Round(100*time.Millisecond))
		rows = append(rows, got...)
	}
	return rows, nil
}

// chosen are the parts that are asked for.
func chosen(only string) []part {
	all := []part{{"memory", memory}, {"rest", rest}, {"change", change}, {"stopped", stopped}, {"commit", commit}, {"restart", restart}, {"start", starts}}
	if only == "" {
		return all
	}
	names := strings.Split(only, ",")
	return slices.DeleteFunc(all, func(p part) bool { return p.name != "memory" && !slices.Contains(names, p.name) })
}

// profile has the hub begin or end the profiles of a part, if they are asked for.
func (w *world) profile(word string, n int, part string, o options) error {
	if o.profile == "" {
		return nil
	}
	_, err := w.hub.ask("%s %s", word, filepath.Join(o.profile, fmt.Sprintf("%s-%d", part, n)))
	return err
}

func kb(bytes float64, n int) string { return fmt.Sprintf("%.1f KB", bytes/float64(n)/1024) }
func mb(bytes float64) string        { return fmt.Sprintf("%.0f MB", bytes/(1<<20)) }
func each(d time.Duration, n int) string {
	return fmt.Sprintf("%.1f µs", float64(d.Nanoseconds())/float64(n)/1000)
}
func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// memory joins one half of the agents, then the other, and opens as many bare streams.
func memory(ctx context.Context, w *world, n int, _ options) ([]row, error) {
	var hub [3]float64
	for i, to := range []int{0, n / 2, n} {
		if to > 0 {
			if err := w.join(ctx, []int{0, 0, n / 2}[i], to); err != nil {
				return nil, err
			}
		}
		var err error
		if hub[i], err = w.hub.memory(); err != nil {
			return nil, err
		}
	}
	base, err := w.bare.memory()
	if err != nil {
		return nil, err
	}
	if _, err := w.dialer.ask("streams %s %d", w.bareAt, n); err != nil {
		return nil, err
	}
	with, err := w.bare.memory()
	if err != nil {
		return nil, err
	}
	ours, theirs := hub[2]-hub[0], with-base
	return []row{
		{"G1", "memory an agent, over a stock gRPC stream", kb(ours, n), kb(theirs, n), ours / theirs, 0.95, 2.8},
		{"G17", "memory of the hub, over that with half of the agents", mb(hub[2]), mb(hub[1]), hub[2] / hub[1], 2.1, 2.1},
	}, nil
}

// rest watches the fleet and the bare streams at the same time while nothing but heartbeats goes.
func rest(ctx context.Context, w *world, n int, o options) ([]row, error) {
	if _, err := w.dialer.ask("beat"); err != nil {
		return nil, err
	}
	if err := w.settled(ctx); err != nil {
		return nil, err
	}
	wrote, err := w.revision(ctx)
	if err != nil {
		return nil, err
	}
	var ours, theirs time.Duration
	took, err := spent(w.hub, &ours, func() error {
		_, err := spent(w.bare, &theirs, func() error {
			select {
			case <-time.After(o.window):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	now, err := w.revision(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := w.dialer.ask("rest"); err != nil {
		return nil, err
	}
	core := func(d time.Duration) float64 { return 100 * ratio(d, took) }
	return []row{
		{"G16", "CPU at rest, over bare heartbeats", fmt.Sprintf("%.2f %%", core(ours)), fmt.Sprintf("%.2f %%", core(theirs)), ratio(ours, theirs), 3, 3},
		{"G17", "percent of a core at rest for 10,000", fmt.Sprintf("%.2f %%", core(ours)), "", core(ours) * 10_000 / float64(n), 5, 60},
		{"G16", "store writes at rest", fmt.Sprint(now - wrote), "0", float64(now - wrote), 0, 0},
	}, nil
}

// spent is what a process uses while something is done.
func spent(p *process, used *time.Duration, do func() error) (took time.Duration, err error) {
	before, err := p.cpu()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return 0, err
	}
	took = time.Since(began)
	after, err := p.cpu()
	*used = after - before
	return took, err
}

// size of a change to all agents; its text does not compress to much less.
const size = 20 << 10

func text() string {
	raw := make([]byte, size*3/4)
	_, _ = rand.Read(raw) // never fails
	return base64.StdEncoding.EncodeToString(raw)
}

// rawAtMost is how many raw connections there are: each is an open file of two processes that have one for each stream, too. The CPU of
// more is taken to be as much more.
const rawAtMost = 5000

// change sends a change to all agents, then has all of them report it, in turns with as many raw writes, and as many bare reports
// that are put one by one.
func change(ctx context.Context, w *world, n int, o options) ([]row, error) {
	dialed := min(n, rawAtMost)
	if _, err := w.dialer.ask("raw %s %d", w.rawAt, dialed); err != nil {
		return nil, err
	}
	var out, in, raw, puts, walls []time.Duration
	for i := range o.rounds + 1 {
		c, err := oneChange(ctx, w, i)
		if err != nil {
			return nil, err
		}
		if i > 0 { // the first is for warming up
			out, in, raw, puts, walls = append(out, c.out), append(in, c.in), append(raw, c.raw), append(puts, c.puts), append(walls, c.wall)
		}
	}
	sent, received, writes, reports, wall := measure.Median(out), measure.Median(in), measure.Median(raw), measure.Median(puts), measure.Median(walls)
	writes = writes * time.Duration(n) / time.Duration(dialed)
	allowed := writes*16/10 + reports*3/10
	return []row{
		{"G2", "CPU of 20 KB to all, over raw TLS writes", each(sent, n), each(writes, n), ratio(sent, writes), 1.6, 40},
		{"G2", "seconds until 10,000 have it", fmt.Sprint(wall.Round(time.Millisecond)), "", wall.Seconds() * 10_000 / float64(n), 1, 20},
		{"G3", "CPU of a report, over receive and put", each(received, n), each(reports, n), ratio(received, reports), 0.3, 4},
		{"G2+G3", "both, over what both goals allow", each(sent+received, n), each(allowed, n), ratio(sent+received, allowed), 1, 20},
	}, nil
}

type changed struct{ out, in, raw, puts, wall time.Duration }

func oneChange(ctx context.Context, w *world, i int) (c changed, err error) {
	if err := w.all("mute"); err != nil {
		return c, err
	}
	var revision int64
	if c.wall, err = spent(w.hub, &c.out, func() error {
		var err error
		if revision, err = w.change(ctx); err != nil {
			return err
		}
		return w.all("took %d", w.shop)
	}); err != nil {
		return c, err
	}
	if _, err = spent(w.hub, &c.in, func() error {
		if err := w.all("report"); err != nil {
			return err
		}
		return w.succeeded(ctx, "shop", revision)
	}); err != nil {
		return c, err
	}
	if _, err = spent(w.bare, &c.raw, func() error {
		if _, err := w.bare.ask("write %d", size); err != nil {
			return err
		}
		_, err := w.dialer.ask("read %d", size*(i+1))
		return err
	}); err != nil {
		return c, err
	}
	_, err = spent(w.bare, &c.puts, func() error {
		_, err := w.dialer.ask("status")
		return err
	})
	return c, err
}

// stopped changes what all agents have while one in ten is stopped, in turns with changes while none is.
func stopped(ctx context.Context, w *world, n int, o options) ([]row, error) {
	before, err := w.hub.memory()
	if err != nil {
		return nil, err
	}
	var with, without []time.Duration
	var during float64
	for range o.rounds {
		for _, some := range []bool{false, true} {
			if some {
				if err := w.few.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
					return nil, err
				}
			}
			took, err := w.reach(ctx)
			if err != nil {
				return nil, err
			}
			if some {
				if during, err = w.hub.memory(); err != nil {
					return nil, err
				}
				with = append(with, took)
				err = w.few.cmd.Process.Signal(syscall.SIGCONT)
			} else {
				without = append(without, took)
			}
			if err == nil {
				err = w.settled(ctx)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	a, b := measure.Median(with), measure.Median(without)
	return []row{
		{"G20", "a change for the others while one in ten is stopped", fmt.Sprint(a.Round(time.Millisecond)), fmt.Sprint(b.Round(time.Millisecond)), ratio(a, b), 1.1, 2},
		{"G20", "memory of the hub meanwhile, over that before", mb(during), mb(before), during / before, 1.05, 1.3},
	}, nil
}

// reach is how long a change takes until the agents of the first process have it and all that they say of it is durable.
func (w *world) reach(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	if _, err := w.change(ctx); err != nil {
		return 0, err
	}
	_, err := w.many.ask("acked %d", w.shop)
	return time.Since(began), err
}

// commit puts modules that are for no cluster, in turns with puts of as many bytes at the bare server.
func commit(ctx context.Context, w *world, n int, o options) ([]row, error) {
	const bytes = 1000
	var ours, puts, calls []time.Duration
	value := strings.Repeat("a", bytes)
	for i := range 10 * o.rounds {
		began := time.Now()
		if _, err := w.put(ctx, "nowhere", fmt.Sprintf("%s%d", value, i), false); err != nil {
			return nil, err
		}
		ours = append(ours, time.Since(began))
		for _, ref := range []struct {
			p    *process
			what string
			all  *[]time.Duration
		}{{w.bare, "puts", &puts}, {w.dialer, "calls", &calls}} {
			answer, err := ref.p.ask("%s 1 %d", ref.what, bytes)
			if err != nil {
				return nil, err
			}
			took, err := time.ParseDuration(answer)
			if err != nil {
				return nil, err
			}
			*ref.all = append(*ref.all, took)
		}
	}
	a, b, c := measure.Median(ours), measure.Median(puts), measure.Median(calls)
	short := func(d time.Duration) string { return fmt.Sprint(d.Round(10 * time.Microsecond)) }
	looked := max(1, float64(n)/3000) // a put looks at each cluster once: where is it to go?
	return []row{
		{"G5", "put of a module, over a put in the process", short(a), short(b), ratio(a, b), 2, 30 * looked},
		{"G5", "put of a module, over a put behind one call", short(a), short(c), ratio(a, c), 2, 20 * looked},
	}, nil
}

// restart kills the hub and has all agents come back to one that has started; then as many bare streams come.
func restart(ctx context.Context, w *world, n int, o options) ([]row, error) {
	sentBefore, err := w.sent()
	if err != nil {
		return nil, err
	}
	if err := w.all("mark"); err != nil {
		return nil, err
	}
	if err := w.signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	w.hub.kill()
	if err := w.startHub(ctx); err != nil {
		return nil, err
	}
	if err := w.profile("begin", n, "restart", o); err != nil { // what was begun has ended with the hub
		return nil, err
	}
	wrote, err := w.revision(ctx)
	if err != nil {
		return nil, err
	}
	opening, err := w.hub.cpu()
	if err != nil {
		return nil, err
	}
	var ours, theirs time.Duration
	took, err := spent(w.hub, &ours, func() error {
		if err := w.signal(syscall.SIGCONT); err != nil {
			return err
		}
		return w.all("back")
	})
	if err != nil {
		return nil, err
	}
	if err := w.settled(ctx); err != nil {
		return nil, err
	}
	now, errNow := w.revision(ctx)
	sent, errSent := w.sent()
	if errNow != nil || errSent != nil {
		return nil, fmt.Errorf("after the restart: %w, %w", errNow, errSent)
	}
	if _, err := w.dialer.ask("close"); err != nil {
		return nil, err
	}
	if _, err := spent(w.bare, &theirs, func() error {
		_, err := w.dialer.ask("streams %s %d", w.bareAt, n)
		return err
	}); err != nil {
		return nil, err
	}
	fmt.Printf("  the hub opened its store with %v CPU, and had all agents back after %v\n", opening.Round(time.Millisecond), took.Round(time.Millisecond))
	return []row{
		{"G4", "CPU of all back after SIGKILL, over bare mTLS connects", each(ours, n), each(theirs, n), ratio(ours, theirs), 1.3, 5},
		{"G4", "store writes a session", fmt.Sprint(now - wrote), fmt.Sprint(n), float64(now-wrote) / float64(n), 1, 1.1},
		{"G4", "contents and indexes sent", fmt.Sprint(sent - sentBefore), "0", float64(sent - sentBefore), 0, 0},
	}, nil
}

// signal goes to the processes of the agents.
func (w *world) signal(s syscall.Signal) error {
	for _, p := range []*process{w.many, w.few} {
		if err := p.cmd.Process.Signal(s); err != nil {
			return err
		}
	}
	return nil
}

// starts starts hubs with empty stores, until they answer, in turns with bare servers.
func starts(ctx context.Context, w *world, n int, o options) ([]row, error) {
	var ours, theirs []time.Duration
	for i := range 2 * o.rounds {
		took, err := startOnce(ctx, filepath.Join(w.dir, fmt.Sprintf("start-%d", i)))
		if err != nil {
			return nil, err
		}
		ours = append(ours, took)
		began := time.Now()
		var at [2]string
		for k := range at {
			if at[k], err = lab.FreeAddress(); err != nil {
				return nil, err
			}
		}
		b, err := start(ctx, "bare", filepath.Join(w.dir, fmt.Sprintf("bare-%d", i)), filepath.Join(w.dir, "bare.pem"), at[0], at[1])
		if err != nil {
			return nil, err
		}
		_, err = b.cpu()
		theirs = append(theirs, time.Since(began))
		b.kill()
		if err != nil {
			return nil, err
		}
	}
	a, b := measure.Median(ours), measure.Median(theirs)
	return []row{{"G21", "seconds from an empty store to the first answer", fmt.Sprint(a.Round(time.Millisecond)), fmt.Sprint(b.Round(time.Millisecond)), a.Seconds(), 0.3, 2}}, nil
}

// startOnce starts a hub in a new directory, and ends it when it has answered.
func startOnce(ctx context.Context, dir string) (time.Duration, error) {
	w := &world{dir: dir}
	for _, at := range []*string{&w.agentsAt, &w.peopleAt} {
		address, err := lab.FreeAddress()
		if err != nil {
			return 0, err
		}
		*at = address
	}
	began := time.Now()
	err := w.startHub(ctx)
	took := time.Since(began)
	if w.client != nil {
		w.client.Close()
	}
	if w.hub != nil {
		w.hub.kill()
	}
	return took, err
}
