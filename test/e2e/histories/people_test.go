package histories

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

// What people do to rollouts, modules and clusters at the hub, and to objects in a cluster.

// operations by how often they come.
func (w *world) operations() (out []func() bool) {
	for _, o := range []struct {
		weight int
		do     func() bool
	}{
		{16, w.putOne}, {9, w.putBoth}, {10, w.incident}, {3, w.rollback}, {2, w.abort}, {4, w.pauseResume}, {2, w.promote}, {2, w.skip}, {2, w.retry},
		{6, w.hold}, {5, w.annotate}, {5, w.unhold}, {8, w.undo}, {5, w.erase}, {4, w.scale}, {2, w.deleteModule}, {2, w.confirmOne},
		{4, w.killAgent}, {2, w.killHub}, {4, w.cut}, {4, w.flap}, {2, w.killServer}, {3, w.pauseAgent}, {4, w.repairOne}, {1, w.rejoin}, {2, w.saveStore},
	} {
		for range o.weight {
			out = append(out, o.do)
		}
	}
	return out
}

func (w *world) operate() {
	for !pick(w, w.operations())() {
	}
}

// wave notes that what is on its way in a module may go on past the canary.
func (w *world) wave(module, why string) {
	for n, p := range w.puts {
		if (module == "" || p.module == module) && w.waved[n] == "" {
			w.waved[n] = why
		}
	}
}

func (w *world) rollback() bool {
	w.moved = true
	name := pick(w, modules)
	args := []string{"rollout", "rollback", name, "-m", "a test"}
	if w.random.IntN(3) == 0 {
		if revs := w.revisions()[name]; len(revs) > 0 {
			var numbers []int
			for r := range revs {
				numbers = append(numbers, r)
			}
			slices.Sort(numbers)
			args = append(args, "--to-revision", fmt.Sprintf("r%d", pick(w, numbers)))
		}
	}
	if w.towline("rollback", args...) && slices.Contains(args, "--to-revision") {
		w.wave(name, "rolled back to a revision")
	}
	return true
}

func (w *world) abort() bool {
	w.towline("abort", "rollout", "abort", pick(w, modules), "-m", "a test")
	return true
}

func (w *world) pauseResume() bool {
	name := pick(w, modules)
	if w.down["pause "+name] != nil {
		w.down["pause "+name]()
		delete(w.down, "pause "+name)
		return true
	}
	if w.towline("pause", "rollout", "pause", name) {
		w.down["pause "+name] = func() { w.towline("resume", "rollout", "resume", name) }
	}
	return true
}

func (w *world) promote() bool {
	name := pick(w, modules)
	if w.towline("promote", "rollout", "promote", name, "-m", "a test") {
		w.wave(name, "promoted")
	}
	return true
}

func (w *world) skip() bool {
	name, c := pick(w, modules), pick(w, w.Clusters)
	if w.towline("skip", "rollout", "skip", name, "--cluster", c.Name, "-m", "a test") && c.Name == "c1" {
		w.wave(name, "canary skipped")
	}
	return true
}

func (w *world) retry() bool {
	w.towline("retry", "rollout", "retry", pick(w, modules))
	return true
}

// incident is a revision whose pods never get ready, and people who look at it where they can: they hold what does badly in the canary, and
// take it back there to what it was before.
func (w *world) incident() bool {
	m, ok := w.now[pick(w, modules)]
	if !ok || len(m.apps) == 0 {
		return false
	}
	app := pick(w, slices.Sorted(maps.Keys(m.apps)))
	has := maps.Clone(m.apps)
	w.last++
	has[app] = config{n: w.last, bad: true}
	if !w.apply("incident", w.next(m.module, has, m.drift)) {
		return false
	}
	pause(w.t.Context(), time.Duration(w.random.IntN(4000))*time.Millisecond)
	canary := w.cluster("c1")
	if w.random.IntN(3) > 0 {
		w.holdIn(canary, app)
	}
	w.takeBack(canary, app, m.apps[app])
	return true
}

// takeBack has a Deployment run by what it was before.
func (w *world) takeBack(c *lab.Cluster, app string, to config) {
	w.edited[c.Name+"/"+app] = true
	w.patch("take back", c, app, `{"spec":{"template":{"spec":`+asJSON(podSpec(app, to))+`}}}`)
}

// holdIn holds a Deployment at the hub or in its cluster.
func (w *world) holdIn(c *lab.Cluster, app string) bool {
	if w.random.IntN(2) == 0 {
		return w.annotateIn(c, app)
	}
	return w.holdAt(c, "Deployment/"+home+"/"+app, "--cluster", c.Name)
}

