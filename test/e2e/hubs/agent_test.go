package hubs

import (
	"strings"
	"sync"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// badPrefix begins the names of modules that fail in every canary.
const badPrefix = "bad-"

// agent judges what its cluster is given.
type agent struct {
	*simagent.Agent
	w      *world
	name   string
	canary bool

	mu         sync.Mutex
	generation uint64 // of the newest assemblage
	newest     map[string]given
}

// given is what a cluster has of a module.
type given struct {
	generation uint64
	revision   int64
}

// took holds that nothing comes that is older than what the cluster has, and that nothing passes the canaries that fails in them.
func (a *agent) took(x fleet.Assemblage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x.Generation < a.generation {
		a.w.t.Errorf("cluster %s was given generation %d after %d", a.name, x.Generation, a.generation)
	}
	a.generation = max(a.generation, x.Generation)
	for _, s := range x.Syncs {
		before := a.newest[s.Module.Name]
		if s.Generation < before.generation || s.Revision < before.revision {
			a.w.t.Errorf("cluster %s was given revision %d (generation %d) of %s after revision %d (generation %d)", a.name, s.Revision, s.Generation,
				s.Module.Name, before.revision, before.generation)
		}
		a.newest[s.Module.Name] = given{max(s.Generation, before.generation), max(s.Revision, before.revision)}
		if strings.HasPrefix(s.Module.Name, badPrefix) && !a.canary {
			a.w.t.Errorf("cluster %s was given revision %d of %s, which fails in the canaries", a.name, s.Revision, s.Module.Name)
		}
	}
}

func (a *agent) says(s fleet.Sync) fleet.SyncStatus {
	if a.canary && strings.HasPrefix(s.Module.Name, badPrefix) {
		return simagent.Failing(s)
	}
	return simagent.Ready(s)
}

// has is the revision of a module that the cluster has; 0: none.
func (a *agent) has(module string) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.newest[module].revision
}
