package hub_test

import (
	"os"
	"path/filepath"
	"slices"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// backup is a copy of the hub's directory, and what was wanted then.
type backup struct {
	dir  string
	wish wish
	past map[string][]want // what had been put before
}

// copies makes a copy of the hub's directory. All is as wanted.
func (c *chaos) copies() {
	if !c.restarts || os.Getenv("TOWLINE_STORE") != "" {
		return
	}
	dir := filepath.Join(c.t.TempDir(), "backup")
	c.stopHub()
	must(c.t, os.CopyFS(dir, os.DirFS(c.dir)))
	c.start()
	c.turns(clusters...)
	c.backup = &backup{dir, c.now(), map[string][]want{}}
	for _, name := range modules {
		c.backup.past[name] = slices.Clone(c.ordersOf(name).past)
	}
	c.note("the hub's directory is copied")
}

// goesBack puts the copy back. Then people apply what they want once more, and have every agent join anew, as the hub says.
func (c *chaos) goesBack() {
	b := c.backup
	if b == nil {
		return
	}
	c.backup, c.asked = nil, nil // what the program asked for is not known any more
	c.note("the copy is put back")
	c.wentBack++
	c.stopHub()
	must(c.t, os.RemoveAll(c.dir))
	must(c.t, os.CopyFS(c.dir, os.DirFS(b.dir)))
	now := c.now()
	c.wish(func(x *wish) { *x = b.wish })
	c.wish(func(x *wish) { *x = now })
	c.mu.Lock()
	c.steered = true
	for name, w := range b.wish.modules {
		x := c.ordersOf(name)
		x.past, x.puts = append(x.past, b.past[name]...), append(x.puts, w)
	}
	c.mu.Unlock()
	c.start()
	for _, name := range modules {
		if w, there := now.modules[name]; there {
			_ = c.change(name, w, "", false)
			continue
		}
		project, module := split(name)
		_, err := c.Modules.DeleteModule(c.ctx, &towlinev1.DeleteModuleRequest{Project: project, Name: module, Force: true})
		c.note("delete %s: %v", name, err)
	}
	for _, cluster := range clusters {
		c.place(cluster, now.clusters[cluster])
		c.boxes[cluster].orphan(func(m fleet.ModuleRef) bool {
			w, there := b.wish.modules[m.Display()]
			return !there || !b.wish.takes(w, cluster)
		})
		c.rejoins(cluster)
	}
}

// orphan lets go of the modules of which the hub knows nothing: its agent would say so, until a person decides.
func (b *box) orphan(stray func(fleet.ModuleRef) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for o, m := range b.owner {
		if stray(m) {
			b.owner[o] = fleet.ModuleRef{}
		}
	}
	b.held.Syncs = slices.DeleteFunc(slices.Clone(b.held.Syncs), func(s fleet.Sync) bool { return stray(s.Module) })
}

// rejoins has the agent of a cluster join anew, with what it has.
func (c *chaos) rejoins(cluster string) {
	if c.up[cluster] {
		c.stops[cluster]()
	}
	again, err := c.Clusters.JoinCluster(c.ctx, &towlinev1.JoinClusterRequest{Name: cluster, Reissue: true})
	must(c.t, err)
	c.ids[cluster], err = simagent.Join(c.ctx, c.listen, again.GetToken(), "uid-"+cluster)
	must(c.t, err)
	c.connectBox(c.boxes[cluster])
	c.note("%s joins anew", cluster)
}