// flap breaks the link of a cluster for a moment, or twice, and puts a module then.
func (w *world) flap() bool {
	c := pick(w, w.Clusters)
	if w.down["link "+c.Name] != nil {
		return false
	}
	for range 1 + w.random.IntN(2) {
		w.note("flap", "%s", c.Name)
		c.Link.Cut()
		pause(w.t.Context(), time.Duration(w.random.IntN(1500))*time.Millisecond)
		c.Link.Restore()
		pause(w.t.Context(), time.Duration(w.random.IntN(5000))*time.Millisecond)
	}
	c.Link.Cut()
	w.down["link "+c.Name] = c.Link.Restore
	w.putOne()
	return true
}

// hold holds a module, a cluster or an object at the hub.
func (w *world) hold() bool {
	c := pick(w, w.Clusters)
	var args []string
	switch w.random.IntN(4) {
	case 0:
		args = []string{"module/" + pick(w, modules)}
	case 1:
		args = []string{"cluster/" + c.Name}
	default:
		args = []string{"Deployment/" + home + "/" + pick(w, apps), "--cluster", c.Name}
	}
	return w.holdAt(c, args...)
}

func (w *world) holdAt(c *lab.Cluster, args ...string) bool {
	at := "hold " + strings.Join(args, " ")
	if w.down[at] != nil || !w.towline("hold", append([]string{"hold", "-m", "a test"}, args...)...) {
		return false
	}
	w.down[at] = func() {
		w.thaw(at)
		w.towline("unhold", append([]string{"unhold"}, args...)...)
	}
	if len(args) > 1 {
		w.freeze(at, c, strings.TrimPrefix(args[0], "Deployment/"+home+"/"))
	}
	return true
}

// annotate holds an object in its cluster.
func (w *world) annotate() bool {
	return w.annotateIn(pick(w, w.Clusters), pick(w, apps))
}

func (w *world) annotateIn(c *lab.Cluster, app string) bool {
	at := "hold by annotation " + c.Name + " " + app
	if w.down[at] != nil || !w.patch("annotate", c, app, `{"metadata":{"annotations":{"towline.dev/hold":"a test"}}}`) {
		return false
	}
	w.down[at] = func() {
		w.bring("server " + c.Name)
		w.thaw(at)
		w.patch("end of annotation", c, app, `{"metadata":{"annotations":{"towline.dev/hold":null}}}`)
	}
	w.freeze(at, c, app)
	return true
}

func (w *world) unhold() bool { return w.bring("hold") }

// repairOne brings back one of what is down.
func (w *world) repairOne() bool { return w.bring("") }

func (w *world) bring(prefix string) bool {
	var which []string
	for at := range w.down {
		if strings.HasPrefix(at, prefix) {
			which = append(which, at)
		}
	}
	if len(which) == 0 {
		return false
	}
	slices.Sort(which)
	at := pick(w, which)
	w.note("repair", "%s", at)
	do := w.down[at]
	delete(w.down, at)
	do()
	return true
}

// reach says whether the API server of a cluster can be asked.
func (w *world) reach(c *lab.Cluster) bool { return w.down["server "+c.Name] == nil }

// patch changes a Deployment by hand.
func (w *world) patch(what string, c *lab.Cluster, app, body string) bool {
	if !w.reach(c) {
		return false
	}
	resource, err := c.Resource("apps/v1", "Deployment", home)
	must(w.t, err)
	_, err = resource.Patch(w.t.Context(), app, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	if err != nil && !apierrors.IsNotFound(err) {
		w.fatal("%s: %s %s: %v", c.Name, what, app, err)
	}
	w.note(what, "%s %s %s: %v", c.Name, app, body, err)
	return err == nil
}

// undo takes a Deployment back to the template of an older ReplicaSet that is there.
func (w *world) undo() bool {
	c, app := pick(w, w.Clusters), pick(w, apps)
	if !w.reach(c) {
		return false
	}
	resource, err := c.Resource("apps/v1", "ReplicaSet", home)
	must(w.t, err)
	sets, err := resource.List(w.t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	must(w.t, err)
	if len(sets.Items) < 2 {
		return false
	}
	set := pick(w, sets.Items)
	spec := set.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	w.edited[c.Name+"/"+app] = true
	return w.patch("undo", c, app, `{"spec":{"template":{"spec":{"containers":`+asJSON(spec["containers"])+`}}}}`)
}

func (w *world) scale() bool {
	return w.patch("scale", pick(w, w.Clusters), pick(w, apps), fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1+w.random.IntN(4)))
}

// erase deletes an object of a module by hand.
func (w *world) erase() bool {
	c, app := pick(w, w.Clusters), pick(w, apps)
	if !w.reach(c) {
		return false
	}
	apiVersion, kind, name := "apps/v1", "Deployment", app
	if w.random.IntN(3) == 0 {
		live, err := c.Get(w.t.Context(), "apps/v1", "Deployment", home, app)
		if err != nil {
			return false
		}
		apiVersion, kind, name = "v1", "ConfigMap", templateOf(live)
		w.erased[c.Name+"/"+name] = true
	}
	resource, err := c.Resource(apiVersion, kind, home)
	must(w.t, err)
	w.edited[c.Name+"/"+app] = true
	w.hands[c.Name+"/"+name] = true
	delete(w.frozen, "hold by annotation "+c.Name+" "+name) // which goes with it
	background := metav1.DeletePropagationBackground
	err = resource.Delete(w.t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &background})
	w.note("erase", "%s %s %s: %v", c.Name, kind, name, err)
	return true
}

