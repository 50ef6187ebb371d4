package worker

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// What nobody may be shown of the cluster is decided here, for whatever leaves the agent: statuses, previews, Events and live objects. It
// is what the bindings of a module read now, and what our last write put into an object: a value that is not the newest any more, or that
// no binding reads any more, is in the cluster until the object is written anew. Of other modules only long values are, and whole, and none that the
// module lists itself: projects do not hide words from each other, nor tell each other by a mask what a value is.

// hidingPurpose is what the values of an object are encrypted for.
const hidingPurpose = "object-secrets"

// hides are the values that nobody may be shown.
type hides struct {
	own []*apply.Scrubber // find what is of the module, and of the object
	// others finds the values of all modules; nil: there are none. listed is how much of them the people of the module have written themselves:
	// they learn nothing by that, but would by the mask which words are values of others.
	others *apply.Scrubber
	listed func() map[string]bool
	// all: what the values are cannot be told, so that nothing is shown.
	all bool
}

// writes finds how much of values stands in what people have written themselves; nil: none.
type writes func(by *apply.Scrubber) map[string]bool

// hides are what the people of modules may not be shown.
func (m *Manager) hides(writes writes, of ...fleet.ModuleRef) hides {
	known := m.veil.of(m, time.Now())
	h := hides{others: known.all}
	if writes != nil {
		h.listed = sync.OnceValue(func() map[string]bool { return writes(known.all) })
	}
	for _, ref := range of {
		if s := known.own[ref.String()]; s != nil {
			h.own = append(h.own, s)
		}
	}
	return h
}

// of are they in an object, with what it may have itself. It may be named by the namespace in which the module lists it, though its kind has none.
func (h hides) of(m *Manager, id fleet.ObjectID) hides {
	rec := m.recordOf(id)
	if rec == nil {
		return h
	}
	has := m.sealed.open(m, rec.Hidden)
	if has.finds != nil {
		h.own = append(slices.Clone(h.own), has.finds())
	}
	h.all = h.all || has.all
	return h
}

func (m *Manager) recordOf(id fleet.ObjectID) *apply.Record {
	rec := m.inventory.Get(id)
	if rec == nil && id.Namespace != "" {
		rec = m.inventory.Get(bare(id))
	}
	return rec
}

// unwritten reports that it is not known what was put into an object until it is written: it is known by its marks only, or was there before
// the agent lost its record of it.
func (m *Manager) unwritten(id fleet.ObjectID) bool {
	rec := m.recordOf(id)
	return rec != nil && (rec.Found || !rec.Written() && m.lasts.doubts(rec.Module))
}

// hidden is what may not be shown of what is told of an object.
func (w *worker) hidden(id fleet.ObjectID) hides {
	writes := w.previews
	if writes == nil {
		writes = w.m.listedBy(w.ref)
	}
	return w.m.hides(writes, w.ref).of(w.m, id)
}

// hiddenIn is what the fields of an object may have that may not be shown.
func (w *worker) hiddenIn(id fleet.ObjectID) hides {
	h := w.hidden(id)
	h.all = h.all || w.m.unwritten(id)
	return h
}

// hiddenAbout is what the cluster may say of all objects of a module, and of what belongs to them.
func (m *Manager) hiddenAbout(ref fleet.ModuleRef) hides {
	h := m.hides(m.listedBy(ref), ref)
	var values []string
	for _, rec := range m.inventory.Module(ref) {
		has := m.sealed.open(m, rec.Hidden)
		values, h.all = append(values, has.values...), h.all || has.all
	}
	return h.with(values)
}

// with are the values, and others beside them.
func (h hides) with(values []string) hides {
	if len(values) > 0 {
		h.own = append(slices.Clone(h.own), apply.HiddenValues(values).Scrubber())
	}
	return h
}

func (h hides) none() bool { return !h.all && h.others == nil && len(h.own) == 0 }

// shows reports that a value of another module is shown as it stands in a text.
func (h hides) shows(quote string) bool {
	if h.listed == nil {
		return false
	}
	for begin := range h.listed() {
		if strings.HasPrefix(begin, quote) {
			return true
		}
	}
	return false
}

// quotes reports that a text has a value of another module.
func (h hides) quotes(text string) bool { return h.others != nil && !h.others.Quotes(text, h.shows) }

// keeps reports that a text has a value whole, and so may not be shown.
func (h hides) keeps(text string) bool {
	return h.all || h.quotes(text) || slices.ContainsFunc(h.own, func(s *apply.Scrubber) bool { return s.In(text) })
}

// in reports that one of the texts holds a value, or a part of one.
func (h hides) in(texts ...string) bool {
	return h.all || slices.ContainsFunc(texts, h.quotes) || slices.ContainsFunc(h.own, func(s *apply.Scrubber) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return !s.Shows(text) })
	})
}

