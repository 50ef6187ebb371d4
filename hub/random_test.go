package hub_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

var (
	letters  = []string{"a", "b", "c", "d", "v"}
	objects  = []string{"a", "b", "c", "d", "v-x", "v-y"}
	modules  = []string{"one", "two", "shop/one"} // one name in two projects
	clusters = []string{"east", "north", "west"}
)

// chaos is a fleet in which people do things at random. It remembers all that was wanted since everything was as wanted last: of
// this, what was wanted all the time is deleted by nobody, whatever happens.
type chaos struct {
	*world
	rand     *rand.Rand
	began    time.Time
	source   source
	other    *client.Client // of another person: nobody approves what they began
	boxes    map[string]*box
	up       map[string]bool // whose agents run
	backup   *backup         // until a cluster joins or leaves
	wentBack int
	killed   int
	replaced int
	// restarts: the hub is started again now and then.
	restarts bool
	// gentle: nothing fails, and nobody steers a rollout, so that more can be said of what must not be deleted.
	gentle bool

	mu      sync.Mutex
	since   []wish          // ends with what is wanted now
	steered bool            // somebody took a rollout back, or kept a cluster from it
	back    map[string]bool // modules that somebody took back, perhaps to what was wanted long ago
	failing map[string]bool
	names   map[fleet.Digest][]string
	orders  map[string]*orders
	heldBy  map[string]fleet.Assemblage // what the agents were told last, by cluster
	log     []string
	found   []string

	turned  map[string]time.Time // when the agent of a cluster came or went last
	crowded atomic.Bool          // several people act at the same moment
	asked   []func() error       // by the program that assigns modules: each arrives once more, or not
}

func (c *chaos) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, fmt.Sprintf("%7.3f ", time.Since(c.began).Seconds())+fmt.Sprintf(format, args...))
}

func (c *chaos) now() wish {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since[len(c.since)-1]
}

func (c *chaos) wish(change func(*wish)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := &c.since[len(c.since)-1]
	now.till = time.Now()
	c.since = append(c.since, now.with(change))
}

// deleted judges a deletion. A module that wanted the object all the time keeps it. So does the cluster if there always was a
// module that wanted it, unless a rollout may have gone back; one that was deleted and put again begins anew with its objects.
func (c *chaos) deleted(cluster, object string, by fleet.ModuleRef, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, fmt.Sprintf("%7.3f     %s: %s of %s is deleted: %s", time.Since(c.began).Seconds(), cluster, object, by.Display(), why))
	always := map[string]bool{}
	for _, m := range modules {
		always[m] = !c.back[m]
	}
	some := !c.steered && !slices.ContainsFunc(c.since, wish.anyExternal)
	again := slices.ContainsFunc(c.since, func(w wish) bool { _, there := w.modules[by.Display()]; return !there })
	for _, w := range c.since {
		any := false
		for _, m := range modules {
			wants := w.wants(m, cluster, object)
			any = any || wants && !(m == by.Display() && again)
			for _, at := range c.since { // a rollback brings back what was wanted, and not where the clusters were
				always[m] = always[m] && wish{modules: w.modules, clusters: at.clusters}.wants(m, cluster, object)
			}
		}
		some = some && any
	}
	for _, m := range modules {
		if always[m] {
			c.found = append(c.found, fmt.Sprintf("%s: %s is deleted with %s (%s), and %s wanted it all the time", cluster, object, by.Display(), why, m))
			return
		}
	}
	if some {
		c.found = append(c.found, fmt.Sprintf("%s: %s is deleted with %s (%s), and there was a module that wanted it at any time", cluster, object, by.Display(), why))
	}
}

func (c *chaos) listed(d fleet.Digest) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names, ok := c.names[d]
	if !ok {
		panic("a bundle that nobody made: " + d.String())
	}
	return names
}

func (c *chaos) fails(cluster string, module fleet.ModuleRef, _ int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failing[cluster+"/"+module.Display()]
}

