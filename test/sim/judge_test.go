package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// want is what a module is to be.
type want struct {
	letters string
	zone    string // empty: everywhere
	number  int    // is written into every object; it grows with each put
}

// place is what a cluster is.
type place struct {
	zone string
	gone bool
	keep bool // it left, and keeps what it has
}

// wish is all that is wanted at one time.
type wish struct {
	modules  map[string]want
	clusters map[string]place
}

func (x wish) with(change func(*wish)) wish {
	out := wish{modules: maps.Clone(x.modules), clusters: maps.Clone(x.clusters)}
	change(&out)
	return out
}

// selects reports that a module is wanted in a cluster.
func (x wish) selects(m want, cluster string) bool {
	p := x.clusters[cluster]
	return !p.gone && (m.zone == "" || m.zone == p.zone)
}

// wants reports that a module is to list an object in a cluster.
func (x wish) wants(module, cluster, object string) bool {
	m, ok := x.modules[module]
	return ok && x.selects(m, cluster) && strings.Contains(m.letters, object)
}

// owner is the module that wants an object in a cluster; empty: none.
func (x wish) owner(cluster, object string) string {
	for _, m := range moduleNames {
		if x.wants(m, cluster, object) {
			return m
		}
	}
	return ""
}

// judge knows what is wanted and looks at everything that happens.
type judge struct {
	w *world

	// What follows is guarded by the lock of the world.
	since   []wish // all that was wanted since everything was as wanted last; ends with what is wanted now
	steered bool   // somebody took a rollout back since
	back    map[string]bool
	held    bool                                  // somebody holds something back
	revs    map[string]map[int64]want             // by module and revision, of those that are known
	has     map[string]map[string]map[string]bool // by cluster and object, the contents that an agent gave it
	writer  map[string]int                        // by cluster, the newest process that wrote
	leaving map[string]bool                       // clusters whose agents were told to leave since
	still   bool                                  // nothing is to be written
	stopped map[string]string                     // by cluster, a module of which nothing is to be written
	found   []string
}

func newJudge(w *world) *judge {
	first := wish{modules: map[string]want{}, clusters: map[string]place{}}
	for i, name := range clusterNames {
		first.clusters[name] = place{zone: []string{"x", "y"}[i%2]}
	}
	return &judge{w: w, since: []wish{first}, back: map[string]bool{}, revs: map[string]map[int64]want{}, has: map[string]map[string]map[string]bool{},
		writer: map[string]int{}, leaving: map[string]bool{}, stopped: map[string]string{}}
}

func (j *judge) now() wish {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	return j.since[len(j.since)-1]
}

// wish changes what is wanted. What was wanted before may happen still.
func (j *judge) wish(change func(*wish)) {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	j.since = append(j.since, j.since[len(j.since)-1].with(change))
}

// rested says that everything is as wanted, and nothing of before can happen any more.
func (j *judge) rested() {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	j.since, j.steered, j.held = j.since[len(j.since)-1:], false, false
	clear(j.back)
	clear(j.leaving)
}

// finds notes that something is wrong.
func (j *judge) finds(format string, args ...any) {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	j.notes(format, args...)
}

// notes is finds, with the lock.
func (j *judge) notes(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	j.w.noted("FOUND %s", text)
	j.found = append(j.found, text)
}

func (j *judge) wrong() bool {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	return len(j.found) > 0
}

// agentEnded judges that an agent ended by itself. One that its API server fails may: it is started again.
func (j *judge) agentEnded(b *box, err error) {
	for _, fails := range []string{errAPI.Error(), "etcdserver: request timed out", "no answer within", "context deadline exceeded"} {
		if strings.Contains(err.Error(), fails) {
			return
		}
	}
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	if !j.w.over && !j.since[len(j.since)-1].clusters[b.name].gone {
		j.notes("I10: %s: the agent ended by itself: %v", b.name, err)
	}
}

// ours reports that an object is of a module.
func ours(o *unstructured.Unstructured) bool { return o != nil && o.GetLabels()[fleet.HubLabel] != "" }

// ownerOf is the module that an object says it is of.
func ownerOf(o *unstructured.Unstructured) string {
	owner, _, _ := strings.Cut(o.GetAnnotations()[fleet.OwnerAnnotation], "@")
	_, name, _ := strings.Cut(owner, "/")
	return name
}

// contentOf is what a module wrote into an object, and its number.
func contentOf(o *unstructured.Unstructured) (text, module string, number int) {
	text, _, _ = unstructured.NestedString(o.Object, "data", "v")
	module, n, _ := strings.Cut(text, "/")
	number, _ = strconv.Atoi(n)
	return text, module, number
}

// wrote judges a change of a cluster, while nothing else happens in it.
func (j *judge) wrote(b *box, x Write) {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	j.w.history.wrote(b, x)
	if x.Resource != "configmaps" {
		if x.Agent != 0 {
			j.epoch(b, x)
		}
		return
	}
	j.w.noted("    %s: %s", b.name, describe(x))
	if x.Agent == 0 {
		return
	}
	j.epoch(b, x)
	if x.Old != nil && !ours(x.Old) && !takenUp(x) {
		j.notes("I2: %s: %s of what is not ours", b.name, describe(x))
		return
	}
	if j.still {
		j.notes("I11: %s: %s while nothing had changed", b.name, describe(x))
	}
	if m := j.stopped[b.name]; m != "" && ownerOf(x.Old) == m {
		j.notes("I1: %s: %s, which is held", b.name, describe(x))
	}
	if x.Verb == "delete" {
		j.deleted(b, x.Old)
		return
	}
	if !ours(x.New) { // let go
		return
	}
	j.applied(b, x)
}