func (w *world) deleteModule() bool {
	name := pick(w, modules)
	if _, ok := w.now[name]; !ok {
		return false
	}
	args := []string{"delete", "module", name, "--yes", "--wait=false"}
	if w.random.IntN(3) == 0 {
		args = append(args, "--orphan")
		w.leaves = true
	}
	w.moved, w.removed[name] = true, true
	if w.towline("delete", args...) {
		delete(w.now, name)
	}
	return true
}

func (w *world) confirmOne() bool {
	all := w.holds()
	if len(all) == 0 {
		return false
	}
	w.towline("confirm", "confirm", pick(w, all))
	return true
}

// holds that wait for a confirm.
func (w *world) holds() (out []string) {
	for _, name := range strings.Fields(w.CLI(w.t.Context(), "get", "holds", "-o", "name").Stdout) {
		if !strings.HasPrefix(name, "hold/freeze-") && !strings.HasPrefix(name, "hold/annotation-") {
			out = append(out, name)
		}
	}
	return out
}

// confirm answers all that waits for a person.
func (w *world) confirm() {
	for _, name := range w.holds() {
		w.confirms++
		w.towline("confirm", "confirm", name)
	}
}

func (w *world) killAgent() bool {
	a := pick(w, w.Clusters).Agent
	if !a.Running() {
		return false
	}
	w.note("kill agent", "%s", a.Name)
	w.wake(a)
	a.Kill()
	back := func() { must(w.t, a.Start()) }
	if w.random.IntN(2) == 0 {
		back()
		return true
	}
	w.down["agent "+a.Name] = back
	return true
}

func (w *world) pauseAgent() bool {
	a := pick(w, w.Clusters).Agent
	if !a.Running() || w.down["asleep "+a.Name] != nil {
		return false
	}
	w.note("pause agent", "%s", a.Name)
	a.Pause()
	w.down["asleep "+a.Name] = a.Resume
	return true
}

func (w *world) wake(a *lab.Agent) {
	if back := w.down["asleep "+a.Name]; back != nil {
		back()
		delete(w.down, "asleep "+a.Name)
	}
}

func (w *world) killHub() bool {
	w.note("kill hub", "")
	w.Hub.Kill()
	must(w.t, w.Hub.Start(w.t.Context()))
	return true
}

func (w *world) cut() bool {
	c := pick(w, w.Clusters)
	if w.down["link "+c.Name] != nil {
		return false
	}
	w.note("cut", "%s", c.Name)
	c.Link.Cut()
	w.down["link "+c.Name] = c.Link.Restore
	return true
}

func (w *world) killServer() bool {
	c := pick(w, w.Clusters)
	if !w.reach(c) {
		return false
	}
	w.note("kill server", "%s", c.Name)
	must(w.t, c.Part(w.t.Context(), "apiserver", "kill"))
	w.down["server "+c.Name] = func() {
		must(w.t, c.Part(w.t.Context(), "apiserver", "start"))
		must(w.t, lab.PollFor(w.t.Context(), limit, func() error {
			_, err := c.Get(w.t.Context(), "v1", "Namespace", "", home)
			return err
		}))
	}
	return true
}

// rejoin removes a cluster from the hub, keeps what it has, and joins it again with a new agent.
func (w *world) rejoin() bool {
	for len(w.down) > 0 {
		w.bring("")
	}
	c := pick(w, w.Clusters)
	must(w.t, w.WaitState(w.t.Context(), c.Name, "Ready"))
	w.leaves = true
	if !w.towline("remove cluster", "cluster", "remove", c.Name, "--yes", "-m", "a test") {
		return true
	}
	gone := func() error {
		if r := w.CLI(w.t.Context(), "get", "clusters", c.Name); r.Err() == nil {
			return fmt.Errorf("%s", r.Stdout)
		}
		return nil
	}
	if err := lab.PollFor(w.t.Context(), limit, gone); err != nil {
		w.fatal("%s is not removed: %v", c.Name, err)
	}
	c.Agent.Stop()
	i := slices.Index(w.Clusters, c)
	token, err := w.Token(w.t.Context(), c.Name, "--label", e2etest.Canary(i, c))
	must(w.t, err)
	w.agents++
	c.Agent = w.NewAgent(c, lab.AgentOptions{Name: fmt.Sprintf("agent-%s-%d", c.Name, w.agents), Token: token})
	must(w.t, c.Agent.Start())
	w.note("join", "%s", c.Name)
	if w.random.IntN(2) == 0 {
		must(w.t, w.WaitState(w.t.Context(), c.Name, "Ready"))
	}
	return true
}