// newChaos starts the fleet, whose hub is started again now and then, or not.
func newChaos(t *testing.T, world *world, restarts bool, seed uint64, limit time.Duration) *chaos {
	c := &chaos{began: time.Now(), world: world, restarts: restarts, rand: rand.New(&oneByOne{from: rand.NewPCG(seed, 0)}), boxes: map[string]*box{}, up: map[string]bool{},
		turned: map[string]time.Time{}, back: map[string]bool{}, failing: map[string]bool{}, names: map[fleet.Digest][]string{}, orders: map[string]*orders{},
		heldBy: map[string]fleet.Assemblage{}}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c.ctx = ctx
	user, err := c.Identity.CreateUser(c.ctx, &towlinev1.CreateUserRequest{Name: "maria", Role: "admin"})
	must(t, err)
	c.other = c.as(user.GetToken())
	_, err = c.Identity.PutProject(c.ctx, &towlinev1.PutProjectRequest{Project: &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: "shop"}}})
	must(t, err)
	c.source = newSource(t)
	c.learn()
	first := wish{modules: map[string]want{}, clusters: map[string]place{}}
	for i, name := range clusters {
		first.clusters[name] = place{zone: []string{"x", "y"}[i%2]}
		c.enroll(name, ringed(name, first.clusters[name]))
		b := &box{name: name, names: c.listed, deleted: c.deleted, fails: c.fails, owner: map[string]fleet.ModuleRef{}}
		c.boxes[name] = b
		c.connectBox(b)
	}
	c.since = []wish{first}
	t.Cleanup(func() {
		if t.Failed() {
			c.mu.Lock()
			defer c.mu.Unlock()
			t.Log("\n" + strings.Join(c.log[max(len(c.log)-80, 0):], "\n"))
		}
	})
	return c
}

// connectBox starts the agent of a box.
func (c *chaos) connectBox(b *box) {
	o := b.options()
	took, last := o.Took, fleet.Assemblage{}
	o.Took = func(a fleet.Assemblage) {
		c.told(b.name, last, a)
		last = a
		took(a)
	}
	b.agent = c.newAgent(b.name, o)
	c.reconnect(b.name)
	c.up[b.name] = true
	c.turns(b.name)
}

// learn has the hub make the bundles of all that modules may list, so that what an agent is told can be read.
func (c *chaos) learn() {
	for set := 1; set < 1<<len(letters); set++ {
		some := ""
		for i, o := range letters {
			if set&(1<<i) != 0 {
				some += o
			}
		}
		m := random("learn", some, "nowhere")
		c.await("learn", c.put(m).GetRevision())
		got, err := c.Modules.GetRevision(c.ctx, &towlinev1.GetRevisionRequest{Module: "learn"})
		must(c.t, err)
		d, err := fleet.ParseDigest(got.GetRevision().GetBundle())
		must(c.t, err)
		c.names[d] = strings.Split(some, "")
	}
	c.delete("learn", false)
}

func pickOf[T any](c *chaos, from []T) T { return from[c.rand.IntN(len(from))] }

// most is all, or fewer while people are gentle.
func (c *chaos) most(all, fewer int) int {
	if c.gentle {
		return fewer
	}
	return all
}

func (c *chaos) letters() string {
	out := ""
	for out == "" {
		for _, o := range letters {
			if c.rand.IntN(2) == 0 {
				out += o
			}
		}
	}
	return out
}

// ringed are the labels of a cluster. The ring never changes, so that the canary is the same for all modules: two that hand objects over
// to each other in opposite orders wait for each other, until the deadline of the clusters.
func ringed(cluster string, p place) map[string]string {
	ring := "early"
	if cluster == clusters[1] {
		ring = "late"
	}
	if p.unlabelled {
		return map[string]string{"ring": ring}
	}
	return map[string]string{"zone": p.zone, "ring": ring}
}