// takenUp reports that a module writes what one had let go before: the cluster kept it when it left, and joined again. What is
// somebody else's says so.
func takenUp(x Write) bool {
	_, theirs, _ := unstructured.NestedString(x.Old.Object, "data", "w")
	return x.New != nil && !theirs
}

func describe(x Write) string {
	from, to := "-", "-"
	if x.Old != nil {
		text, _, _ := contentOf(x.Old)
		from = ownerOf(x.Old) + ":" + text
	}
	if x.New != nil {
		text, _, _ := contentOf(x.New)
		to = ownerOf(x.New) + ":" + text
	}
	return fmt.Sprintf("%s %s %s -> %s by process %d", x.Verb, x.Name(), from, to, x.Agent)
}

// deletedSince reports that a module was not there at some time since everything was as wanted, but was before; mu is held.
func (j *judge) deletedSince(module string) bool {
	there := false
	for _, at := range j.since {
		_, is := at.modules[module]
		if there && !is {
			return true
		}
		there = there || is
	}
	return false
}

// epoch judges that processes of an agent write one after the other.
func (j *judge) epoch(b *box, x Write) {
	if x.Agent < j.writer[b.name] {
		j.notes("I7: %s: process %d writes %s after process %d did", b.name, x.Agent, x.Name(), j.writer[b.name])
	}
	j.writer[b.name] = x.Agent
}

// applied judges what an agent made of an object.
func (j *judge) applied(b *box, x Write) {
	object, owner := x.New.GetName(), ownerOf(x.New)
	text, module, number := contentOf(x.New)
	if module != owner {
		j.notes("I6: %s: %s has the content of module %s", b.name, describe(x), module)
		return
	}
	if !slices.ContainsFunc(j.since, func(at wish) bool {
		m, ok := at.modules[module]
		return ok && (at.selects(m, b.name) || j.selectedSince(m, b.name))
	}) && !j.back[module] {
		j.notes("I6: %s: %s, and the module is wanted elsewhere only", b.name, describe(x))
	}
	if !j.back[module] && !slices.ContainsFunc(j.since, func(at wish) bool {
		m, ok := at.modules[module]
		return ok && m.number == number && strings.Contains(m.letters, object)
	}) {
		j.notes("I3: %s: %s, which is not wanted since everything was as wanted", b.name, describe(x))
	}
	if x.Old != nil && ownerOf(x.Old) == owner && !j.back[module] {
		if _, was, before := contentOf(x.Old); was == module && before > number {
			j.notes("I3: %s: %s is older", b.name, describe(x))
		}
	}
	j.gave(b.name, object, text)
}

// selectedSince reports that a cluster was, since everything was as wanted, where a module goes to.
func (j *judge) selectedSince(m want, cluster string) bool {
	return slices.ContainsFunc(j.since, func(at wish) bool { return at.selects(m, cluster) })
}

func (j *judge) gave(cluster, object, text string) {
	if j.has[cluster] == nil {
		j.has[cluster] = map[string]map[string]bool{}
	}
	if j.has[cluster][object] == nil {
		j.has[cluster][object] = map[string]bool{}
	}
	j.has[cluster][object][text] = true
}

// deleted judges a deletion. What a module wanted all the time stays; and so does what there was a module for at any time, unless a
// rollout was taken back, or its module was deleted and put again.
func (j *judge) deleted(b *box, old *unstructured.Unstructured) {
	object, by := old.GetName(), ownerOf(old)
	if p := j.since[len(j.since)-1].clusters[b.name]; p.gone && p.keep {
		all := !j.steered
		for _, at := range j.since {
			for _, of := range j.since {
				x := wish{modules: at.modules, clusters: maps.Clone(of.clusters)}
				q := x.clusters[b.name]
				q.gone = q.gone && !q.keep
				x.clusters[b.name] = q
				all = all && x.wants(by, b.name, object)
			}
		}
		if all {
			j.notes("I1: %s: %s of %s is deleted, and the cluster was to keep it", b.name, object, by)
			return
		}
	}
	for _, m := range moduleNames {
		always := !j.back[m]
		for _, at := range j.since {
			for _, of := range j.since { // a module of one time and the clusters of another
				always = always && wish{modules: at.modules, clusters: of.clusters}.wants(m, b.name, object)
			}
		}
		if always {
			j.notes("I1: %s: %s of %s is deleted, and %s wanted it all the time", b.name, object, by, m)
			return
		}
	}
	if j.steered {
		return
	}
	again := slices.ContainsFunc(j.since, func(at wish) bool { _, there := at.modules[by]; return !there })
	some := true
	for _, at := range j.since {
		for _, of := range j.since {
			x := wish{modules: at.modules, clusters: of.clusters}
			m := x.owner(b.name, object)
			some = some && m != "" && (m != by || !again)
		}
	}
	if some {
		j.notes("I1: %s: %s of %s is deleted, and at any time there was a module that wanted it", b.name, object, by)
	}
}
