package truth

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

func placeOf(r e2etest.Row) place { return place{r.Cluster, id{r.Object.Kind, r.Object.Name}} }

// state is what is seen at one look.
type state struct {
	rows []e2etest.Row
	live map[place]*unstructured.Unstructured
	// rollouts is how the newest rollout of each module stands.
	rollouts map[string]string
	// lies are statements of the hub that are not so. They may be a moment old, not more.
	lies []string
	// pending is what is not yet as it has to be.
	pending []string
}

func (s *state) lie(format string, args ...any) {
	s.lies = append(s.lies, fmt.Sprintf(format, args...))
}
func (s *state) wait(format string, args ...any) {
	s.pending = append(s.pending, fmt.Sprintf(format, args...))
}

// rest brings back what is down, waits until everything is as it has to be, and holds it against what was before.
func (w *world) rest() {
	w.repair()
	deadline := time.Now().Add(limit)
	for calm := 0; calm < 2; {
		w.revive()
		s := w.look()
		w.Lying(s.lies, lag)
		switch {
		case len(s.lies)+len(s.pending) == 0:
			calm++
		case time.Now().After(deadline):
			w.Fatal("not at rest after %s:\n  %s", limit, strings.Join(append(s.lies, s.pending...), "\n  "))
		default:
			calm = 0
		}
		if calm == 2 {
			w.settle(s)
			w.sicken(s)
			w.T.Logf("at rest after %d operations; %d rows compared", w.operations(), w.compared) // a run may take hours
			return
		}
		w.confirm()
		w.Pause(300 * time.Millisecond)
	}
}

// confirm lets go what waits for a person: whole modules that leave a cluster. What waited may be over by then, because a newer
// rollout asks anew, or an agent that is just back finds more; what stays unconfirmed keeps the test from its rest.
func (w *world) confirm() {
	for _, name := range w.holds() {
		if strings.HasPrefix(name, "hold/freeze-") { // by somebody, who ends it, or with its module
			continue
		}
		w.Write("confirm " + name)
		if err := w.CLI(w.T.Context(), "confirm", name).Err(); err != nil {
			w.Write(err.Error())
		}
	}
}

func (w *world) holds() []string { return strings.Fields(w.towline("get", "holds", "-o", "name")) }

func (w *world) look() *state {
	s := &state{live: map[place]*unstructured.Unstructured{}}
	if !w.connected(s) {
		return s
	}
	s.rows = w.Rows()
	for _, c := range w.Clusters {
		if err := w.list(c, s); err != nil {
			s.wait("%s: %v", c.Name, err)
			return s
		}
	}
	w.readRevisions()
	s.rollouts = w.rollouts()
	w.checkRows(s)
	w.checkComplete(s)
	w.checkForeign(s)
	return s
}

func (w *world) rollouts() map[string]string {
	out := map[string]string{}
	for name := range w.modules {
		out[name] = strings.TrimSpace(w.towline("get", "module", name, "-o", "jsonpath={.status.rolloutState}"))
	}
	return out
}

// stays reports that a row waits for a module that does not go on by itself: a person is to say how.
func (s *state) stays(r e2etest.Row) bool {
	return s.stuck(waitsFor(r), len(s.rollouts)) || r.Extra && slices.ContainsFunc(s.rows, func(first e2etest.Row) bool {
		return first.Cluster == r.Cluster && first.Module == r.Module && goesAfter(r, first) && s.stuck(waitsFor(first), len(s.rollouts))
	})
}

// goesAfter reports that a row says that its object goes after that of another one, which stays.
func goesAfter(r, first e2etest.Row) bool {
	_, after, _ := strings.Cut(r.Message, "goes after ")
	named, _, stays := strings.Cut(after, ", which stays for now")
	kind, name, _ := strings.Cut(named, " ")
	kind, _, _ = strings.Cut(kind, ".")
	return stays && r.Reason == "Removing" && kind == first.Object.Kind && path.Base(name) == first.Object.Name
}

// waitsFor is the module that is to take an object over, or to let it go; empty: there is none.
func waitsFor(r e2etest.Row) string {
	var name string
	switch r.Reason {
	case "AwaitingHeir":
		_, other, found := strings.Cut(r.Message, "goes to module ")
		if !found {
			return r.Module // its own revision is on the way
		}
		name = other
	case "AwaitingOwner":
		_, name, _ = strings.Cut(r.Message, "waits for module ")
	}
	return strings.TrimSuffix(strings.SplitN(name, " ", 2)[0], ",")
}