// strategy is how the next revision moves.
func (c *chaos) strategy() *towlinev1.RolloutStrategy {
	s := &towlinev1.RolloutStrategy{Rollback: &towlinev1.RollbackStrategy{Scope: pickOf(c, []string{"", "Moved", "Failed"})}, OnFailure: pickOf(c, []string{"", "Pause", "Rollback", "Abort"}[:c.most(4, 2)]),
		LateJoiners: pickOf(c, []string{"", "Follow", "Include", "Ignore"})}
	if !c.gentle {
		s.OnSupersede, s.Offline = pickOf(c, []string{"", "Queue", "Reject"}), pickOf(c, []string{"", "Wait", "Fail"})
		s.MaxFailures, s.ProgressDeadline = pickOf(c, []string{"", "1"}), pickOf(c, []string{"", "", "1s"})
	}
	s.RevisionHistoryLimit = int32(c.rand.IntN(3))
	s.Stages = c.stages()
	if !c.gentle {
		c.paces(s)
	}
	return s
}

// put makes a module what it is to be from now on. What other modules do not list any more, it may take over.
func (c *chaos) change(name string, w want, batch string, more bool) error {
	m, fails := c.spec(name, w), false
	switch c.rand.IntN(c.most(6, 5)) {
	case 0, 1:
		m.Spec.Source = c.source.slow(w.objects)
	case 5:
		m.Spec.Source, fails = c.source.failing(w.objects), true
	}
	c.said(name, w)
	c.mu.Lock()
	c.steered = c.steered || fails || !c.gentle || m.Spec.Rollout.OnFailure == "Rollback"
	c.mu.Unlock()
	err := c.insists(name, &towlinev1.PutModuleRequest{Module: m, Batch: batch, More: more})
	c.note("put %s %s in %q%s, %v %s: %v", name, w.objects, w.zone, w.named, m.Spec.Rollout, m.Spec.Source.GetHttp().GetUrl(), err)
	if err != nil && !comesTooLate(err) { // one that is being deleted, and held
		c.wish(func(x *wish) { delete(x.modules, name) })
	}
	return err
}

// comesTooLate reports that a put was refused because those before it in its batch did not begin without it.
func comesTooLate(err error) bool {
	return err != nil && strings.Contains(err.Error(), "it comes too late")
}

// some are one or more clusters, those among them that are not there.
func (c *chaos) some() (names string) {
	for names == "" {
		for _, cluster := range clusters {
			if c.rand.IntN(2) == 0 {
				names = strings.TrimSpace(names + " " + cluster)
			}
		}
	}
	return names
}

func (c *chaos) anywhere() string { return pickOf(c, []string{"", "", "x", "y"}) }

// step is one thing that somebody does.
func (c *chaos) step() {
	if c.rand.IntN(6) == 0 {
		c.crowd()
		return
	}
	name, cluster := pickOf(c, modules), pickOf(c, clusters)
	switch n := c.rand.IntN(c.most(35, 21)); n {
	case 0, 1, 2, 3, 4, 5:
		c.puts(name)
	case 6, 7, 8:
		c.move(name, cluster)
	case 9, 10:
		c.deletes(name, n == 10)
	case 11, 12:
		c.moves(cluster)
	case 13, 14:
		c.toggle(cluster)
	case 15, 16:
		if c.gentle {
			return
		}
		c.mu.Lock()
		key := cluster + "/" + name
		c.failing[key] = !c.failing[key]
		c.steered = true
		c.mu.Unlock()
		c.note("%s fails: %v", key, c.failing[key])
		_ = c.boxes[cluster].agent.Again()
	case 17:
		c.confirm()
	case 18:
		c.hold(name, cluster)
	case 19:
		b := c.boxes[cluster]
		c.note("%s is slow: %v", cluster, !b.slow)
		b.hurry(!b.slow)
	case 20:
		switch {
		case c.restarts && c.rand.IntN(2) == 0:
			c.goesBack()
		case c.restarts:
			c.note("the hub starts again")
			c.restart()
			c.turns(clusters...)
		}
	case 33:
		if c.rand.IntN(2) == 0 {
			c.leave(cluster)
			return
		}
		c.expel(cluster)
	case 34:
		c.admit(cluster)
	case 21, 22, 23, 24:
		c.program(cluster)
	default:
		c.verb(name, cluster)
	}
}

