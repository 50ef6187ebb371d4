package histories

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

// history is what an API server tells of pods, ConfigMaps and Deployments, in the order in which it happened there.
type history struct {
	mu     sync.Mutex
	events []event // not judged yet

	// What there is as of the events that are judged.
	pods    map[string]pod
	maps    map[string]*unstructured.Unstructured
	apps    map[string]*unstructured.Unstructured
	proven  map[int]time.Time // by put: since when all of it has run here
	reached map[int]time.Time // by put: when it came, until that is judged
	came    map[int]bool      // puts that have come
}

// event is one change of an object.
type event struct {
	rv     uint64
	at     time.Time
	kind   string
	gone   bool
	unseen bool // it went while nobody looked
	object *unstructured.Unstructured
}

// pod is what a pod is to the test.
type pod struct {
	config string    // the ConfigMap that it uses
	since  time.Time // ready; zero: it is not
}

// follow watches a cluster until the test ends, over breaks of its API server.
func (w *world) follow(c *lab.Cluster) *history {
	h := &history{pods: map[string]pod{}, maps: map[string]*unstructured.Unstructured{}, apps: map[string]*unstructured.Unstructured{},
		proven: map[int]time.Time{}, reached: map[int]time.Time{}, came: map[int]bool{}}
	for kind, apiVersion := range map[string]string{"Pod": "v1", "ConfigMap": "v1", "Deployment": "apps/v1"} {
		resource, err := c.Resource(apiVersion, kind, home)
		w.Must(err)
		f := &follower{h: h, kind: kind, resource: resource, there: map[string]*unstructured.Unstructured{}}
		w.Must(f.list(w.T.Context()))
		go f.run(w.T.Context())
	}
	return h
}

// follower watches the objects of a kind.
type follower struct {
	h        *history
	kind     string
	resource dynamic.ResourceInterface
	rv       string
	there    map[string]*unstructured.Unstructured
}

// list begins anew, as at first and where an API server that was started does not know the version any more. What went meanwhile, nobody
// tells when.
func (f *follower) list(ctx context.Context) error {
	list, err := f.resource.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	f.rv = list.GetResourceVersion()
	gone := f.there
	f.there = map[string]*unstructured.Unstructured{}
	for i := range list.Items {
		u := &list.Items[i]
		delete(gone, u.GetName())
		f.note(u, false, false)
	}
	for _, u := range gone {
		u.SetResourceVersion(f.rv)
		f.note(u, true, true)
	}
	return nil
}

func (f *follower) note(u *unstructured.Unstructured, gone, unseen bool) {
	n, _ := strconv.ParseUint(u.GetResourceVersion(), 10, 64)
	f.there[u.GetName()] = u
	if gone {
		delete(f.there, u.GetName())
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	f.h.events = append(f.h.events, event{rv: n, at: time.Now(), kind: f.kind, gone: gone, unseen: unseen, object: u})
}

func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		from, err := f.resource.Watch(ctx, metav1.ListOptions{ResourceVersion: f.rv, AllowWatchBookmarks: true})
		if err == nil {
			err = f.take(ctx, from)
			from.Stop()
		}
		if err != nil {
			_ = f.list(ctx) // one that does not answer is asked again
			e2etest.Pause(ctx, 200*time.Millisecond)
		}
	}
}

// take notes what a watch tells until it breaks. It fails where the watch cannot go on from there.
func (f *follower) take(ctx context.Context, from watch.Interface) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-from.ResultChan():
			if !ok {
				return nil
			}
			u, is := e.Object.(*unstructured.Unstructured)
			if !is || e.Type == watch.Error {
				return apierrors.FromObject(e.Object)
			}
			f.rv = u.GetResourceVersion()
			if e.Type != watch.Bookmark {
				f.note(u, e.Type == watch.Deleted, false)
			}
		}
	}
}

// settled is how long all watches have to tell of a moment.
const settled = 2 * time.Second

// due takes what is old enough for all watches to have told of it, in the order in which it happened.
func (h *history) due(all bool) []event {
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortStableFunc(h.events, func(a, b event) int { return cmp.Compare(a.rv, b.rv) })
	n := 0
	for n < len(h.events) && (all || time.Since(h.events[n].at) > settled) {
		n++
	}
	out := slices.Clone(h.events[:n])
	h.events = slices.Clone(h.events[n:])
	return out
}

// replay judges what happened in all clusters since the last time.
func (w *world) replay() {
	for _, c := range w.Clusters {
		h := w.logs[c.Name]
		for _, e := range h.due(false) {
			w.judge(c.Name, h, e)
		}
	}
	canary, other := w.logs["c1"], w.logs["c2"]
	for n, at := range other.reached {
		proven, ok := canary.proven[n]
		switch {
		case time.Since(at) < 2*settled: // the canary's may not be judged yet
			continue
		case w.waved[n] != "" || ok && !proven.After(at.Add(time.Second)):
			w.beyond++
		default:
			w.Fatal("%s got to c2 at %s, and c1 has not run it before (at %s: %t)", w.puts[n], at.UTC().Format("15:04:05.000"), proven.UTC().Format("15:04:05.000"), ok)
		}
		delete(other.reached, n)
	}
}