// stuck reports that a module's rollout is paused, or that it waits itself for one that is.
func (s *state) stuck(module string, depth int) bool {
	if module == "" || depth == 0 {
		return false
	}
	return strings.HasPrefix(s.rollouts[module], "Paused") || s.waits(module, depth)
}

// waits reports that a module's rollout goes on only when another module does that is stuck.
func (s *state) waits(module string, depth int) bool {
	return strings.HasPrefix(s.rollouts[module], "Progressing") &&
		slices.ContainsFunc(s.rows, func(r e2etest.Row) bool { return r.Module == module && s.stuck(waitsFor(r), depth-1) })
}

func (w *world) connected(s *state) bool {
	for _, c := range w.Clusters {
		if got := strings.TrimSpace(w.towline("get", "clusters", c.Name, "-o", "jsonpath={.status.state}")); got != "Ready" {
			s.wait("cluster %s is %s", c.Name, got)
			return false
		}
	}
	return true
}

// list reads the pool's objects of a cluster.
func (w *world) list(c *lab.Cluster, s *state) (failed error) {
	for _, kind := range kinds {
		resource, err := c.Resource(shapes[kind].apiVersion, kind, home)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		objects, err := resource.List(w.T.Context(), listAll)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		for i := range objects.Items {
			s.live[place{c.Name, id{kind, objects.Items[i].GetName()}}] = &objects.Items[i]
		}
	}
	return failed
}

// readRevisions learns what each revision of a module lists.
func (w *world) readRevisions() {
	hub, err := w.Hub.Client(w.T.Context())
	w.Must(err)
	defer hub.Close()
	for name := range w.modules {
		w.history[name], w.reports[name] = map[int]set{}, map[int]bool{}
		for listed, err := range hub.AllRevisions(w.T.Context(), &v1.ListRevisionsRequest{Module: name}) {
			w.Must(err)
			resp, err := hub.Modules.GetRevision(w.T.Context(), &v1.GetRevisionRequest{Module: name, Number: listed.GetNumber()})
			w.Must(err)
			policies := resp.GetRevision().GetSpec().GetPolicies()
			w.reports[name][int(listed.GetNumber())] = len(policies) > 0 && policies[0].GetDrift() == "Report"
			w.history[name][int(listed.GetNumber())] = read(resp.GetRevision().GetSpec().GetSource().GetInline().GetFiles()["a.yaml"])
		}
	}
}

// read is the opposite of manifest.
func read(text string) set {
	out := set{}
	for _, doc := range strings.Split(text, "---\n")[1:] {
		lines := strings.SplitN(doc, "\n", 4)
		kind := strings.TrimPrefix(lines[1], "kind: ")
		name := strings.TrimSuffix(strings.TrimPrefix(lines[2], "metadata: {name: "), "}")
		out[id{kind, name}] = lines[3]
	}
	return out
}

// checkRows holds every row against the cluster.
func (w *world) checkRows(s *state) {
	unapplied := map[[2]string]bool{} // and stay so
	lists, missing := map[string]map[place]bool{}, map[place]bool{}
	for _, r := range s.rows {
		if r.Health == "Missing" && w.reports[r.Module][r.Number()] && !r.Extra { // its module has it still, and leaves it deleted
			missing[placeOf(r)] = true
		}
		if r.Drift == "Conflict" || r.Reason == "AwaitingOwner" && s.stays(r) {
			unapplied[[2]string{r.Cluster, r.Module}] = true
		}
		if lists[r.Module] == nil {
			lists[r.Module] = map[place]bool{}
		}
		lists[r.Module][placeOf(r)] = true
	}
	for _, r := range s.rows {
		w.compared++
		live := s.live[placeOf(r)]
		objects := w.history[r.Module][r.Number()]
		switch {
		case r.Extra && live == nil && r.Unsettled():
			s.wait("%s; for a while after its agent's start nobody knows", r)
		case r.Extra && e2etest.Owner(live) == "":
			s.lie("%s; but it has none", r)
		case r.Extra && e2etest.Owner(live) != r.Module && lists[e2etest.Owner(live)][placeOf(r)]:
			s.lie("%s; but it belongs to %s, which has a row for it", r, e2etest.Owner(live))
		case r.Extra && unapplied[[2]string{r.Cluster, r.Module}]: // nothing is pruned before all is applied
		case (r.Extra || live != nil && e2etest.Owner(live) != r.Module) && s.stays(r):
		case r.Extra && r.Reason == "Kept" && r.Drift == "Unknown" && w.modules[r.Module] != nil && e2etest.Owner(live) == r.Module:
		case w.reports[r.Module][r.Number()] && (r.Drift == "Drifted" || r.Health == "Missing") && !r.Extra:
			w.checkDrift(s, r, live, objects)
		case r.Fine():
			w.checkFine(s, r, live, objects)
		case r.Drift == "Conflict" && (live != nil && e2etest.Owner(live) != r.Module || live == nil && missing[placeOf(r)]):
		default:
			s.wait("%s", r)
		}
	}
}

