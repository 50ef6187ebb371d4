package hub_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

// split is the project and the module of a name; the default project has none.
func split(name string) (project, module string) {
	if project, module, ok := strings.Cut(name, "/"); ok {
		return project, module
	}
	return "", name
}

// rollout is the newest one of a module.
func (c *chaos) rollout(name string) (*towlinev1.GetRolloutResponse, error) {
	project, module := split(name)
	return c.Rollouts.GetRollout(c.ctx, &towlinev1.GetRolloutRequest{Project: project, Module: module})
}

func (c *chaos) verb(name, cluster string) {
	w := word(name, pickOf(c, []string{"pause", "resume", "abort", "retry", "promote", "rollback", "approve", "reject", "pin", "unpin", "skip", "override"}))
	switch w.Verb {
	case "pin", "unpin", "skip":
		w.Clusters = []string{cluster}
		if c.rand.IntN(3) == 0 {
			w.Until = timestamppb.New(time.Now().Add(time.Duration(c.rand.IntN(300)) * time.Millisecond))
		}
	case "rollback":
		w.Revision, w.Scope = c.rand.Int64N(4), pickOf(c, []string{"", "moved", "failed"})
	case "approve", "reject", "override":
		w.Stage = "canary"
	}
	c.mu.Lock()
	c.steered = true
	c.back[name] = c.back[name] || w.Verb == "rollback"
	c.ordersOf(name).back = c.back[name]
	c.mu.Unlock()
	err := c.repeats(c.other, w)
	c.note("%s %s %v: %v", w.Verb, name, w.Clusters, err)
}

// word is one that is said to the rollout of a module.
func word(name, verb string) client.Word {
	project, module := split(name)
	return client.Word{Project: project, Module: module, Verb: verb, Reason: "because"}
}

// say says a word to a rollout. Whatever the answer is, there is one.
func (c *chaos) say(person *client.Client, w client.Word) error {
	_, err := person.Steer(c.ctx, w)
	if status.Code(err) == codes.Unavailable {
		c.finds(fmt.Sprintf("%s %s is not answered: %v%s", w.Verb, w.Module, err, c.standing()))
	}
	return err
}

// standing is how the modules' rollouts stand.
func (c *chaos) standing() (out string) {
	for _, name := range clusters {
		out += "; " + c.boxes[name].String()
	}
	for name := range c.now().modules {
		got, err := c.rollout(name)
		s := got.GetRollout().GetStatus()
		out += fmt.Sprintf("; %s: %s %s %s %v, %v", name, s.GetState(), s.GetReason(), s.GetFacts(), s.GetClusters(), err)
		for _, ro := range c.before(name, got.GetRollout()) {
			out += fmt.Sprintf(", behind %s: %s %s, %d failed", ro.GetId(), ro.GetStatus().GetState(), ro.GetStatus().GetReason(), ro.GetStatus().GetFailed())
		}
	}
	return out
}

// before are the rollouts that the newest one of a module waits for.
func (c *chaos) before(name string, newest *towlinev1.Rollout) []*towlinev1.Rollout {
	if newest.GetStatus().GetState() != "Pending" {
		return nil
	}
	project, module := split(name)
	got, err := c.Rollouts.ListRollouts(c.ctx, &towlinev1.ListRolloutsRequest{Project: project, Module: module, Active: true})
	must(c.t, err)
	return slices.DeleteFunc(got.GetRollouts(), func(ro *towlinev1.Rollout) bool { return ro.GetId() == newest.GetId() })
}

// stuck reports that the newest rollout of a module is queued behind one that failed, and goes on failing: perhaps because two modules
// list one object, which only what is queued ends.
func (c *chaos) stuck(name string, newest *towlinev1.Rollout) bool {
	return slices.ContainsFunc(c.before(name, newest), func(ro *towlinev1.Rollout) bool {
		return ro.GetStatus().GetFailed() > 0 || ro.GetStatus().GetState() == "Paused"
	})
}

