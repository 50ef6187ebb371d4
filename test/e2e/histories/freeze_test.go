package histories

import (
	"maps"
	"strings"
	"time"

	"towline.dev/towline/test/lab"
)

// freeze is what somebody holds, and what agents know is held: nothing of ours writes it.
type freeze struct {
	what string
	is   func(lab.Request) bool // a request is for it
	from map[string]lab.Mark    // since when, by the cluster whose agent knows
}

// heard is how long an agent that is there may take to hear of a hold.
const heard = 3 * time.Second

// freeze remembers from when on something is held in clusters, where the agent is there to hear of it.
func (w *world) freeze(at, what string, is func(lab.Request) bool, in ...*lab.Cluster) {
	hear := map[string]lab.Mark{}
	for _, c := range in {
		if c.Agent.Running() && !w.Asleep(c.Agent) && w.Down["link "+c.Name] == nil && w.Reach(c) && w.hears(c, strings.HasPrefix(at, byAnnotation)) {
			hear[c.Name] = 0
		}
	}
	if len(hear) == 0 {
		return
	}
	w.Pause(heard)
	for _, c := range in {
		if _, hears := hear[c.Name]; hears {
			from, err := c.Audit.Now()
			w.Must(err)
			hear[c.Name] = from
		}
	}
	w.frozen[at] = freeze{what, is, hear}
}

// hears reports that the agent of a cluster is connected. While it is ahead of a store that was put back the hub tells it nothing, and says so.
func (w *world) hears(c *lab.Cluster, ofItself bool) bool {
	said := strings.Fields(w.CLI(w.T.Context(), "get", "clusters", c.Name, "-o", "jsonpath={.status.state} {.status.attention.code}").Stdout)
	return len(said) > 0 && said[0] == "Ready" && (ofItself || len(said) == 1 || said[1] != "Regressed")
}

// freezeApp is freeze of a Deployment.
func (w *world) freezeApp(at string, c *lab.Cluster, app string) {
	w.freeze(at, "Deployment "+app, func(r lab.Request) bool { return r.Resource == "deployments" && r.Name == app }, c)
}

// thaw is called before a hold ends: nobody of ours has written what was held.
func (w *world) thaw(at string) {
	f, ok := w.frozen[at]
	delete(w.frozen, at)
	if !ok {
		return
	}
	for name, from := range f.from {
		writes, err := w.cluster(name).Audit.Since(from, func(r lab.Request) bool { return r.Applies() && r.Namespace == home && f.is(r) && r.Code < 300 })
		w.Must(err)
		if len(writes) > 0 {
			w.Fatal("%s: %s was held (%s), and was written: %v", name, f.what, at, writes)
		}
	}
}

// melt forgets what only the hub's word holds, which is another one now.
func (w *world) melt() {
	maps.DeleteFunc(w.frozen, func(at string, _ freeze) bool { return !strings.HasPrefix(at, byAnnotation) })
}

const byAnnotation = "hold by annotation "

// provoke puts a module with another app, which agents would write where nothing held it.
func (w *world) provoke(name, app string) {
	m, ok := w.now[name]
	if !ok {
		return
	}
	has := maps.Clone(m.apps)
	if _, lists := has[app]; lists {
		w.last++
		has[app] = config{n: w.last}
	}
	w.apply("put what is held", w.next(name, has, m.drift))
}

// listing is the module that lists an app; empty: none.
func (w *world) listing(app string) string {
	for _, name := range modules {
		if _, lists := w.now[name].apps[app]; lists {
			return name
		}
	}
	return ""
}