// checkDrift holds a row that says that an object is not as its revision lists it, and stays so.
func (w *world) checkDrift(s *state, r e2etest.Row, live *unstructured.Unstructured, objects set) {
	spec, listed := objects[placeOf(r).id]
	switch {
	case w.modules[r.Module] == nil:
		s.wait("%s; but the module is deleted", r)
	case !listed:
		s.lie("%s; but the revision does not list it", r)
	case (r.Health == "Missing") != (live == nil):
		s.lie("%s; but it is there: %t", r, live != nil)
	case live != nil && lab.AsWanted(placeOf(r).id.parsed(spec), live) == nil && live.GetKind() != "NetworkPolicy":
		s.lie("%s; but it is as listed", r)
	}
}

// checkFine holds a row that says that all is well against the object.
func (w *world) checkFine(s *state, r e2etest.Row, live *unstructured.Unstructured, objects set) {
	x := placeOf(r).id
	spec, listed := objects[x]
	switch {
	case w.modules[r.Module] == nil:
		s.wait("%s; but the module is deleted", r)
		return
	case !listed:
		s.lie("%s; but the revision does not list it", r)
		return
	case live == nil:
		s.lie("%s; but it is not there", r)
		return
	case e2etest.Owner(live) != r.Module:
		s.lie("%s; but it belongs to %q", r, e2etest.Owner(live))
		return
	}
	if err := lab.AsWanted(x.parsed(spec), live); err != nil {
		s.lie("%s; but %v", r, err)
	}
	if selector, _, _ := unstructured.NestedMap(live.Object, "spec", "podSelector"); x.kind == "NetworkPolicy" && len(selector) > 0 {
		s.lie("%s; but its podSelector is %v", r, selector)
	}
	if ready, _, _ := unstructured.NestedInt64(live.Object, "status", "readyReplicas"); x.kind == "Deployment" && ready != 1 {
		s.lie("%s; but %d pods are ready", r, ready)
	}
}

// checkComplete: every object of every module has its row where the module is placed, every object with our marks has
// one, and a module that is gone has none.
func (w *world) checkComplete(s *state) {
	rows := map[string]map[place]bool{}
	revisions := map[string]map[string]int{}
	leftovers := map[place]bool{}
	for _, r := range s.rows {
		if r.Extra || r.Drift == "Conflict" { // not applied yet by the module that has it now
			leftovers[placeOf(r)] = true
		}
		if rows[r.Module] == nil {
			rows[r.Module], revisions[r.Module] = map[place]bool{}, map[string]int{}
		}
		rows[r.Module][placeOf(r)] = true
		if !r.Extra {
			revisions[r.Module][r.Cluster] = r.Number()
		}
		if w.modules[r.Module] == nil && !s.stays(r) {
			s.wait("%s; but the module is deleted", r)
		}
	}
	for p, o := range s.live {
		// What was handed over, and dropped before it was applied, still has the marks of the module that had it before.
		if m := e2etest.Owner(o); m != "" && !rows[m][p] && !leftovers[p] && !(w.forgot[p.cluster] && !written(o)) {
			s.lie("%s: %s carries the marks of %s, and the hub does not list it", p.cluster, p.id, m)
		}
	}
	for name, m := range w.modules {
		w.checkModule(s, name, m, rows[name], revisions[name])
	}
}

