package truth

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
		n := w.random.IntN(124)
		for _, o := range []struct {
			weight int
			do     func() bool
		}{
			{28, w.put}, {3, w.putAgain}, {5, w.delete}, {2, w.orphan},
			{20, w.edit}, {9, w.erase}, {6, w.unmark}, {4, w.squat}, {2, w.clear},
			{4, w.killAgent}, {2, w.stopAgent}, {3, w.pauseAgent}, {3, w.killHub}, {3, w.cut}, {4, w.relabel},
			{1, w.killServer}, {1, w.killStore},
			{4, w.replace}, {3, w.strip}, {3, w.pin}, {1, w.empty}, {1, w.undefine}, {1, w.hang}, {2, w.lose}, {3, w.hold}, {3, w.take}, {3, w.roll},
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

func pick[T any](w *world, list []T) T { return list[w.random.IntN(len(list))] }

func (w *world) anyID() id { return id{pick(w, kinds), fmt.Sprintf("o%d", w.random.IntN(names))} }

func (w *world) value() string { return fmt.Sprintf("v%d", w.random.IntN(1_000_000)) }

func (w *world) cluster() *lab.Cluster { return pick(w, w.Clusters) }

// put makes a module or changes it: some objects stay, some change, some go, some come.
func (w *world) put() bool {
	name := fmt.Sprintf("m%d", w.random.IntN(modules))
	m := w.modules[name]
	next := &module{objects: set{}}
	if m != nil {
		next.ring, next.policy, next.since = m.ring, m.policy, m.since
		for _, x := range sorted(m.objects) {
			switch w.random.IntN(4) {
			case 0:
			case 1:
				next.objects[x] = w.value()
			default:
				next.objects[x] = m.objects[x]
			}
		}
	}
	if w.random.IntN(5) == 0 {
		next.ring = pick(w, append(rings, "", ""))
	}
	if w.random.IntN(6) == 0 {
		next.policy = pick(w, append(slices.Sorted(maps.Keys(policies)), "", ""))
	}
	for range 1 + w.random.IntN(4) {
		if len(next.objects) < most {
			next.objects[w.anyID()] = w.value()
		}
	}
	w.note("put", "%s ring=%q policy=%q %v", name, next.ring, next.policy, next.objects)
	r := w.Feed(w.t.Context(), next.text(name), "apply", "-f", "-")
	if m == nil && strings.Contains(r.Stderr, "is being deleted") {
		return true // it is still on its way out of a cluster that can be reached
	}
	if r.Err() != nil {
		w.fatal("%v", r.Err())
	}
	next.since = append(next.since, version{next.objects, next.ring})
	w.modules[name] = next
	return true
}

func (w *world) someModule() (string, *module) {
	if len(w.modules) == 0 {
		return "", nil
	}
	name := pick(w, slices.Sorted(maps.Keys(w.modules)))
	return name, w.modules[name]
}

func (w *world) putAgain() bool {
	name, m := w.someModule()
	if m == nil {
		return false
	}
	w.note("put again", "%s", name)
	if r := w.Feed(w.t.Context(), m.text(name), "apply", "-f", "-"); r.Err() != nil {
		w.fatal("%v", r.Err())
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
	w.note(what, "%s", name)
	w.towline(append([]string{"delete", "module", name, "--yes", "--wait=false"}, flags...)...)
	delete(w.modules, name)
	delete(w.history, name)
	w.removed[name] = true
	return true
}

// reach says whether the API server of a cluster can be asked now.
func (w *world) reach(c *lab.Cluster) bool { return w.down["server "+c.Name] == nil }

// found picks an object of the pool that is live in a cluster.
func (w *world) found() (*lab.Cluster, id, bool) {
	c, x := w.cluster(), w.anyID()
	if !w.reach(c) {
		return nil, id{}, false
	}
	_, err := w.live(c, x)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, id{}, false
	}
	must(w.t, err)
	return c, x, true
}

func (w *world) edit() bool {
	c, x, ok := w.found()
	if !ok {
		return false
	}
	v := w.value()
	w.note("edit", "%s %s %s", c.Name, x, v)
	return w.merge(c, x, shapes[x.kind].edit(v), func() {
		if _, foreign := w.foreign[place{c.Name, x}]; foreign {
			w.foreign[place{c.Name, x}] = v
		}
	})
}

func (w *world) merge(c *lab.Cluster, x id, patch string, then func()) bool {
	resource, err := c.Resource(shapes[x.kind].apiVersion, x.kind, home)
	must(w.t, err)
	_, err = resource.Patch(w.t.Context(), x.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	if apierrors.IsNotFound(err) {
		return true
	}
	must(w.t, err)
	then()
	return true
}

// erase deletes an object behind the agent's back.
func (w *world) erase() bool {
	c, x, ok := w.found()
	if !ok {
		return false
	}
	w.note("erase", "%s %s", c.Name, x)
	w.gone(c, x)
	return true
}

func (w *world) gone(c *lab.Cluster, x id) {
	resource, err := c.Resource(shapes[x.kind].apiVersion, x.kind, home)
	must(w.t, err)
	at := place{c.Name, x}
	w.touched[at] = true
	delete(w.foreign, at)
	if err := resource.Delete(w.t.Context(), x.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		must(w.t, err)
	}
}

// unmark takes our marks from an object.
func (w *world) unmark() bool {
	c, x, ok := w.found()
	if !ok {
		return false
	}
	patch := pick(w, []string{`{"metadata":{"labels":{"towline.dev/hub":null}}}`, `{"metadata":{"annotations":{"towline.dev/owner":null}}}`,
		`{"metadata":{"labels":{"towline.dev/hub":null},"annotations":{"towline.dev/owner":null}}}`})
	w.note("unmark", "%s %s %s", c.Name, x, patch)
	return w.merge(c, x, patch, func() {})
}

// squat makes an object of the pool as somebody else, where there is none.
func (w *world) squat() bool {
	c, x := w.cluster(), id{"ConfigMap", fmt.Sprintf("o%d", w.random.IntN(names))}
	if !w.reach(c) {
		return false
	}
	v := "foreign-" + w.value()
	err := c.Create(w.t.Context(), x.wanted(v))
	if apierrors.IsAlreadyExists(err) {
		return false
	}
	must(w.t, err)
	w.note("squat", "%s %s %s", c.Name, x, v)
	w.foreign[place{c.Name, x}] = v
	return true
}

// clear deletes an object that the test made.
func (w *world) clear() bool {
	for _, c := range w.Clusters {
		for _, x := range w.pool() {
			if _, ok := w.foreign[place{c.Name, x}]; ok && w.reach(c) {
				w.note("clear", "%s %s", c.Name, x)
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

func (w *world) killAgent() bool {
	return w.restart("kill agent", func(a *lab.Agent) { a.Kill() })
}

func (w *world) stopAgent() bool {
	return w.restart("stop agent", func(a *lab.Agent) { a.Stop() })
}

// restart ends an agent; now and then it stays away until the next quiet point.
func (w *world) restart(what string, end func(*lab.Agent)) bool {
	a := w.cluster().Agent
	if !a.Running() {
		return false
	}
	w.note(what, "%s", a.Name)
	w.resume(a)
	end(a)
	back := func() { must(w.t, a.Start()) }
	if w.random.IntN(3) > 0 {
		back()
		return true
	}
	w.down[a.Name] = back
	return true
}

// pauseAgent stops an agent where it is until the next quiet point, or for a few operations.
func (w *world) pauseAgent() bool {
	a := w.cluster().Agent
	if !a.Running() || w.down["pause "+a.Name] != nil {
		return false
	}
	w.note("pause agent", "%s", a.Name)
	a.Pause()
	w.down["pause "+a.Name] = a.Resume
	return true
}

func (w *world) resume(a *lab.Agent) {
	if back := w.down["pause "+a.Name]; back != nil {
		back()
		delete(w.down, "pause "+a.Name)
	}
}

func (w *world) killHub() bool {
	w.note("kill hub", "")
	w.Hub.Kill()
	must(w.t, w.Hub.Start(w.t.Context()))
	return true
}

// cut breaks the way between an agent and the hub until the next quiet point.
func (w *world) cut() bool {
	c := w.cluster()
	if w.down["link "+c.Name] != nil {
		return false
	}
	w.note("cut", "%s", c.Name)
	c.Link.Cut()
	w.down["link "+c.Name] = c.Link.Restore
	return true
}

// relabel moves a cluster to the other ring.
func (w *world) relabel() bool {
	c := w.cluster()
	ring := rings[0]
	if w.labels[c.Name] == ring {
		ring = rings[1]
	}
	w.note("relabel", "%s ring=%s", c.Name, ring)
	w.towline("cluster", "label", c.Name, "ring="+ring, "--yes")
	w.labels[c.Name] = ring
	for _, x := range w.pool() {
		w.touched[place{c.Name, x}] = true
	}
	return true
}

func (w *world) killServer() bool { return w.killParts("apiserver") }

func (w *world) killStore() bool { return w.killParts("etcd", "apiserver") }

// killParts kills parts of a control plane; they are back at the next quiet point.
func (w *world) killParts(parts ...string) bool {
	c := w.cluster()
	if !w.reach(c) {
		return false
	}
	w.note("kill "+parts[0], "%s", c.Name)
	for _, p := range parts {
		must(w.t, c.Part(w.t.Context(), p, "kill"))
	}
	w.down["server "+c.Name] = func() {
		for _, p := range parts {
			must(w.t, c.Part(w.t.Context(), p, "start"))
		}
	}
	return true
}

// repair brings back all that is down.
func (w *world) repair() {
	for _, what := range slices.Sorted(maps.Keys(w.down)) {
		w.journal = append(w.journal, time.Now().UTC().Format("15:04:05.000 ")+"repair "+what)
		w.down[what]()
	}
	w.down = map[string]func(){}
	w.revive()
	for _, c := range w.Clusters {
		if c != w.inSecrets() && !c.Agent.Running() {
			w.fatal("the agent of %s has ended:\n%s", c.Name, c.Agent.Tail())
		}
	}
	if !w.Hub.Running() {
		w.fatal("the hub has ended:\n%s", w.Hub.Tail())
	}
}
