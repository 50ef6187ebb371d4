package histories

import (
	"strings"
	"time"

	"towline.dev/towline/test/lab"
)

// freeze is an object that somebody holds, and that its agent knows is held: nothing of ours writes it.
type freeze struct {
	cluster *lab.Cluster
	app     string
	from    lab.Mark
}

// heard is how long an agent that is there may take to hear of a hold.
const heard = 3 * time.Second

// freeze remembers from when on a Deployment is held, if its agent is there to hear of it.
func (w *world) freeze(at string, c *lab.Cluster, app string) {
	if !c.Agent.Running() || w.down["asleep "+c.Agent.Name] != nil || w.down["link "+c.Name] != nil || !w.reach(c) {
		return
	}
	if got := strings.TrimSpace(w.CLI(w.t.Context(), "get", "clusters", c.Name, "-o", "jsonpath={.status.state}").Stdout); got != "Ready" {
		return
	}
	pause(w.t.Context(), heard)
	from, err := c.Audit.Now()
	must(w.t, err)
	w.frozen[at] = freeze{c, app, from}
}

// thaw is called before a hold ends: nobody of ours has written what was held.
func (w *world) thaw(at string) {
	f, ok := w.frozen[at]
	delete(w.frozen, at)
	if !ok {
		return
	}
	writes, err := f.cluster.Audit.Since(f.from, func(r lab.Request) bool {
		return r.Applies() && r.Resource == "deployments" && r.Name == f.app && r.Code < 300
	})
	must(w.t, err)
	if len(writes) > 0 {
		w.fatal("%s: Deployment %s was held (%s), and was written: %v", f.cluster.Name, f.app, at, writes)
	}
}