// soothe says what a person says to rollouts that stand. Two that hand objects over to each other may wait for each other until their
// deadlines, by their stages, their queues, or because one ignores who comes late: when that takes too long, somebody ends it.
func (c *chaos) soothe(long bool) {
	c.confirm()
	for name, w := range c.now().modules {
		if w.external {
			c.assignAll(name, w)
		}
		for _, cluster := range clusters {
			w := word(name, "unpin")
			w.Clusters = []string{cluster}
			_ = c.say(c.Client, w)
		}
		c.assignsAgain(name)
		got, err := c.rollout(name)
		must(c.t, err)
		s := got.GetRollout().GetStatus()
		if long && s.GetState() != "Succeeded" && (got.GetRollout().GetStrategy().GetLateJoiners() == "Ignore" || awaitsOwner(s) || c.stuck(name, got.GetRollout())) {
			_ = c.say(c.Client, word(name, "abort"))
			_ = c.insists(name, &towlinev1.PutModuleRequest{Module: plain(name, w)})
		}
		switch s.GetState() {
		case "Succeeded":
			c.takeUp(name, got.GetRollout())
			if shut(got.GetRollout()) { // who comes late waits for it
				_ = c.insists(name, &towlinev1.PutModuleRequest{Module: plain(name, w)})
			}
			if s.GetFailed() > 0 { // as many are tolerated
				_ = c.say(c.Client, word(name, "retry"))
			}
		case "Waiting", "Pending": // perhaps behind one that waits
			c.open(name)
			for _, person := range []*client.Client{c.other, c.Client} { // nobody approves what they began
				w := word(name, "approve")
				w.Stage = "canary"
				_ = c.say(person, w)
			}
			_ = c.say(c.other, word(name, "promote"))
			fallthrough
		case "Paused":
			c.open(name)
			_ = c.say(c.Client, word(name, "resume"))
			if s.GetReason() != "RollbackFailed" { // it would fail once more
				_ = c.say(c.Client, word(name, "retry"))
			}
		case "RolledBack", "Aborted", "Failed":
			_ = c.insists(name, &towlinev1.PutModuleRequest{Module: plain(name, w)})
			_ = c.say(c.Client, word(name, "retry"))
		}
	}
}

// moduleOf is a module by its name.
func (c *chaos) moduleOf(name string) *towlinev1.Module {
	c.t.Helper()
	project, module := split(name)
	m, err := c.Modules.GetModule(c.ctx, &towlinev1.GetModuleRequest{Project: project, Name: module})
	must(c.t, err)
	return m.GetModule()
}

// takeUp has the clusters get a revision that were skipped.
func (c *chaos) takeUp(name string, ro *towlinev1.Rollout) {
	w := word(name, "retry")
	for _, x := range ro.GetStatus().GetClusters() {
		if x.GetState() == "Skipped" {
			w.Clusters = append(w.Clusters, x.GetCluster())
		}
	}
	if len(w.Clusters) > 0 {
		_ = c.say(c.Client, w)
	}
}

// shut reports that a stage has a window which opens once in years.
func shut(ro *towlinev1.Rollout) bool {
	for _, stage := range ro.GetStrategy().GetStages() {
		for _, g := range stage.GetBefore() {
			if len(g.GetWindow().GetAllow()) > 0 {
				return true
			}
		}
	}
	return false
}

// lets notes what a person lets go.
func (c *chaos) lets(h *towlinev1.Hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.GetKind() != "Confirm" || h.GetCluster() != "" {
		return
	}
	name := fleet.ModuleRef{Project: h.GetProject(), Name: h.GetModule()}.Display()
	x := c.ordersOf(name)
	for _, cluster := range h.GetItems() {
		x.confirmed[cluster] = true
		x.coming[cluster] = syncNamed(c.heldBy[cluster], name).Generation == 0
	}
}

func awaitsOwner(s *towlinev1.RolloutStatus) bool {
	return slices.ContainsFunc(s.GetClusters(), func(x *towlinev1.ClusterProgress) bool { return x.GetReason() == "AwaitingOwner" })
}
