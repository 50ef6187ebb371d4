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
	"unicode/utf8"

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
	// Problem says why there are no values; empty: there are.
	Problem string `json:"problem,omitempty"`
}

// received are the secrets that the hub has sent. They lie in the state as they came.
type received struct {
	vault *vault.Vault
	state State

	saving sync.Mutex
	mu     sync.Mutex
	of     map[string]opened // by project and name
}

// opened is a secret whose values can be read.
type opened struct {
	values  map[string][]byte
	problem string
}

// load opens what was sent before the agent's start. What cannot be read comes again with the next session.
func (x *received) load(ctx context.Context, v *vault.Vault, state State, log *slog.Logger) {
	x.vault, x.state = v, state
	data, err := state.Read(ctx, receivedName)
	if errors.Is(err, fleet.ErrNotFound) {
		return
	}
	var list []Sealed
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		log.Warn("the secrets that the hub has sent cannot be read; it sends them again", "error", err)
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.of = x.open(list)
}

func (x *received) open(list []Sealed) map[string]opened {
	out := make(map[string]opened, len(list))
	for _, s := range list {
		o := opened{problem: s.Problem}
		if o.problem == "" {
			plain, err := x.vault.Open(wire.SealedFor(s.Project, s.Name), s.Sealed)
			if err == nil {
				o.values, err = wire.SecretValues(plain)
			}
			if err != nil {
				o.problem = fmt.Sprintf("secret %s: %v", s.Name, err)
			}
		}
		out[s.Project+"/"+s.Name] = o
	}
	return out
}

// set takes all that the hub has sent, durably.
func (x *received) set(ctx context.Context, list []Sealed) error {
	x.saving.Lock()
	defer x.saving.Unlock()
	list = slices.SortedFunc(slices.Values(list), func(a, b Sealed) int {
		return strings.Compare(a.Project+"/"+a.Name, b.Project+"/"+b.Name)
	})
	data, err := json.Marshal(list)
	if err == nil {
		err = x.state.Write(ctx, receivedName, data)
	}
	if err != nil {
		return fmt.Errorf("secrets of the hub: %w", err)
	}
	next := x.open(list)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.of = next
	return nil
}

// errUnsent is of a secret of which the hub has said nothing yet.
var errUnsent = errors.New("has not come from the hub yet")

// value is one value of a secret, or why there is none.
func (x *received) value(project string, k fleet.SecretKey) (string, error) {
	x.mu.Lock()
	o, known := x.of[project+"/"+k.Name]
	x.mu.Unlock()
	value, has := o.values[k.Key]
	switch {
	case !known:
		f := missing("secret %s %v", k.Name, errUnsent)
		f.Kind = errUnsent
		return "", f
	case o.problem != "":
		return "", missing("%s", o.problem)
	case !has:
		return "", missing("secret %s has no key %s: towline secret set %s %s=-", k.Name, k.Key, k.Name, k.Key)
	case !utf8.Valid(value):
		return "", &apply.Failure{Reason: apply.ReasonInvalid, Kind: fleet.ErrInvalid, Message: fmt.Sprintf("secret %s: %s is no text: a binding cannot hold other bytes", k.Name, k.Key)}
	case len(value) > assemble.MaxValueBytes:
		return "", &apply.Failure{Reason: apply.ReasonInvalid, Kind: fleet.ErrInvalid, Message: fmt.Sprintf("secret %s: %s has %d bytes; a binding holds at most %d", k.Name, k.Key, len(value), assemble.MaxValueBytes)}
	}
	return string(value), nil
}

// Secrets takes all secrets that the hub has sent. What uses a value that is another one is applied anew.
func (m *Manager) Secrets(ctx context.Context, list []Sealed) error {
	m.mu.Lock()
	begun := m.watcher != nil
	m.mu.Unlock()
	if !begun {
		return fleet.Errorf(fleet.ErrUnavailable, "secrets of the hub: the agent has just started")
	}
	if err := m.secrets.set(ctx, list); err != nil {
		return err
	}
	m.each((*worker).touchBindings)
	return nil
}

// touchBindings has the bindings evaluated again.
func (w *worker) touchBindings() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rebind = true
	dirty.Poke(w.signal)
}
