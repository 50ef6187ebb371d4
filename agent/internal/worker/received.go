package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/vault"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// receivedName is where the secrets lie that the hub has sent.
const receivedName = "hub-secrets"

// Sealed is a secret as the hub has sent it: encrypted for this agent.
type Sealed struct {
	Project string `json:"project"`
	Name    string `json:"name"`
	Sealed  []byte `json:"sealed,omitempty"`
	// Problem says why there are no values to use; empty: there are. The values of before may stay beside it.
	Problem string `json:"problem,omitempty"`
	// Absent says of a problem that nobody has set a value. With another one, and of a hub that does not say, whether there is a value
	// cannot be told.
	Absent bool `json:"absent,omitempty"`
	// Keys are those that were asked for; none: the hub did not say.
	Keys []string `json:"keys,omitempty"`
	// Age says how new it is.
	Age SecretAge `json:"age,omitzero"`
}

// SecretAge is how new a secret is.
type SecretAge struct {
	// Hub is the id of the hub that has sent it, Lineage the number of that of its store, Version the revision of its write there, and
	// Changed when its values were changed, as Unix milliseconds. 0: the hub did not say.
	Hub     string `json:"hub,omitempty"`
	Lineage uint64 `json:"lineage,omitempty"`
	Version int64  `json:"version,omitempty"`
	Changed int64  `json:"changed,omitempty"`
	// Scope says which of the secrets of a name it is.
	Scope string `json:"scope,omitempty"`
}

// before reports that a secret is older than another one of the same hub. A copy of the store that was put back counts on from where it
// was made, so that a version alone says nothing of a secret that was changed in it since; the time does. Versions of two lineages cannot
// be compared at all: between them, as after a restore or a new join, the time alone decides. What is for other clusters is no version of
// it at all: when which one is for the cluster changes, the time of neither says anything.
func (a SecretAge) before(b SecretAge) bool {
	switch {
	case a.Version <= 0 || a.Changed >= b.Changed || a.Scope != "" && b.Scope != "" && a.Scope != b.Scope:
		return false
	case a.Lineage == b.Lineage:
		return a.Version < b.Version
	}
	return a.Hub != "" && a.Hub == b.Hub
}

// received are the secrets that the hub has sent. They lie in the state as they came.
type received struct {
	vault *vault.Vault
	state State

	log    *slog.Logger
	loaded chan struct{} // closed when what was sent before the start is there

	saving *semaphore.Weighted // taken while the state is written: who waits for that waits no longer than its context
	kept   []Sealed            // what lies in the state; saving holds it
	mu     sync.Mutex
	of     map[string]opened // by project and name
}

// opened is a secret whose values can be read, or why they cannot.
type opened struct {
	values map[string][]byte
	keys   []string // that were asked for; none: all
	fail   *apply.Failure
}

// says reports that the hub has said of a key whether there is a value of it.
func (o opened) says(key string) bool { return len(o.keys) == 0 || slices.Contains(o.keys, key) }

// load opens what was sent before the agent's start. What is damaged comes again with the next session; an error is one of the state,
// which may have it, and then nothing is taken that is sent.
func (x *received) load(ctx context.Context, v *vault.Vault, state State, log *slog.Logger) error {
	x.vault, x.state, x.log = v, state, log
	data, err := state.Read(ctx, receivedName)
	if mayHave(err) {
		return fmt.Errorf("secrets of the hub: %w", err)
	}
	defer close(x.loaded)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil
	}
	var list []Sealed
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		log.Warn("the secrets that the hub has sent cannot be read; it sends them again", "error", err)
		return nil
	}
	x.kept = list
	x.mu.Lock()
	defer x.mu.Unlock()
	x.of = x.open(list)
	return nil
}

func (x *received) open(list []Sealed) map[string]opened {
	out := make(map[string]opened, len(list))
	for _, s := range list {
		out[s.Project+"/"+s.Name] = x.openOne(s)
	}
	return out
}

func (x *received) openOne(s Sealed) opened {
	switch {
	case s.Problem != "" && s.Absent:
		return opened{keys: s.Keys, fail: missing("%s", s.Problem)}
	case s.Problem != "":
		return opened{keys: s.Keys, fail: untold("%s", s.Problem)}
	}
	var values map[string][]byte
	plain, err := x.vault.Open(wire.SealedFor(s.Project, s.Name), s.Sealed)
	if err == nil {
		values, err = wire.SecretValues(plain)
	}
	if err != nil {
		return opened{keys: s.Keys, fail: unsent("secret %s: %v; it %v anew", s.Name, err, errUnsent)}
	}
	return opened{keys: s.Keys, values: values}
}