// written reports that the API server notes fields of an object as ours. Without that, and without its records, an agent cannot
// know that it wrote the object.
func written(o *unstructured.Unstructured) bool {
	return slices.ContainsFunc(o.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == fleet.FieldManager && e.Operation == metav1.ManagedFieldsOperationApply
	})
}

func (w *world) checkModule(s *state, name string, m *module, rows map[place]bool, revisions map[string]int) {
	rollout := s.rollouts[name]
	newest := 0
	for n := range w.history[name] {
		newest = max(newest, n)
	}
	if !maps.Equal(keys(w.history[name][newest]), keys(m.objects)) {
		s.wait("%s: its newest revision r%d is not what was put", name, newest)
	}
	for _, c := range w.Clusters {
		placed := m.ring == "" || m.ring == w.labels[c.Name]
		n, has := revisions[c.Name]
		// Nothing moves then, who leaves the placement neither.
		paused := strings.HasPrefix(rollout, "Paused") || s.waits(name, len(s.rollouts))
		switch {
		case !placed && has && !paused:
			s.wait("%s: is still in %s", name, c.Name)
		case placed && n != newest && !paused && !w.follows(s, name, c):
			s.wait("%s: %s has r%d, not r%d; the rollout is %s", name, c.Name, n, newest, rollout)
		case has:
			for x := range w.history[name][n] {
				if !rows[place{c.Name, x}] {
					s.lie("%s: %s of r%d has no row in %s", name, x, n, c.Name)
				}
			}
		}
	}
	if !strings.HasPrefix(rollout, "Succeeded") && !strings.HasPrefix(rollout, "Paused") && !s.waits(name, len(s.rollouts)) {
		s.wait("%s: the rollout is %s", name, rollout)
	}
}

// follows reports that a module waits in a cluster for the removal of one of its name, and that for a module which is stuck.
func (w *world) follows(s *state, name string, c *lab.Cluster) bool {
	return slices.ContainsFunc(s.rows, func(r e2etest.Row) bool { return r.Extra && r.Module == name && r.Cluster == c.Name && s.stays(r) })
}

func keys(s set) map[id]bool {
	out := map[id]bool{}
	for x := range s {
		out[x] = true
	}
	return out
}

// checkForeign: what the test made is as the test made it.
func (w *world) checkForeign(s *state) {
	for p, value := range w.foreign {
		live := s.live[p]
		if live == nil {
			w.Fatal("%s: %s was made by somebody else, and is deleted", p.cluster, p.id)
		}
		if got, _, _ := unstructured.NestedString(live.Object, "data", "value"); got != value || e2etest.Owner(live) != "" {
			w.Fatal("%s: %s was made by somebody else with %q; it has %q and belongs to %q", p.cluster, p.id, value, got, e2etest.Owner(live))
		}
	}
}

// settle holds the UIDs against those of the last quiet point, and remembers the new ones.
func (w *world) settle(s *state) {
	for p, uid := range w.kept {
		if !w.touched[p] && w.always(p) && (s.live[p] == nil || string(s.live[p].GetUID()) != uid) {
			w.Fatal("%s: %s was wanted all the time, and is not the object that it was", p.cluster, p.id)
		}
	}
	w.kept, w.touched, w.listed, w.removed = map[place]string{}, map[place]bool{}, map[place][]string{}, map[string]bool{}
	for _, r := range s.rows {
		p := placeOf(r)
		if !r.Extra { // what the revision there does not list goes, whatever a later one lists that is not there yet
			w.listed[p] = append(w.listed[p], r.Module)
		}
		if o := s.live[p]; o != nil && e2etest.Owner(o) != "" {
			w.kept[p] = string(o.GetUID())
		}
	}
	for _, m := range w.modules {
		m.since = []version{{m.objects, m.ring}}
	}
	w.Quiet()
	w.rests++
}

// always says that a module has listed the object there without a break since the last quiet point.
func (w *world) always(p place) bool {
	return slices.ContainsFunc(w.listed[p], func(name string) bool {
		m := w.modules[name]
		return m != nil && !w.removed[name] && !slices.ContainsFunc(m.since, func(v version) bool {
			_, ok := v.objects[p.id]
			return !ok || v.ring != "" && v.ring != w.labels[p.cluster]
		})
	})
}