// scrub is a text of the cluster as people may read it.
func (h hides) scrub(text string) string {
	if h.all && text != "" {
		return fleet.Masked
	}
	for _, s := range h.own {
		text = s.Scrub(text)
	}
	if h.others != nil {
		text = h.others.ScrubWhole(text, h.shows)
	}
	return text
}

// field names a field as people may read it: what a list is keyed by may be a value.
func (h hides) field(name string) string {
	if !h.all {
		return h.scrub(name)
	}
	if plain, _, keyed := strings.Cut(name, `"`); keyed {
		return plain + fleet.Masked
	}
	return name
}

// clean is an answer of the API server as people may read it.
func (h hides) clean(err error) error {
	if h.all {
		return apply.Withheld(err)
	}
	return apply.Clean(err, h.scrub)
}

// conceal masks the values in a live object. In a status it masks parts of values as well: controllers quote them cut short. Names are shown.
func (h hides) conceal(object map[string]any) {
	if h.none() {
		return
	}
	whole := func(text string) string {
		if h.keeps(text) {
			return fleet.Masked
		}
		return text
	}
	for _, field := range slices.Sorted(maps.Keys(object)) {
		switch {
		case field == "apiVersion", field == "kind":
		case field == "metadata":
			h.concealMetadata(object[field], whole)
		case field == "status" && !h.all:
			object[field] = concealed(object[field], h.scrub)
		default:
			object[field] = concealed(object[field], whole)
		}
	}
}

// concealMetadata leaves what says which object it is.
func (h hides) concealMetadata(v any, whole func(string) string) {
	metadata, _ := v.(map[string]any)
	for field := range metadata {
		switch field {
		case "name", "namespace", "uid":
		case "labels", "annotations":
			metadata[field] = concealed(metadata[field], whole)
		default:
			if !h.all {
				metadata[field] = concealed(metadata[field], whole)
			}
		}
	}
}

// concealed is a value whose texts are as people may see them.
func concealed(v any, shown func(string) string) any {
	switch x := v.(type) {
	case map[string]any:
		for k := range x {
			x[k] = concealed(x[k], shown)
		}
		return x
	case []any:
		for i := range x {
			x[i] = concealed(x[i], shown)
		}
		return x
	case nil, bool:
		return v
	}
	text := fmt.Sprint(v)
	if out := shown(text); out != text {
		return out
	}
	return v
}

// holds reports that a value is anywhere in a part of an object.
func holds(v any, secret apply.Hidden) bool { return anyText(v, secret.In) }

// anyText reports that there is such a text in a part of an object.
func anyText(v any, such func(string) bool) bool {
	switch x := v.(type) {
	case map[string]any:
		for _, part := range x {
			if anyText(part, such) {
				return true
			}
		}
		return false
	case []any:
		return slices.ContainsFunc(x, func(part any) bool { return anyText(part, such) })
	case nil, bool:
		return false
	}
	return such(fmt.Sprint(v))
}

// knows is an error before it is known what the agent has in the cluster.
func (m *Manager) knows() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.watcher == nil {
		return fleet.Errorf(fleet.ErrUnavailable, "the agent has just started and does not know yet what it has in the cluster; ask again")
	}
	return nil
}

// Conceal masks in a live object what nobody may be shown: also in one that a module only watches or reads, for a controller may quote a value
// there.
func (m *Manager) Conceal(id fleet.ObjectID, object map[string]any) error {
	if err := m.knows(); err != nil {
		return err
	}
	id.Namespace = (&unstructured.Unstructured{Object: object}).GetNamespace()
	if why := m.searching(); why != "" && m.inventory.Get(id) == nil {
		return fleet.Errorf(fleet.ErrUnavailable, "%s: the agent does not know yet whether a module has put values into it that may not be shown: %s; ask again", id, why)
	}
	refs := m.toldOf(id)
	var by writes
	if len(refs) == 1 {
		by = m.listedBy(refs[0])
	}
	h := m.hides(by, refs...).of(m, id)
	h.all = h.all || m.unwritten(id)
	h.conceal(object)
	return nil
}

// toldOf are the modules whose people are told of an object: the one that has it, else those that read or watch it.
func (m *Manager) toldOf(id fleet.ObjectID) []fleet.ModuleRef {
	if rec := m.recordOf(id); rec != nil {
		return []fleet.ModuleRef{rec.Module}
	}
	return m.readers.refs(id)
}