// keep keeps all that the hub has sent durably, and returns what puts it in use. What was sent before stays in use until then.
func (x *received) keep(ctx context.Context, list []Sealed) (use func(), err error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-x.loaded:
	}
	if err := x.saving.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("secrets of the hub: another write of them is under way: %w", err)
	}
	defer x.saving.Release(1)
	list = slices.SortedFunc(slices.Values(list), func(a, b Sealed) int {
		return strings.Compare(a.Project+"/"+a.Name, b.Project+"/"+b.Name)
	})
	for i := range list {
		list[i] = x.beside(list[i])
	}
	data, err := json.Marshal(list)
	if err == nil {
		err = x.state.Write(ctx, receivedName, data)
	}
	if err != nil {
		return nil, fmt.Errorf("secrets of the hub: %w", err)
	}
	x.kept = list
	next := x.open(list)
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.of = next
	}, nil
}

// forget drops all of them.
func (x *received) forget(ctx context.Context) error {
	if err := x.saving.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("secrets of the hub: a write of them is under way: %w", err)
	}
	defer x.saving.Release(1)
	if len(x.kept) == 0 {
		return nil
	}
	if err := x.state.Remove(ctx, receivedName); err != nil {
		return fmt.Errorf("secrets of the hub: %w", err)
	}
	x.kept = nil
	x.mu.Lock()
	defer x.mu.Unlock()
	x.of = nil
	return nil
}

// beside is what is kept of a secret that the hub has sent, with what is held of it. Which one is newer is told by what came with values
// last, whatever problem has come since, and so are values that the hub says cannot be told for a time. saving is held.
func (x *received) beside(s Sealed) Sealed {
	i := slices.IndexFunc(x.kept, func(h Sealed) bool { return h.Project == s.Project && h.Name == s.Name })
	if i < 0 {
		return s
	}
	held := x.kept[i]
	switch {
	case s.Problem != "" && s.Absent:
		s.Age = held.Age
	case s.Problem != "":
		s.Age, s.Sealed, s.Keys = held.Age, held.Sealed, held.Keys
	case s.Age.before(held.Age):
		x.log.Error("the hub sends older values of a secret than the cluster has, which stay: its store is that of an older copy; set the secret anew",
			"project", s.Project, "secret", s.Name, "sent", time.UnixMilli(s.Age.Changed).UTC(), "held", time.UnixMilli(held.Age.Changed).UTC())
		return held.again()
	}
	return s
}

// again is what is held of a secret without the problem of which the hub does not speak any more, if there are values.
func (s Sealed) again() Sealed {
	if len(s.Sealed) > 0 {
		s.Problem = ""
	}
	return s
}

// errUnsent is of a secret, or a key of one, of which the hub has said nothing yet.
var errUnsent = errors.New("has not come from the hub yet")

func unsent(format string, args ...any) *apply.Failure {
	f := missing(format, args...)
	f.Kind = errUnsent
	return f
}

// errUntold is of a secret of which cannot be told whether there is a value.
var errUntold = errors.New("cannot be told")

func untold(format string, args ...any) *apply.Failure {
	f := missing(format, args...)
	f.Kind = errUntold
	return f
}

// value is one value of a secret, or why there is none.
func (x *received) value(project string, k fleet.SecretKey) (string, error) {
	x.mu.Lock()
	o, known := x.of[project+"/"+k.Name]
	x.mu.Unlock()
	value, has := o.values[k.Key]
	switch {
	case !known:
		return "", unsent("secret %s %v", k.Name, errUnsent)
	case o.fail != nil:
		return "", o.fail
	case !has && !o.says(k.Key):
		return "", unsent("secret %s: key %s %v", k.Name, k.Key, errUnsent)
	case !has:
		return "", missing("secret %s has no key %s: towline secret set %s %s=-", k.Name, k.Key, k.Name, k.Key)
	case !utf8.Valid(value):
		return "", &apply.Failure{Reason: apply.ReasonInvalid, Kind: fleet.ErrInvalid, Message: fmt.Sprintf("secret %s: %s is no text: a binding cannot hold other bytes", k.Name, k.Key)}
	case len(value) > assemble.MaxValueBytes:
		return "", &apply.Failure{Reason: apply.ReasonInvalid, Kind: fleet.ErrInvalid, Message: fmt.Sprintf("secret %s: %s has %d bytes; a binding holds at most %d", k.Name, k.Key, len(value), assemble.MaxValueBytes)}
	}
	return string(value), nil
}

// Secrets keeps all secrets that the hub has sent, and returns what puts them in use. What goes with them begins then, and after it what
// uses a value that is another one is applied anew: a module that gets both a revision and a value is written once.
func (m *Manager) Secrets(ctx context.Context, list []Sealed) (use func(begin func()), err error) {
	if m.leaving() { // nothing is applied any more that could use them
		return func(begin func()) { begin() }, nil
	}
	put, err := m.secrets.keep(ctx, list)
	if err != nil {
		return nil, err
	}
	return func(begin func()) {
		put()
		begin()
		m.each((*worker).touchBindings)
	}, nil
}

// touchBindings has the bindings evaluated again.
func (w *worker) touchBindings() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rebind = true
	dirty.Poke(w.signal)
}
