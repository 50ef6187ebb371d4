package truth

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

var (
	rings   = []string{"a", "b"}
	listAll = metav1.ListOptions{}
)

const (
	modules = 6
	names   = 4  // of each kind
	most    = 16 // objects of a module: one that drops more than ten and half of itself waits for a person
)

// operate does one thing, or none where it makes no sense now.
func (w *world) operate() {
	for {
		n := w.Rand.IntN(134)
		for _, o := range []struct {
			weight int
			do     func() bool
		}{
			{28, w.put}, {3, w.putAgain}, {5, w.delete}, {2, w.orphan},
			{20, w.edit}, {9, w.erase}, {6, w.unmark}, {10, w.squat}, {2, w.clear},
			{4, w.KillAgent}, {2, func() bool { return w.EndAgent("stop agent", (*lab.Agent).Stop) }}, {3, w.PauseAgent}, {3, w.KillHub}, {3, w.Cut}, {4, w.relabel},
			{1, w.KillServer}, {1, func() bool { return w.KillParts("etcd", "apiserver") }},
			{4, w.replace}, {3, w.strip}, {3, w.pin}, {1, w.empty}, {1, w.undefine}, {1, w.hang}, {2, w.lose}, {3, w.hold}, {3, w.take}, {3, w.roll}, {2, w.leave}, {2, w.begin},
		} {
			if n -= o.weight; n < 0 {
				if o.do() {
					return
				}
				break
			}
		}
	}
}

func (w *world) anyID() id {
	return id{e2etest.Pick(w.Random, kinds), fmt.Sprintf("o%d", w.Rand.IntN(names))}
}

// wantedID is one that a module comes to list. Now and then somebody else has it.
func (w *world) wantedID() id {
	var foreign []id
	for _, c := range w.Clusters {
		for _, x := range w.pool() {
			if _, is := w.foreign[place{c.Name, x}]; is {
				foreign = append(foreign, x)
			}
		}
	}
	if len(foreign) == 0 || w.Rand.IntN(3) > 0 {
		return w.anyID()
	}
	return e2etest.Pick(w.Random, foreign)
}

func (w *world) value() string { return fmt.Sprintf("v%d", w.Rand.IntN(1_000_000)) }

// put makes a module or changes it: some objects stay, some change, some go, some come.
func (w *world) put() bool {
	name := fmt.Sprintf("m%d", w.Rand.IntN(modules))
	m := w.modules[name]
	next := &module{objects: set{}}
	if m != nil {
		next.ring, next.policy, next.since = m.ring, m.policy, m.since
		for _, x := range sorted(m.objects) {
			switch w.Rand.IntN(4) {
			case 0:
			case 1:
				next.objects[x] = w.value()
			default:
				next.objects[x] = m.objects[x]
			}
		}
	}
	if w.Rand.IntN(5) == 0 {
		next.ring = e2etest.Pick(w.Random, append(rings, "", ""))
	}
	if w.Rand.IntN(6) == 0 {
		next.policy = e2etest.Pick(w.Random, append(slices.Sorted(maps.Keys(policies)), "", ""))
	}
	for range 1 + w.Rand.IntN(4) {
		if len(next.objects) < most {
			next.objects[w.wantedID()] = w.value()
		}
	}
	w.Note("put", "%s ring=%q policy=%q %v", name, next.ring, next.policy, next.objects)
	r := w.Feed(w.T.Context(), next.text(name), "apply", "-f", "-")
	if m == nil && strings.Contains(r.Stderr, "is being deleted") {
		return true // it is still on its way out of a cluster that can be reached
	}
	if r.Err() != nil {
		w.Fatal("%v", r.Err())
	}
	next.since = append(next.since, version{next.objects, next.ring})
	w.modules[name] = next
	return true
}

func (w *world) someModule() (string, *module) {
	if len(w.modules) == 0 {
		return "", nil
	}
	name := e2etest.Pick(w.Random, slices.Sorted(maps.Keys(w.modules)))
	return name, w.modules[name]
}

func (w *world) putAgain() bool {
	name, m := w.someModule()
	if m == nil {
		return false
	}
	w.Note("put again", "%s", name)
	if r := w.Feed(w.T.Context(), m.text(name), "apply", "-f", "-"); r.Err() != nil {
		w.Fatal("%v", r.Err())
	}
	return true
}

func (w *world) delete() bool { return w.remove("delete") }

func (w *world) orphan() bool { return w.remove("orphan", "--orphan") }

func (w *world) remove(what string, flags ...string) bool {
	name, m := w.someModule()
	if m == nil {
		return false
	}
	w.Note(what, "%s", name)
	w.towline(append([]string{"delete", "module", name, "--yes", "--wait=false"}, flags...)...)
	delete(w.modules, name)
	delete(w.history, name)
	w.removed[name] = true
	return true
}