// shielded are fields of an object that another one has otherwise, as people may see them.
func (a *writer) shielded(list []plan.Unmet) []plan.Unmet {
	for i, u := range list {
		v := a.w.valuesOf(a.liveID(), a.shows(), apply.Field{Pointer: u.Pointer, Live: u.Live}, u.Want)
		list[i].Want, list[i].Live = v.want, v.live
	}
	return list
}

// hide notes before a write what the object may have after it that nobody may be shown: the answer may be lost.
func (a *writer) hide() error {
	if len(a.hidden) == 0 {
		return nil
	}
	rec := a.w.m.inventory.Get(a.id)
	if rec == nil {
		return nil
	}
	sealed, err := a.w.m.sealed.seal(a.w.m, a.w.ref, union(a.w.m.sealed.open(a.w.m, rec.Hidden).values, a.hidden), rec.Hidden)
	if err != nil {
		return fmt.Errorf("%s: %w", a.id, err)
	}
	a.w.m.inventory.Amend(a.w.ref, a.id, func(r *apply.Record) bool {
		changed := string(r.Hidden) != string(sealed)
		r.Hidden = sealed
		return changed
	})
	return nil
}

// noteHidden has a record say what the object has after a write that nobody may be shown: what was put there now, and what is there still of
// what was put there before.
func (a *writer) noteHidden(live map[string]any, r *apply.Record) error {
	var before []byte
	values := a.hidden
	if old := a.w.m.inventory.Get(a.id); old != nil {
		before = old.Hidden
		var gone []string
		for _, v := range a.w.m.sealed.open(a.w.m, before).values {
			if holds(live, apply.HiddenValues([]string{v})) {
				values = union(values, []string{v})
			} else {
				gone = append(gone, v)
			}
		}
		a.w.m.lasts.replaced(a.w.ref, gone)
	}
	sealed, err := a.w.m.sealed.seal(a.w.m, a.w.ref, values, before)
	if err != nil {
		return fmt.Errorf("%s: %w", a.id, err)
	}
	r.Hidden = sealed
	return nil
}

// noteHeld has the record of an item that is applied say what values it was applied with. An agent of before did not note them.
func (w *worker) noteHeld(it *item) {
	values := it.late.secrets()
	rec := w.written(it.entry.ID)
	if rec == nil || rec.Want != it.want || len(values) == 0 {
		return
	}
	known := w.m.sealed.open(w.m, rec.Hidden)
	if known.all || len(union(known.values, values)) == len(known.values) {
		return
	}
	sealed, err := w.m.sealed.seal(w.m, w.ref, union(known.values, values), rec.Hidden)
	if err != nil {
		w.log.Warn("what is hidden of an object is not kept", "object", it.entry.ID.String(), "error", err)
		return
	}
	w.m.inventory.Amend(w.ref, it.entry.ID, func(r *apply.Record) bool {
		r.Hidden = sealed
		return true
	})
}

// union is sorted, each value once.
func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

// maxOpened is of how many sets of values the plain form is kept.
const maxOpened = 1024

// sealed are the values of objects as records have them: encrypted.
type sealed struct {
	mu     sync.Mutex
	opened map[string]plain // by the encrypted form
}

// plain are those of one object.
type plain struct {
	values []string
	finds  func() *apply.Scrubber // nil: there is none
	all    bool                   // they cannot be decrypted
}

// open decrypts. What cannot be decrypted hides all.
func (s *sealed) open(m *Manager, data []byte) plain {
	if len(data) == 0 {
		return plain{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, known := s.opened[string(data)]; known {
		return o
	}
	var values []string
	text, err := m.lasts.vault.Open(hidingPurpose, data)
	if err == nil {
		err = json.Unmarshal(text, &values)
	}
	if err != nil {
		return s.keep(data, plain{all: true})
	}
	return s.keep(data, plainOf(values))
}

// seal encrypts what an object of a module has. The same values stay as they are encrypted already.
func (s *sealed) seal(m *Manager, ref fleet.ModuleRef, values []string, before []byte) ([]byte, error) {
	if len(values) == 0 {
		return nil, nil
	}
	values = union(values, nil)
	m.veil.add(ref, values)
	if known := s.open(m, before); !known.all && slices.Equal(known.values, values) {
		return before, nil
	}
	text, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	data, err := m.lasts.vault.Seal(hidingPurpose, text)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(data, plainOf(values))
	return data, nil
}

func (s *sealed) keep(data []byte, o plain) plain {
	if s.opened == nil || len(s.opened) >= maxOpened {
		s.opened = map[string]plain{}
	}
	s.opened[string(data)] = o
	return o
}

func plainOf(values []string) plain {
	if len(values) == 0 {
		return plain{}
	}
	return plain{values: values, finds: sync.OnceValue(func() *apply.Scrubber { return apply.HiddenValues(values).Scrubber() })}
}