// move has what one module lists be another one's, in one apply.
func (c *chaos) move(from, _ string) {
	to := pickOf(c, slices.DeleteFunc(slices.Clone(modules), func(m string) bool { return m == from }))
	now := c.now()
	a, b := now.modules[from], now.modules[to]
	if len(a.objects) < 2 || b.objects == "" {
		return
	}
	o := a.objects[c.rand.IntN(len(a.objects)):][:1]
	a.objects = strings.ReplaceAll(a.objects, o, "")
	letters := strings.Split(b.objects+o, "")
	slices.Sort(letters)
	b.objects = strings.Join(slices.Compact(letters), "")
	c.wish(func(x *wish) { x.modules[from], x.modules[to] = a, b })
	batch := strconv.FormatUint(c.rand.Uint64(), 36)
	puts := [2]func(batch string, more bool) error{
		func(batch string, more bool) error { return c.change(from, a, batch, more) },
		func(batch string, more bool) error { return c.change(to, b, batch, more) },
	}
	if c.rand.IntN(2) == 0 {
		puts[0], puts[1] = puts[1], puts[0]
	}
	_ = puts[0](batch, true)
	if c.restarts && c.rand.IntN(4) == 0 {
		c.note("restart in the middle of a batch")
		c.restart()
		c.turns(clusters...)
	}
	switch err := puts[1](batch, false); {
	case comesTooLate(err):
		_ = puts[0](batch, true)
		_ = puts[1](batch, false)
	case err != nil: // what was put before it does not begin without it
		_ = puts[0](batch+"again", false)
	}
}

// turns notes that the agents of clusters came or went.
func (c *chaos) turns(of ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cluster := range of {
		c.turned[cluster] = time.Now()
	}
}

// toggle stops the agent of a cluster, or starts it.
func (c *chaos) toggle(cluster string) {
	if c.now().clusters[cluster].gone {
		return
	}
	c.note("%s is up: %v", cluster, !c.up[cluster])
	if c.up[cluster] {
		c.stops[cluster]()
	} else {
		c.stops[cluster] = c.run(c.agents[cluster])
	}
	c.up[cluster] = !c.up[cluster]
	c.turns(cluster)
}

// place changes what a cluster is.
func (c *chaos) place(cluster string, p place) {
	if p.gone {
		return
	}
	c.wish(func(x *wish) { x.clusters[cluster] = p })
	spec := &towlinev1.ClusterSpec{Cordoned: new(p.cordoned)}
	if p.tainted {
		spec.Taints = []*towlinev1.Taint{{Key: "closed"}}
	}
	_, err := c.Clusters.PutCluster(c.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Spec: spec,
		Metadata: &towlinev1.Metadata{Name: cluster, Labels: ringed(cluster, p)}}})
	c.note("%s is %+v: %v", cluster, p, err)
}

// hold has nobody write for a module, in a cluster, or both.
func (c *chaos) hold(module, cluster string) {
	h := &towlinev1.PutHoldRequest{Cluster: cluster}
	h.Project, h.Module = split(module)
	switch c.rand.IntN(3) {
	case 0:
		h.Project, h.Module = "", ""
	case 1:
		h.Cluster = ""
	}
	_, err := c.Modules.PutHold(c.ctx, h)
	c.note("hold %q in %q: %v", h.Module, h.Cluster, err)
}

func (c *chaos) confirm() {
	got, err := c.Modules.ListHolds(c.ctx, &towlinev1.ListHoldsRequest{})
	must(c.t, err)
	for _, h := range got.GetHolds() {
		c.lets(h)
		_, err := c.Modules.ConfirmHold(c.ctx, &towlinev1.ConfirmHoldRequest{Id: h.GetId()})
		c.note("confirm %s %s %v: %v", h.GetModule(), h.GetReason(), h.GetItems(), err)
	}
}

func (c *chaos) list() {
	_, err := c.Modules.ListModules(c.ctx, &towlinev1.ListModulesRequest{})
	must(c.t, err)
}