// found picks one of the objects of the pool that are live in a cluster.
func (w *world) found() (*lab.Cluster, id, bool) {
	c := w.AnyCluster()
	if !w.Reach(c) {
		return nil, id{}, false
	}
	s := &state{live: map[place]*unstructured.Unstructured{}}
	if err := w.list(c, s); !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) { // a kind that is taken away
		w.Must(err)
	}
	var there []id
	for _, x := range w.pool() {
		if s.live[place{c.Name, x}] != nil {
			there = append(there, x)
		}
	}
	if len(there) == 0 {
		return nil, id{}, false
	}
	return c, e2etest.Pick(w.Random, there), true
}

func (w *world) edit() bool {
	c, x, ok := w.found()
	if !ok {
		return false
	}
	v := w.value()
	w.Note("edit", "%s %s %s", c.Name, x, v)
	return w.merge(c, x, shapes[x.kind].edit(v), func() {
		if _, foreign := w.foreign[place{c.Name, x}]; foreign {
			w.foreign[place{c.Name, x}] = v
		}
	})
}

func (w *world) merge(c *lab.Cluster, x id, patch string, then func()) bool {
	resource, err := c.Resource(shapes[x.kind].apiVersion, x.kind, home)
	w.Must(err)
	_, err = resource.Patch(w.T.Context(), x.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	if apierrors.IsNotFound(err) {
		return true
	}
	w.Must(err)
	then()
	return true
}

// erase deletes an object behind the agent's back.
func (w *world) erase() bool {
	c, x, ok := w.found()
	if !ok {
		return false
	}
	w.Note("erase", "%s %s", c.Name, x)
	w.gone(c, x)
	return true
}

func (w *world) gone(c *lab.Cluster, x id) {
	resource, err := c.Resource(shapes[x.kind].apiVersion, x.kind, home)
	w.Must(err)
	at := place{c.Name, x}
	w.touched[at] = true
	delete(w.foreign, at)
	if err := resource.Delete(w.T.Context(), x.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.Must(err)
	}
}

// unmark takes our marks from an object.
func (w *world) unmark() bool {
	c, x, ok := w.found()
	if !ok {
		return false
	}
	patch := e2etest.Pick(w.Random, []string{`{"metadata":{"labels":{"towline.dev/hub":null}}}`, `{"metadata":{"annotations":{"towline.dev/owner":null}}}`,
		`{"metadata":{"labels":{"towline.dev/hub":null},"annotations":{"towline.dev/owner":null}}}`})
	w.Note("unmark", "%s %s %s", c.Name, x, patch)
	return w.merge(c, x, patch, func() {})
}

// squat makes an object of the pool as somebody else, where there is none.
func (w *world) squat() bool {
	c, x := w.AnyCluster(), id{"ConfigMap", fmt.Sprintf("o%d", w.Rand.IntN(names))}
	if !w.Reach(c) {
		return false
	}
	v := "foreign-" + w.value()
	err := c.Create(w.T.Context(), x.wanted(v))
	if apierrors.IsAlreadyExists(err) {
		return false
	}
	w.Must(err)
	w.Note("squat", "%s %s %s", c.Name, x, v)
	w.foreign[place{c.Name, x}] = v
	return true
}

// clear deletes an object that the test made.
func (w *world) clear() bool {
	for _, c := range w.Clusters {
		for _, x := range w.pool() {
			if _, ok := w.foreign[place{c.Name, x}]; ok && w.Reach(c) {
				w.Note("clear", "%s %s", c.Name, x)
				w.gone(c, x)
				return true
			}
		}
	}
	return false
}

func (w *world) pool() []id {
	var out []id
	for _, k := range kinds {
		for i := range names {
			out = append(out, id{k, fmt.Sprintf("o%d", i)})
		}
	}
	return out
}

// relabel moves a cluster to the other ring.
func (w *world) relabel() bool {
	c := w.AnyCluster()
	if w.leaving(c) {
		return false
	}
	ring := rings[0]
	if w.labels[c.Name] == ring {
		ring = rings[1]
	}
	w.Note("relabel", "%s ring=%s", c.Name, ring)
	w.towline("cluster", "label", c.Name, "ring="+ring, "--yes")
	w.labels[c.Name] = ring
	for _, x := range w.pool() {
		w.touched[place{c.Name, x}] = true
	}
	return true
}

// repair brings back all that is down.
func (w *world) repair() {
	w.BringAll()
	w.revive()
	for _, c := range w.Clusters {
		if c != w.inSecrets() && !c.Agent.Running() {
			w.Fatal("the agent of %s has ended:\n%s", c.Name, c.Agent.Tail())
		}
	}
	if !w.Hub.Running() {
		w.Fatal("the hub has ended:\n%s", w.Hub.Tail())
	}
}
