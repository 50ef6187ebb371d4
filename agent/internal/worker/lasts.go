package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"towline.dev/towline/agent/internal/vault"
	"towline.dev/towline/pkg/fleet"
)

// lastsName is where the values are kept that bindings had last.
const lastsName = "binding-values"

// lastValue is what a binding read last.
type lastValue struct {
	Value  string `json:"value"`
	Secret bool   `json:"secret,omitempty"`
	// Until is when it is forgotten, as Unix milliseconds, of one that was replaced, and Of the module that had it.
	Until int64  `json:"until,omitempty"`
	Of    string `json:"of,omitempty"`
}

// lasts keeps over restarts what bindings read last, so that a source which is gone takes nothing with it. They lie encrypted in the state.
type lasts struct {
	vault *vault.Vault
	state State

	mu      sync.Mutex
	of      map[string]map[string]lastValue // by module, and by what was read
	changed bool
	version uint64              // counts changes of what nobody may be shown
	lost    bool                // nothing could be read at the start
	saving  *semaphore.Weighted // taken while the state is written: who waits for that waits no longer than its context
}

const (
	// lostKey stands with a module of which values may have been kept that could not be read any more, until it is known that its objects have none.
	lostKey = "lost"
	// foundKey stands with a module that may have objects with such values of which no record says what was written.
	foundKey = "found"
)

// load reads what was kept. What is damaged is read from the cluster again; an error is one of the state, which may have it.
func (l *lasts) load(ctx context.Context, v *vault.Vault, state State, log *slog.Logger) error {
	l.vault, l.state = v, state
	data, err := state.Read(ctx, lastsName)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		l.lost = true
		return nil
	case mayHave(err):
		return fmt.Errorf("last values of bindings: %w", err)
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
		l.of, l.lost = nil, true
	}
	l.tellApart()
	return nil
}

// tellApart has what an agent of before noted say what it said then: it had one key for values that were lost and for objects that were found, or may
// be. l.mu is held.
func (l *lasts) tellApart() {
	for _, kept := range l.of {
		if _, lost := kept[lostKey]; lost {
			kept[foundKey] = lastValue{}
		}
	}
	delete(l.of[fleet.ModuleRef{}.String()], lostKey) // which is of modules alone
}

// begin notes modules that have objects, if what was kept could not be read or is not there: bindings of theirs may have had values that are not
// known. While the cluster is searched for objects of ours that no record names, any module may have some.
func (l *lasts) begin(ctx context.Context, modules []fleet.ModuleRef, searches bool) error {
	if !l.lost {
		return nil
	}
	for _, ref := range modules {
		l.put(ref, lostKey, lastValue{})
	}
	if searches {
		l.put(fleet.ModuleRef{}, foundKey, lastValue{})
	}
	l.mu.Lock()
	l.changed = true // that there is nothing is not that it was lost
	l.mu.Unlock()
	return l.save(ctx)
}

// found notes a module of which the search has found an object.
func (l *lasts) found(ref fleet.ModuleRef) {
	if l.marked(fleet.ModuleRef{}, foundKey) {
		l.put(ref, foundKey, lastValue{})
	}
}

// searched says that the search has found all that there is.
func (l *lasts) searched(ctx context.Context) error {
	l.retain(fleet.ModuleRef{}, func(key string) bool { return key != foundKey })
	return l.save(ctx)
}

// lacks reports that what bindings of a module had last is not known, and that its objects may have it.
func (l *lasts) lacks(ref fleet.ModuleRef) bool { return l.marked(ref, lostKey) }

// doubts reports that what an object of a module has is not known while no write of it is.
func (l *lasts) doubts(ref fleet.ModuleRef) bool { return l.lacks(ref) || l.marked(ref, foundKey) }

// rebuilds reports that the module may have objects of which the inventory does not say what they were written with.
func (l *lasts) rebuilds(ref fleet.ModuleRef) bool {
	return l.marked(ref, foundKey) || l.marked(fleet.ModuleRef{}, foundKey)
}

// openVault reads what the agent keeps encrypted.
func (m *Manager) openVault(ctx context.Context) (v *vault.Vault, err error) {
	if v = m.o.Vault; v == nil {
		if v, err = vault.Open(ctx, m.o.State); err != nil {
			return nil, err
		}
	}
	if err := m.lasts.load(ctx, v, m.o.State, m.o.Log); err != nil {
		return nil, err
	}
	return v, m.secrets.load(ctx, v, m.o.State, m.o.Log)
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
	old := l.of[module][key]
	if _, ok := l.of[module][key]; ok && old == v {
		return
	}
	if old.Value != v.Value {
		l.dismiss(module, old)
	}
	if v.Secret {
		l.version++
	}
	if l.of == nil {
		l.of = map[string]map[string]lastValue{}
	}
	if l.of[module] == nil {
		l.of[module] = map[string]lastValue{}
	}
	l.of[module][key], l.changed = v, true
}

// replacedKey begins the keys of what was replaced.
const replacedKey = "replaced "

// dismiss has a secret value of a module that is not in force any more hidden for a time. l.mu is held.
func (l *lasts) dismiss(module string, v lastValue) {
	if !v.Secret || v.Value == "" {
		return
	}
	if l.of == nil {
		l.of = map[string]map[string]lastValue{}
	}
	none := fleet.ModuleRef{}.String()
	if l.of[none] == nil {
		l.of[none] = map[string]lastValue{}
	}
	l.of[none][replacedKey+module+" "+v.Value] = lastValue{Value: v.Value, Secret: true, Until: time.Now().Add(replacedFor).UnixMilli(), Of: module}
	l.changed = true
	l.version++
}

// replaced has values of a module hidden for a time that an object has no more.
func (l *lasts) replaced(ref fleet.ModuleRef, values []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range values {
		l.dismiss(ref.String(), lastValue{Value: v, Secret: true})
	}
}

// hidden is what nobody may be shown, by the module that it is of. What was replaced long ago is forgotten.
func (l *lasts) hidden(now time.Time) map[string][]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string][]string{}
	for module, values := range l.of {
		for key, v := range values {
			switch {
			case v.Until > 0 && v.Until <= now.UnixMilli():
				delete(values, key)
				l.changed = true
			case v.Secret && v.Value != "":
				of := cmp.Or(v.Of, module)
				out[of] = append(out[of], v.Value)
			}
		}
	}
	return out
}

func (l *lasts) hiddenVersion() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.version
}

func (l *lasts) marked(ref fleet.ModuleRef, key string) bool {
	_, has := l.get(ref, key)
	return has
}

// any reports that there is anything of a module.
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
			gone := l.of[module][key]
			delete(l.of[module], key)
			l.dismiss(module, gone)
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

// save writes what changed.
func (l *lasts) save(ctx context.Context) error {
	if err := l.saving.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("values of bindings: another write of them is under way: %w", err)
	}
	defer l.saving.Release(1)
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