// calm ends all that keeps the fleet from being as wanted, and waits until it is.
func (c *chaos) calm() {
	c.note("calm")
	c.part()
	c.mu.Lock()
	clear(c.failing)
	c.mu.Unlock()
	for _, name := range clusters {
		c.admit(name)
		if p := c.now().clusters[name]; p.cordoned || p.tainted || p.unlabelled {
			c.place(name, place{zone: p.zone})
		}
		if !c.up[name] {
			c.toggle(name)
		}
		c.boxes[name].hurry(false)
	}
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		wrong := c.wrong()
		if wrong == "" {
			break
		}
		if time.Now().After(deadline) {
			c.finds("it does not come to rest: " + wrong + c.standing())
			return
		}
		if i%10 == 5 {
			for _, b := range c.boxes { // what was said while a session broke is not said again by itself
				_ = b.agent.Again()
			}
			c.soothe(time.Until(deadline) < 15*time.Second)
		}
		<-tick.C
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since, c.steered = c.since[len(c.since)-1:], false
	c.rested()
	clear(c.back)
}

// part ends that several modules want one object in a cluster: the first of them keeps it.
func (c *chaos) part() {
	now, taken := c.now(), ""
	for _, name := range modules {
		w, ok := now.modules[name]
		if !ok {
			continue
		}
		letters := strings.Map(func(r rune) rune {
			if strings.ContainsRune(taken, r) {
				return -1
			}
			return r
		}, w.objects)
		taken += letters
		switch {
		case letters == w.objects:
		case letters == "":
			c.wish(func(x *wish) { delete(x.modules, name) })
			project, module := split(name)
			_, err := c.Modules.DeleteModule(c.ctx, &towlinev1.DeleteModuleRequest{Project: project, Name: module, Force: true})
			c.note("delete %s: %v", name, err)
		default:
			w.objects = letters
			c.wish(func(x *wish) { x.modules[name] = w })
			_ = c.change(name, w, "", false)
		}
	}
}

// worldOf has its hub's store in memory, in its directory if it is to be started again, or in an etcd.
func worldOf(t *testing.T) *world {
	if os.Getenv("TOWLINE_STORE") == "etcd" {
		return sharing(t, ownEtcd(t))
	}
	if os.Getenv("TOWLINE_KILLS") != "" {
		return newMortalWorld(t)
	}
	return newWorldWith(t, func(o *hub.Options) {
		o.Memory, o.CollectEvery = os.Getenv("TOWLINE_RESTARTS") == "", 2*time.Second
	})
}

// TestRandomOperationsDeleteNothingThatIsWanted runs for TOWLINE_RANDOM, by default a few seconds, from TOWLINE_SEED.
func TestRandomOperationsDeleteNothingThatIsWanted(t *testing.T) {
	limit, seed := 6*time.Second, uint64(31)
	if v := os.Getenv("TOWLINE_RANDOM"); v != "" {
		var err error
		limit, err = time.ParseDuration(v)
		must(t, err)
		seed = rand.Uint64N(1e6)
	}
	if v := os.Getenv("TOWLINE_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		must(t, err)
		seed = n
	}
	c := newChaos(t, worldOf(t), os.Getenv("TOWLINE_RESTARTS") != "", seed, limit+2*time.Minute)
	n := 0
	if c.mortal != nil {
		go c.revives()
	}
	for end := time.Now().Add(limit); time.Now().Before(end) && len(c.found) == 0; {
		for range cmp.Or(c.rand.IntN(6), 1) {
			if c.mortal != nil && c.rand.IntN(3) == 0 {
				c.kills()
			}
			if os.Getenv("TOWLINE_FULL") != "" && c.rand.IntN(10) == 0 {
				c.fills()
			}
			if os.Getenv("TOWLINE_REPLACE") != "" && c.rand.IntN(25) == 0 {
				c.replaces(pickOf(c, clusters))
			}
			c.step()
			n++
			for range c.rand.IntN(3) * c.rand.IntN(20) { // now and then something comes of it before the next
				c.list()
			}
		}
		if c.rand.IntN(4) == 0 && !c.mends() {
			c.ask()
		}
		if c.rand.IntN(2) == 0 {
			c.calm()
			if c.backup == nil && len(c.found) == 0 {
				c.copies()
			}
			c.gentle = c.rand.IntN(2) == 0
		}
	}
	c.calm()
	t.Logf("seed %d: %d operations, %d copies put back, %d kills", seed, n, c.wentBack, c.killed)
	for _, f := range c.found {
		t.Error(f)
	}
}
