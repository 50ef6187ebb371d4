package worker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/vault"
	"towline.dev/towline/pkg/fleet"
)

// lastsName is where the values are kept that bindings had last.
const lastsName = "binding-values"

// lastValue is what a binding read last.
type lastValue struct {
	Value  string `json:"value"`
	Secret bool   `json:"secret,omitempty"`
}

// lasts keeps over restarts what bindings read last, so that a source which is gone takes nothing with it. They lie encrypted in the state.
type lasts struct {
	vault *vault.Vault
	state State

	mu      sync.Mutex
	of      map[string]map[string]lastValue // by module, and by what was read
	changed bool
	saving  sync.Mutex
}

// load reads what was kept. What cannot be read is read from the cluster again.
func (l *lasts) load(ctx context.Context, v *vault.Vault, state State, log *slog.Logger) {
	l.vault, l.state = v, state
	data, err := state.Read(ctx, lastsName)
	if errors.Is(err, fleet.ErrNotFound) {
		return
	}
	if err == nil {
		data, err = l.vault.Open(lastsName, data)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		err = json.Unmarshal(data, &l.of)
	}
	if err != nil {
		log.Warn("the last values of bindings cannot be read; those have none whose source is gone", "error", err)
		l.of = nil
	}
}

// openVault reads what the agent keeps encrypted.
func (m *Manager) openVault(ctx context.Context) (err error) {
	v := m.o.Vault
	if v == nil {
		if v, err = vault.Open(ctx, m.o.State); err != nil {
			return err
		}
	}
	m.lasts.load(ctx, v, m.o.State, m.o.Log)
	m.secrets.load(ctx, v, m.o.State, m.o.Log)
	return nil
}

// keyOf names a field.
func keyOf(f fleet.ObjectField) string {
	text, _ := json.Marshal(f) // of text, which always can be written
	return string(text)
}

// keyOfSecret names a value of the hub's store.
func keyOfSecret(k fleet.SecretKey) string { return "secret " + k.Name + " " + k.Key }

func (l *lasts) get(ref fleet.ModuleRef, key string) (lastValue, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.of[ref.String()][key]
	return v, ok
}

func (l *lasts) put(ref fleet.ModuleRef, key string, v lastValue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	module := ref.String()
	if old, ok := l.of[module][key]; ok && old == v {
		return
	}
	if l.of == nil {
		l.of = map[string]map[string]lastValue{}
	}
	if l.of[module] == nil {
		l.of[module] = map[string]lastValue{}
	}
	l.of[module][key], l.changed = v, true
}

// has reports that there is anything of a module.
func (l *lasts) has(ref fleet.ModuleRef) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.of[ref.String()]) > 0
}

// retain forgets what a module does not read any more.
func (l *lasts) retain(ref fleet.ModuleRef, keep func(key string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	module := ref.String()
	for key := range l.of[module] {
		if !keep(key) {
			delete(l.of[module], key)
			l.changed = true
		}
	}
	if len(l.of[module]) == 0 {
		delete(l.of, module)
	}
}

// secrets are the values of a module that nobody may be shown.
func (l *lasts) secrets(ref fleet.ModuleRef) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.of[ref.String()] {
		if v.Secret && v.Value != "" {
			out = append(out, v.Value)
		}
	}
	return out
}

// in reports that one of the texts holds a value of a module that nobody may be shown, or a part of one.
func (l *lasts) in(ref fleet.ModuleRef, texts ...string) bool {
	secrets := l.secrets(ref)
	if len(secrets) == 0 {
		return false
	}
	hidden := apply.HiddenValues(secrets)
	return slices.ContainsFunc(texts, func(text string) bool { return hidden.Scrub(text) != text })
}

// save writes what changed.
func (l *lasts) save(ctx context.Context) error {
	l.saving.Lock()
	defer l.saving.Unlock()
	l.mu.Lock()
	if !l.changed {
		l.mu.Unlock()
		return nil
	}
	l.changed = false
	data, err := json.Marshal(l.of)
	l.mu.Unlock()
	if err == nil {
		data, err = l.vault.Seal(lastsName, data)
	}
	if err == nil {
		err = l.state.Write(ctx, lastsName, data)
	}
	if err != nil {
		l.mu.Lock()
		l.changed = true
		l.mu.Unlock()
		return fmt.Errorf("values of bindings: %w", err)
	}
	return nil
}

// Conceal masks in a live object what a module put into it that nobody may be shown.
func (m *Manager) Conceal(id fleet.ObjectID, object map[string]any) {
	m.mu.Lock()
	begun := m.watcher != nil
	m.mu.Unlock()
	if !begun {
		return
	}
	rec := m.inventory.Get(id)
	if rec == nil {
		return
	}
	secrets := m.lasts.secrets(rec.Module)
	if len(secrets) == 0 {
		return
	}
	for _, field := range slices.Sorted(maps.Keys(object)) {
		if field != "apiVersion" && field != "kind" {
			object[field] = concealed(object[field], secrets)
		}
	}
}

// shortSecret is the longest value that is masked only where it is all of a text: "1" is in many.
const shortSecret = 3

// concealed is a value in which texts that hold a secret are masked.
func concealed(v any, secrets []string) any {
	switch x := v.(type) {
	case map[string]any:
		for k := range x {
			x[k] = concealed(x[k], secrets)
		}
		return x
	case []any:
		for i := range x {
			x[i] = concealed(x[i], secrets)
		}
		return x
	case nil, bool:
		return v
	}
	text := fmt.Sprint(v)
	for _, s := range secrets {
		encoded := base64.StdEncoding.EncodeToString([]byte(s))
		if text == s || text == encoded || len(s) > shortSecret && (strings.Contains(text, s) || strings.Contains(text, encoded)) {
			return fleet.Masked
		}
	}
	return v
}
