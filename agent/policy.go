package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/agent/internal/worker"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
)

const (
	// policyEvery is how often the file is read. A ConfigMap is mounted by way of links that are swapped, and follows a minute
	// later, so that nothing is won by hearing of it sooner.
	policyEvery = 2 * time.Second
	// policyName is where the state says that there was a policy once.
	policyName = "policy"
)

// policyFile is the file that says what the cluster accepts. Neither hub nor agent writes it.
type policyFile struct {
	path string
	// optional: a file that was never there says that there is no policy.
	optional   bool
	conditions interface {
		Set(fleet.Condition)
		Clear(fleet.ConditionType)
	}
	log   *slog.Logger
	signs chan struct{} // for keep

	mu   sync.Mutex
	seen bool   // there was one
	text string // of the file, or why it cannot be read
	read bool
	is   worker.Accepts
	said [2]string // status and reason of the condition
	tell func(worker.Accepts)
}

// current is what the cluster accepts now, and from here on tell hears of it whenever that changes.
func (f *policyFile) current(tell func(worker.Accepts)) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tell = tell
	tell(f.is)
}

// accepts is what the cluster accepts now.
func (f *policyFile) accepts() worker.Accepts {
	if f == nil {
		return worker.Accepts{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.is
}

// mayRead says why people may not ask for something of the cluster by way of the hub. A policy that cannot be gone by may have said
// so of anything that it can say it of.
func (f *policyFile) mayRead(what string) error {
	switch is := f.accepts(); {
	case is.Broken != "" && localpolicy.MayDenyRead(what):
		return fleet.Errorf(fleet.ErrDenied, "the cluster's policy does not let %s be read: %s", what, is.Broken)
	case is.Policy != nil && is.Policy.DeniesRead(what):
		return fleet.Errorf(fleet.ErrDenied, "the cluster's policy does not let %s be read: denyReads", what)
	}
	return nil
}

// run follows the file.
func (f *policyFile) run(ctx context.Context) error {
	if f == nil {
		return nil
	}
	for {
		f.look(time.Now())
		if backoff.Wait(ctx, policyEvery) != nil {
			return nil
		}
	}
}

// look reads the file.
func (f *policyFile) look(now time.Time) {
	data, err := readPolicy(f.path)
	text := string(data)
	if err != nil {
		text = err.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && !f.seen {
		f.seen = true
		dirty.Poke(f.signs)
	}
	fresh := !f.read || text != f.text
	if f.read, f.text = true, text; fresh {
		f.take(data, err)
	}
	f.say(now, fresh)
}

// readPolicy reads no more than a policy may have.
func readPolicy(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, localpolicy.MaxBytes+1))
}

// take goes by what was read, or by nothing if that is not in order. f.mu is held.
func (f *policyFile) take(data []byte, err error) {
	is := worker.Accepts{}
	if err == nil {
		is.Policy, err = localpolicy.Parse(data)
	}
	switch {
	case err == nil:
		f.log.Info("policy of the cluster in force", "file", f.path, "digest", is.Policy.Digest.String())
	case f.optional && !f.seen && errors.Is(err, fs.ErrNotExist):
	default:
		is = worker.Accepts{Broken: fmt.Sprintf("%s: %v", f.path, err)}
		f.log.Warn("policy of the cluster cannot be gone by: nothing is changed", "file", f.path, "error", err)
	}
	if f.is = is; f.tell != nil {
		f.tell(is)
	}
}

// say tells the hub's people of the policy. f.mu is held.
func (f *policyFile) say(now time.Time, fresh bool) {
	c := fleet.Condition{Type: fleet.ConditionLocalPolicy, Status: fleet.ConditionTrue, Reason: fleet.PolicyInForce}
	switch {
	case f.is.Broken != "":
		c.Status, c.Reason = fleet.ConditionFalse, "Broken"
		c.Message = "the cluster's own policy cannot be gone by, so nothing is changed: " + f.is.Broken
	case f.is.Policy == nil:
		return
	default:
		digest := "policy sha256:" + f.is.Policy.Digest.String()
		c.Message = digest + " is in force"
		if d, _ := f.is.Policy.Closed(now); d != nil {
			c.Reason, c.Message = map[string]string{"freeze": "Frozen"}[d.Rule], d.Message+", so nothing is changed: "+digest
			if c.Reason == "" {
				c.Reason = "OutsideOfWindows"
			}
		}
	}
	if said := [2]string{c.Status, c.Reason}; fresh || said != f.said {
		f.said = said
		f.conditions.Clear(c.Type) // one of the same reason has other words
		f.conditions.Set(c)
	}
}

// recall finds out from the state whether there was a policy in a process before this one: what was there once is missed.
func (f *policyFile) recall(ctx context.Context, s state.Store) error {
	if f == nil {
		return nil
	}
	_, err := s.Read(ctx, policyName)
	f.mu.Lock()
	if (err == nil || errors.Is(err, fleet.ErrCorrupt)) && !f.seen { // a damaged note says as much as a whole one
		f.seen, f.read = true, false
	}
	f.mu.Unlock()
	if err != nil && !errors.Is(err, fleet.ErrNotFound) && !errors.Is(err, fleet.ErrCorrupt) {
		return err
	}
	f.look(time.Now())
	return nil
}

// keep notes in the state that there is a policy.
func (f *policyFile) keep(ctx context.Context, s state.Store) error {
	if f == nil {
		return nil
	}
	for {
		f.mu.Lock()
		seen := f.seen
		f.mu.Unlock()
		if seen {
			_, err := s.Read(ctx, policyName)
			if err == nil {
				return nil
			}
			if s.Write(ctx, policyName, []byte(time.Now().UTC().Format(time.RFC3339))) == nil {
				return nil
			}
			if backoff.Wait(ctx, policyEvery) != nil {
				return nil
			}
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-f.signs:
		}
	}
}
