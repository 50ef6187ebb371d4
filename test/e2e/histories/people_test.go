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
		{8, w.hold}, {5, w.annotate}, {5, w.unhold}, {8, w.undo}, {5, w.erase}, {4, w.scale}, {2, w.deleteModule}, {2, w.confirmOne},
		{4, w.KillAgent}, {2, w.KillHub}, {4, w.Cut}, {4, w.flap}, {2, w.KillServer}, {3, w.PauseAgent}, {4, w.repairOne}, {1, w.rejoin}, {2, w.saveStore},
	} {
		for range o.weight {
			out = append(out, o.do)
		}
	}
	return out
}

func (w *world) operate() {
	for !e2etest.Pick(w.Random, w.operations())() {
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
	name := e2etest.Pick(w.Random, modules)
	args := []string{"rollout", "rollback", name, "-m", "a test"}
	if w.Rand.IntN(3) == 0 {
		if revs := w.revisions()[name]; len(revs) > 0 {
			var numbers []int
			for r := range revs {
				numbers = append(numbers, r)
			}
			slices.Sort(numbers)
			args = append(args, "--to-revision", fmt.Sprintf("r%d", e2etest.Pick(w.Random, numbers)))
		}
	}
	if w.towline("rollback", args...) && slices.Contains(args, "--to-revision") {
		w.wave(name, "rolled back to a revision")
	}
	return true
}

func (w *world) abort() bool {
	w.towline("abort", "rollout", "abort", e2etest.Pick(w.Random, modules), "-m", "a test")
	return true
}

func (w *world) pauseResume() bool {
	name := e2etest.Pick(w.Random, modules)
	if w.Down["pause "+name] != nil {
		w.Down["pause "+name]()
		delete(w.Down, "pause "+name)
		return true
	}
	if w.towline("pause", "rollout", "pause", name) {
		w.Down["pause "+name] = func() { w.towline("resume", "rollout", "resume", name) }
	}
	return true
}

func (w *world) promote() bool {
	name := e2etest.Pick(w.Random, modules)
	if w.towline("promote", "rollout", "promote", name, "-m", "a test") {
		w.wave(name, "promoted")
	}
	return true
}

func (w *world) skip() bool {
	name, c := e2etest.Pick(w.Random, modules), w.AnyCluster()
	if w.towline("skip", "rollout", "skip", name, "--cluster", c.Name, "-m", "a test") && c.Name == "c1" {
		w.wave(name, "canary skipped")
	}
	return true
}

func (w *world) retry() bool {
	w.towline("retry", "rollout", "retry", e2etest.Pick(w.Random, modules))
	return true
}

// incident is a revision whose pods never get ready, and people who look at it where they can: they hold what does badly in the canary, and
// take it back there to what it was before.
func (w *world) incident() bool {
	m, ok := w.now[e2etest.Pick(w.Random, modules)]
	if !ok || len(m.apps) == 0 {
		return false
	}
	app := e2etest.Pick(w.Random, slices.Sorted(maps.Keys(m.apps)))
	has := maps.Clone(m.apps)
	w.last++
	has[app] = config{n: w.last, bad: true}
	drift := e2etest.Pick(w.Random, []string{"Correct", "Report", "Ignore"}) // what is taken back stays so with the others
	if !w.apply("incident", w.next(m.module, has, drift)) {
		return false
	}
	canary := w.cluster("c1")
	if w.Rand.IntN(4) > 0 {
		w.awaits(canary, app, has[app])
	} else {
		w.Pause(time.Duration(w.Rand.IntN(4000)) * time.Millisecond)
	}
	if w.Rand.IntN(3) > 0 {
		w.holdIn(canary, app)
	}
	w.takeBack(canary, app, m.apps[app])
	return true
}

// awaits waits a moment until a Deployment is to run by a configuration, if it can be looked at.
func (w *world) awaits(c *lab.Cluster, app string, to config) {
	if !w.Reach(c) {
		return
	}
	_ = lab.PollFor(w.T.Context(), 2*lag, func() error { // nobody knows whether it comes: its rollout may be paused, or its agent away
		live, err := c.Get(w.T.Context(), "apps/v1", "Deployment", home, app)
		if err != nil || templateOf(live) != to.name(app) {
			return fmt.Errorf("%s is not at %s: %v", app, to.name(app), err)
		}
		return nil
	})
}

// takeBack has a Deployment run by what it was before.
func (w *world) takeBack(c *lab.Cluster, app string, to config) {
	w.edited[c.Name+"/"+app] = true
	w.patch("take back", c, app, `{"spec":{"template":{"spec":`+asJSON(podSpec(app, to))+`}}}`)
}

// holdIn holds a Deployment at the hub or in its cluster.
func (w *world) holdIn(c *lab.Cluster, app string) bool {
	if w.Rand.IntN(2) == 0 {
		return w.annotateIn(c, app)
	}
	return w.holdAt(c, "Deployment/"+home+"/"+app, "--cluster", c.Name)
}

// flap breaks the link of a cluster for a moment, or twice, and puts a module then.
func (w *world) flap() bool {
	c := w.AnyCluster()
	if w.Down["link "+c.Name] != nil {
		return false
	}
	for range 1 + w.Rand.IntN(2) {
		w.Note("flap", "%s", c.Name)
		c.Link.Cut()
		w.Pause(time.Duration(w.Rand.IntN(1500)) * time.Millisecond)
		c.Link.Restore()
		w.Pause(time.Duration(w.Rand.IntN(5000)) * time.Millisecond)
	}
	c.Link.Cut()
	w.Down["link "+c.Name] = c.Link.Restore
	w.putOne()
	return true
}

// hold holds a module, a cluster or an object at the hub. Then somebody changes by hand what is held, and now and then puts it.
func (w *world) hold() bool {
	c, app, name := w.AnyCluster(), e2etest.Pick(w.Random, apps), e2etest.Pick(w.Random, modules)
	var args []string
	change := func() { w.patch("scale", c, app, `{"spec":{"replicas":3}}`) }
	switch w.Rand.IntN(3) {
	case 0:
		args, change = []string{"module/" + name}, func() { w.eraseMark(c, name) }
	case 1:
		args = []string{"cluster/" + c.Name}
	default:
		args, name = []string{"Deployment/" + home + "/" + app, "--cluster", c.Name}, w.listing(app)
	}
	if !w.holdAt(c, args...) {
		return false
	}
	change()
	if w.Rand.IntN(2) == 0 {
		w.provoke(name, app)
	}
	return true
}

func (w *world) holdAt(c *lab.Cluster, args ...string) bool {
	at := "hold " + strings.Join(args, " ")
	if w.Down[at] != nil || !w.towline("hold", append([]string{"hold", "-m", "a test"}, args...)...) {
		return false
	}
	w.Down[at] = func() {
		w.thaw(at)
		w.towline("unhold", append([]string{"unhold"}, args...)...)
	}
	switch kind, name, _ := strings.Cut(args[0], "/"); kind {
	case "module":
		w.freeze(at, "module "+name, func(r lab.Request) bool { return r.Resource == "configmaps" && r.Name == mark(name) }, w.Clusters...)
	case "cluster":
		w.freeze(at, "all of the cluster", func(lab.Request) bool { return true }, c)
	default:
		w.freezeApp(at, c, strings.TrimPrefix(name, home+"/"))
	}
	return true
}

// annotate holds an object in its cluster, and puts what is held.
func (w *world) annotate() bool {
	app := e2etest.Pick(w.Random, apps)
	if !w.annotateIn(w.AnyCluster(), app) {
		return false
	}
	w.provoke(w.listing(app), app)
	return true
}

func (w *world) annotateIn(c *lab.Cluster, app string) bool {
	at := byAnnotation + c.Name + " " + app
	if w.Down[at] != nil || !w.patch("annotate", c, app, `{"metadata":{"annotations":{"towline.dev/hold":"a test"}}}`) {
		return false
	}
	w.Down[at] = func() {
		w.Bring("server " + c.Name)
		w.thaw(at)
		w.patch("end of annotation", c, app, `{"metadata":{"annotations":{"towline.dev/hold":null}}}`)
	}
	w.freezeApp(at, c, app)
	return true
}

func (w *world) unhold() bool { return w.Bring("hold") }

// repairOne brings back one of what is down.
func (w *world) repairOne() bool { return w.Bring("") }

// repairAll brings back all that is down. Holds that had ended are there again where the store was put back.
func (w *world) repairAll() {
	for len(w.Down) > 0 {
		w.Bring("")
	}
	for _, name := range strings.Fields(w.CLI(w.T.Context(), "get", "holds", "-o", "name").Stdout) {
		if strings.HasPrefix(name, "hold/freeze-") {
			w.towline("unhold", "unhold", name)
		}
	}
}

// patch changes a Deployment by hand.
func (w *world) patch(what string, c *lab.Cluster, app, body string) bool {
	if !w.Reach(c) {
		return false
	}
	resource, err := c.Resource("apps/v1", "Deployment", home)
	w.Must(err)
	_, err = resource.Patch(w.T.Context(), app, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal("%s: %s %s: %v", c.Name, what, app, err)
	}
	w.Note(what, "%s %s %s: %v", c.Name, app, body, err)
	return err == nil
}

// undo takes a Deployment back to the template of an older ReplicaSet that is there.
func (w *world) undo() bool {
	c, app := w.AnyCluster(), e2etest.Pick(w.Random, apps)
	if !w.Reach(c) {
		return false
	}
	resource, err := c.Resource("apps/v1", "ReplicaSet", home)
	w.Must(err)
	sets, err := resource.List(w.T.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	w.Must(err)
	if len(sets.Items) < 2 {
		return false
	}
	set := e2etest.Pick(w.Random, sets.Items)
	spec := set.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	w.edited[c.Name+"/"+app] = true
	return w.patch("undo", c, app, `{"spec":{"template":{"spec":{"containers":`+asJSON(spec["containers"])+`}}}}`)
}

func (w *world) scale() bool {
	return w.patch("scale", w.AnyCluster(), e2etest.Pick(w.Random, apps), fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1+w.Rand.IntN(4)))
}

// erase deletes an object of a module by hand.
func (w *world) erase() bool {
	c, app := w.AnyCluster(), e2etest.Pick(w.Random, apps)
	if !w.Reach(c) {
		return false
	}
	apiVersion, kind, name := "apps/v1", "Deployment", app
	if w.Rand.IntN(3) == 0 {
		live, err := c.Get(w.T.Context(), "apps/v1", "Deployment", home, app)
		if err != nil {
			return false
		}
		apiVersion, kind, name = "v1", "ConfigMap", templateOf(live)
		w.erased[c.Name+"/"+name] = true
	}
	resource, err := c.Resource(apiVersion, kind, home)
	w.Must(err)
	w.edited[c.Name+"/"+app] = true
	w.hands[c.Name+"/"+name] = true
	delete(w.frozen, byAnnotation+c.Name+" "+name) // which goes with it
	background := metav1.DeletePropagationBackground
	err = resource.Delete(w.T.Context(), name, metav1.DeleteOptions{PropagationPolicy: &background})
	w.Note("erase", "%s %s %s: %v", c.Name, kind, name, err)
	return true
}

// eraseMark deletes the mark of a module by hand.
func (w *world) eraseMark(c *lab.Cluster, module string) {
	if !w.Reach(c) {
		return
	}
	resource, err := c.Resource("v1", "ConfigMap", home)
	w.Must(err)
	w.Note("erase", "%s ConfigMap %s: %v", c.Name, mark(module), resource.Delete(w.T.Context(), mark(module), metav1.DeleteOptions{}))
}

func (w *world) deleteModule() bool {
	name := e2etest.Pick(w.Random, modules)
	if _, ok := w.now[name]; !ok {
		return false
	}
	args := []string{"delete", "module", name, "--yes", "--wait=false"}
	if w.Rand.IntN(3) == 0 {
		args = append(args, "--orphan")
		w.leaves = true
	}
	w.moved, w.removed[name] = true, true
	if w.towline("delete", args...) {
		delete(w.now, name)
		delete(w.frozen, "hold module/"+name) // which may end with it
	}
	return true
}

func (w *world) confirmOne() bool {
	all := w.holds()
	if len(all) == 0 {
		return false
	}
	w.towline("confirm", "confirm", e2etest.Pick(w.Random, all))
	return true
}

// holds that wait for a confirm.
func (w *world) holds() (out []string) {
	for _, name := range strings.Fields(w.CLI(w.T.Context(), "get", "holds", "-o", "name").Stdout) {
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

// rejoin removes a cluster from the hub, keeps what it has, and joins it again with a new agent.
func (w *world) rejoin() bool {
	w.repairAll()
	c := w.AnyCluster()
	w.Must(w.WaitState(w.T.Context(), c.Name, "Ready"))
	w.leaves = true
	if !w.towline("remove cluster", "cluster", "remove", c.Name, "--yes", "-m", "a test") {
		return true
	}
	gone := func() error {
		r := w.CLI(w.T.Context(), "get", "clusters", c.Name)
		if !strings.Contains(r.Stderr, "cluster "+c.Name+" not found") {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	}
	if err := lab.PollFor(w.T.Context(), limit, gone); err != nil {
		w.Fatal("%s is not removed: %v", c.Name, err)
	}
	c.Agent.Stop()
	i := slices.Index(w.Clusters, c)
	token, err := w.Token(w.T.Context(), c.Name, "--label", e2etest.Canary(i, c))
	w.Must(err)
	w.agents++
	c.Agent = w.NewAgent(c, lab.AgentOptions{Name: fmt.Sprintf("agent-%s-%d", c.Name, w.agents), Token: token})
	w.Must(c.Agent.Start())
	w.Note("join", "%s", c.Name)
	if w.Rand.IntN(2) == 0 {
		w.Must(w.WaitState(w.T.Context(), c.Name, "Ready"))
	}
	return true
}