// judge goes on by one event.
func (w *world) judge(cluster string, h *history, e event) {
	name := e.object.GetName()
	switch e.kind {
	case "Pod":
		h.pod(e)
	case "Deployment":
		h.apps[name] = e.object
		if e.gone {
			delete(h.apps, name)
		}
	case "ConfigMap":
		if e.gone && !e.unseen {
			w.judgeDelete(cluster, h, e)
		}
		if e.gone {
			delete(h.maps, name)
			break
		}
		h.maps[name] = e.object
		if n := putOf(e.object); n > 0 && !h.came[n] {
			h.came[n], h.reached[n] = true, e.at
		}
	}
	w.prove(cluster, h, e.at)
}

// putOf is the number of the put that a module's mark tells of.
func putOf(o *unstructured.Unstructured) int {
	if o == nil || !strings.HasPrefix(o.GetName(), "of-") {
		return 0
	}
	text, _, _ := unstructured.NestedString(o.Object, "data", "put")
	n, _ := strconv.Atoi(text)
	return n
}

func (h *history) pod(e event) {
	name := e.object.GetName()
	if e.gone || e.object.GetDeletionTimestamp() != nil {
		delete(h.pods, name)
		return
	}
	now := pod{config: configOf(e.object, "spec"), since: h.pods[name].since}
	switch ready := isReady(e.object); {
	case !ready:
		now.since = time.Time{}
	case now.since.IsZero():
		now.since = e.at
	}
	h.pods[name] = now
}

func isReady(o *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		m, _ := c.(map[string]any)
		return m["type"] == "Ready" && m["status"] == "True"
	})
}

// configOf is the ConfigMap that the pods of a template, or a pod, use.
func configOf(o *unstructured.Unstructured, path ...string) string {
	containers, _, _ := unstructured.NestedSlice(o.Object, append(path, "containers")...)
	for _, c := range containers {
		m, _ := c.(map[string]any)
		from, _, _ := unstructured.NestedSlice(m, "envFrom")
		for _, f := range from {
			ref, _ := f.(map[string]any)
			name, _, _ := unstructured.NestedString(ref, "configMapRef", "name")
			return name
		}
	}
	return ""
}

// users are the pods that have been ready for a moment and use a ConfigMap.
func (h *history) users(config string, at time.Time) (out []string) {
	for name, p := range h.pods {
		if p.config == config && !p.since.IsZero() && at.Sub(p.since) > time.Second {
			out = append(out, name)
		}
	}
	return out
}

// judgeDelete holds the delete of a ConfigMap against the pods that run. Where the Deployment is gone its pods are on their way out as well;
// that it went is judged at rest.
func (w *world) judgeDelete(cluster string, h *history, e event) {
	name := e.object.GetName()
	if slices.Contains(foreigners, name) {
		w.Fatal("%s: ConfigMap %s of others is deleted", cluster, name)
	}
	users := h.users(name, e.at)
	w.deletes++
	owner := e2etest.Owner(e.object)
	app, _, _ := strings.Cut(name, "-")
	if len(users) == 0 || w.erased[cluster+"/"+name] || h.apps[app] == nil || w.removed[owner] && e2etest.Owner(h.apps[app]) == owner {
		return
	}
	w.Fatal("%s: ConfigMap %s of %s was deleted at %s while pods ran that use it: %v; Deployment %s uses %s and is of %q", cluster, name, owner,
		e.at.UTC().Format("15:04:05.000"), users, app, templateOf(h.apps[app]), e2etest.Owner(h.apps[app]))
}

func templateOf(o *unstructured.Unstructured) string {
	if o == nil {
		return "nothing"
	}
	return configOf(o, "spec", "template", "spec")
}

// prove notes for which puts all that they list has run at the same time. What a policy leaves as somebody made it counts by its health.
func (w *world) prove(cluster string, h *history, at time.Time) {
	for _, name := range modules {
		n := putOf(h.maps[mark(name)])
		if n == 0 || !h.proven[n].IsZero() {
			continue
		}
		runs := true
		for app, c := range w.puts[n].apps {
			if w.puts[n].drift != "Correct" && w.edited[cluster+"/"+app] {
				continue
			}
			runs = runs && h.anyReady(c.name(app)) && templateOf(h.apps[app]) == c.name(app)
		}
		if runs {
			h.proven[n] = at
		}
	}
}

func (h *history) anyReady(config string) bool {
	for _, p := range h.pods {
		if p.config == config && !p.since.IsZero() {
			return true
		}
	}
	return false
}
