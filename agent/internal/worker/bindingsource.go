package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/wire"
)

// source is a field that a binding reads.
type source struct {
	id       fleet.ObjectID // in the cluster
	version  string
	path     *wire.FieldPath
	resource apply.Resource // zero until its kind is found
	single   watch.Single   // that is watched; zero: none
	fail     error          // of the last search for the kind
	next     time.Time      // of it
	used     bool           // by the evaluation under way
	first    bool           // the module applies the object first, as the last evaluation found
}

// value is what the field holds in an object, which is nil where there is none. An error is fleet.ErrNotFound where there is no such field.
func (s *source) value(object map[string]any) (string, error) {
	if object == nil {
		return "", missing("%s does not exist", s.id.Short())
	}
	value, err := s.path.Read(object)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return "", missing("%s has no %s", s.id.Short(), s.path)
	case err != nil:
		return "", fleet.Invalidf("", "%s: %s %v", s.id.Short(), s.path, err)
	}
	return value, nil
}

// hides reports that nobody may be shown the value of the field in an object: it is of a Secret, itself or in an object that carries it, or has what
// a module put there that may not be shown.
func (s *source) hides(m *Manager, object map[string]any, value string) bool {
	if s.id.IsSecret() || (hides{}).of(m, s.id).keeps(value) {
		return true
	}
	masked, carries := manifest.Mask(object)
	if !carries {
		return false
	}
	shown, err := s.path.Read(masked)
	return err != nil || shown != value
}

// findSource finds the kind of a source, and has the object watched.
func (w *worker) findSource(ctx context.Context, s *source, now time.Time) error {
	if s.resource.Resource == "" && !now.Before(s.next) {
		e := fleet.BundleEntry{ID: s.id, Version: s.version}
		found, failed := w.resolveKinds(ctx, map[kindKey]fleet.BundleEntry{kindOfEntry(e): e})
		s.resource, s.fail, s.next = found[kindOfEntry(e)], failed[kindOfEntry(e)], time.Now().Add(bindAgain)
		if s.resource.Resource == "" {
			s.resource, s.fail = w.m.kindless(ctx, s, s.fail)
		}
	}
	if s.resource.Resource == "" {
		w.binder.due = earliest(w.binder.due, s.next)
		return s.fail
	}
	if err := s.settle(); err != nil {
		return err
	}
	if s.single == (watch.Single{}) {
		s.single = watch.Single{Resource: s.resource, Key: watch.Key{Namespace: s.id.Namespace, Name: s.id.Name}}
		w.m.readers.add(s.id, w)
		w.m.watcher.AcquireOne(s.single)
	}
	return nil
}

// kindless says why the kind of a source is not found, or where it is if it has come meanwhile. Of one that is served in another version the object may
// be there, with other fields: no default stands in for what it has. Nor does one while that is not known, unless the agent may not know it.
func (m *Manager) kindless(ctx context.Context, s *source, err error) (apply.Resource, error) {
	f := apply.Explain(s.id, err)
	if f.Reason != apply.ReasonNoKind {
		return apply.Resource{}, f
	}
	ctx, cancel := context.WithTimeout(ctx, bindTime)
	defer cancel()
	served, gone, err := m.mapper.Served(ctx, s.id, s.version)
	version := groupVersion(s.id.Group, s.version)
	switch {
	case err == nil && gone, kube.Is(err, kube.Forbidden):
		return apply.Resource{}, missing("the cluster has no kind %s of %s", s.id.Kind, version)
	case err != nil:
		return apply.Resource{}, unknown("%s", apply.Explain(s.id, err).Message)
	case served.Version == s.version:
		return served, nil
	}
	return apply.Resource{}, unknown("%s: the cluster serves its kind in %s, and not in %s; name that version in the binding", s.id.Short(), served.GroupVersion(), version)
}

// unknown is of what a binding reads and of which it is not known whether it is there.
func unknown(format string, args ...any) *apply.Failure {
	f := missing(format, args...)
	f.Kind = fleet.ErrUnavailable
	return f
}

func groupVersion(group, version string) string {
	return strings.TrimPrefix(group+"/"+version, "/")
}

// settle makes the identity that of the cluster.
func (s *source) settle() error {
	if !s.resource.Namespaced {
		s.id.Namespace = ""
	} else if s.id.Namespace == "" {
		return fleet.Invalidf("", "%s: the kind has namespaces; name one in the binding", s.id.Short())
	}
	return nil
}

// objectOf is the object of a source as it is now; nil: there is none. While no watch tells, it is asked for.
func (w *worker) objectOf(ctx context.Context, s *source, now time.Time) (map[string]any, error) {
	object, known := w.m.watcher.ReadOne(s.single)
	switch {
	case known && w.outdated(s.id, object): // its event wakes the worker
		return w.m.readObject(ctx, s)
	case known:
		return object, nil
	}
	again := bindAgain
	if w.m.watcher.BlindOne(s.single) != nil {
		again = bindBlind
	}
	w.binder.due = earliest(w.binder.due, now.Add(again))
	return w.m.readObject(ctx, s)
}

// readObject asks the API server for the object of a source; nil: there is none.
func (m *Manager) readObject(ctx context.Context, s *source) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(ctx, bindTime)
	defer cancel()
	object, err := m.client.Get(ctx, s.resource, s.id.Namespace, s.id.Name)
	switch {
	case kube.IsGone(err):
		return nil, nil
	case err != nil:
		f := *apply.Explain(s.id, err)
		if f.Reason == apply.ReasonForbidden {
			f.Message += fmt.Sprintf("; grant the agent get, list and watch of %s there", s.resource.Resource)
		}
		return nil, &f
	}
	return object, nil
}

// mayBind says why a module may not read an object by its bindings; nil: it may.
func (m *Manager) mayBind(ref fleet.ModuleRef, id fleet.ObjectID) error {
	if why := fleet.OfAgent(id, m.o.Namespace); why != "" {
		return protected(id, why)
	}
	m.accepts.mu.Lock()
	is := m.accepts.is
	m.accepts.mu.Unlock()
	if is.Broken != "" {
		return &apply.Failure{Reason: plan.ReasonDenied, Kind: fleet.ErrDenied, Message: id.Short() + ": Denied by the cluster's policy: nothing is read by bindings while it cannot be gone by: " + is.Broken}
	}
	if d := is.Policy.JudgeRead(ref, id); d != nil {
		return denial(id, d)
	}
	return nil
}

// releaseSources ends the watches of all sources but those to keep.
func (w *worker) releaseSources(keep func(*source) bool) {
	for f, s := range w.binder.sources {
		if keep(s) {
			continue
		}
		delete(w.binder.sources, f)
		if s.single != (watch.Single{}) {
			w.unreadBy(s.id)
			w.m.watcher.ReleaseOne(s.single)
		}
	}
}

// binds reports that a binding of the sync reads an object.
func (w *worker) binds(id fleet.ObjectID) bool {
	for _, s := range w.binder.sources {
		if s.id == id && s.single != (watch.Single{}) {
			return true
		}
	}
	return false
}

// unreadBy notes that the worker does not read an object any more, unless it does for another reason.
func (w *worker) unreadBy(id fleet.ObjectID) {
	w.mu.Lock()
	_, single := w.singles[id]
	w.mu.Unlock()
	if single || w.binds(id) || slices.ContainsFunc(w.foreign, func(f *foreign) bool { return f.entry.ID == id && f.single != (watch.Single{}) }) {
		return
	}
	w.m.readers.remove(id, w)
}
