package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/test/lab"
)

// slowModule has a Deployment whose pods take their time.
func slowModule(image string) string {
	return moduleOf("slow", "slow", map[string]string{"a.yaml": namespace("slow") + configMap("settings", "fixed") + `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 1
  selector: {matchLabels: {app: slow}}
  template:
    metadata: {labels: {app: slow}, annotations: {kubelab.towline.dev/ready-after: 1500ms}}
    spec: {containers: [{name: main, image: "` + image + `"}]}
`})
}

func imageIs(t *testing.T, c *lab.Cluster, image string) error {
	t.Helper()
	got, err := c.Get(t.Context(), "apps/v1", "Deployment", "slow", "app")
	if err != nil {
		return err
	}
	containers, _, _ := unstructured.NestedSlice(got.Object, "spec", "template", "spec", "containers")
	if len(containers) != 1 || containers[0].(map[string]any)["image"] != image {
		return fmt.Errorf("cluster %s: has %v, want %s", c.Name, containers, image)
	}
	return nil
}

func testHubKilled(t *testing.T) {
	installFleet(t)
	remove(t, "slow")
	putReady(t, slowModule("example.com/slow:1"))
	quiet(t)

	// One cluster has not been reached when the hub dies; the others are done or waiting for their pods.
	last := system.Clusters[2]
	last.Agent.Pause()
	defer last.Agent.Resume()
	begun := mark(t)
	put(t, slowModule("example.com/slow:2"))
	eventually(t, "two clusters have the new revision", func() error {
		if s := module(t, "slow").Status; s.Updated < 2 {
			return fmt.Errorf("%+v", s)
		}
		for _, c := range system.Clusters[:2] {
			if err := imageIs(t, c, "example.com/slow:2"); err != nil {
				return err
			}
		}
		return nil
	})
	if state := module(t, "slow").Status.RolloutState; !strings.HasPrefix(state, "Progressing") {
		t.Errorf("the rollout is %s, not in its middle", state)
	}
	system.Hub.Kill()
	last.Agent.Resume()
	if err := system.Hub.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := towline(t, "rollout", "status", "slow", "--timeout", "2m")
	if !strings.Contains(out, "Succeeded") || !strings.Contains(out, "slow/2") {
		t.Errorf("the rollout did not finish:\n%s", out)
	}
	if err := imageIs(t, last, "example.com/slow:2"); err != nil {
		t.Error(err)
	}
	for _, c := range system.Clusters {
		writes := begun.requests(t, c, lab.Request.Applies)
		if len(writes) != 1 || writes[0].Object() != "apps/deployments slow/app" {
			t.Errorf("cluster %s: one object has changed, but the agent wrote %v", c.Name, writes)
		}
	}

	// Killed again, this time before it can have done anything.
	begun = mark(t)
	put(t, slowModule("example.com/slow:3"))
	system.Hub.Kill()
	if err := system.Hub.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	towline(t, "rollout", "wait", "slow", "--timeout", "2m")
	for _, c := range system.Clusters {
		if err := imageIs(t, c, "example.com/slow:3"); err != nil {
			t.Error(err)
		}
		if writes := begun.requests(t, c, lab.Request.Applies); len(writes) != 1 {
			t.Errorf("cluster %s: one object has changed, but the agent wrote %v", c.Name, writes)
		}
	}
	expectFleet(t)
}

// testCut: an agent whose link is cut keeps its cluster correct, takes what it missed when it is back, and nothing else.
func testCut(t *testing.T) {
	installFleet(t)
	remove(t, "cut")
	c := system.Clusters[0]
	of := func(value string) string {
		return moduleOf("cut", "cut", map[string]string{"a.yaml": namespace("cut") + configMap("a", value) + configMap("b", "fixed")})
	}
	putReady(t, of("1"))
	quiet(t)
	from := mark(t)
	c.Link.Cut()
	defer c.Link.Restore()
	put(t, of("2"))
	for _, other := range system.Clusters[1:] {
		eventually(t, "the others go on", func() error { return there(t, other, "cut", "a", "2") })
	}
	if err := c.Merge(t.Context(), "v1", "ConfigMap", "cut", "b", `{"data":{"value":"by hand"}}`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "drift is corrected behind the cut", func() error { return there(t, c, "cut", "b", "fixed") })
	if err := there(t, c, "cut", "a", "1"); err != nil {
		t.Errorf("something came through the cut: %v", err)
	}
	c.Link.Restore()
	towline(t, "rollout", "wait", "cut", "--timeout", "2m")
	eventually(t, "what was missed is there", func() error { return there(t, c, "cut", "a", "2") })
	if writes := from.requests(t, c, lab.Request.Applies); len(writes) != 2 {
		t.Errorf("%d writes for a correction and a change: %v", len(writes), writes)
	}
	expectFleet(t)
}

func testAgentKilled(t *testing.T) {
	installFleet(t)
	quiet(t)
	c := system.Clusters[1]
	from := mark(t)
	system.Hub.Stop()
	c.Agent.Kill()
	// What happens while nobody looks is found at the start.
	byHand := func(name string) {
		x := touch{kind: "ConfigMap", name: name, patch: map[string]any{"data": map[string]any{"text": "edited by hand"}}}
		x.do(t, c, foreign(fleetNamespace, name))
	}
	byHand("settings-1")
	if err := c.Agent.Start(); err != nil {
		t.Fatal(err)
	}
	wanted := map[string]*unstructured.Unstructured{}
	for _, o := range objects(t, fleetNamespace, fleetFiles()) {
		wanted[o.GetKind()+" "+o.GetName()] = o
	}
	corrected := func(name string) {
		eventually(t, "drift of "+name+" is corrected while the hub is down", func() error {
			got, err := live(t, c, wanted["ConfigMap "+name])
			if err != nil {
				return err
			}
			return lab.AsWanted(wanted["ConfigMap "+name], got)
		})
	}
	corrected("settings-1")
	byHand("settings-2")
	corrected("settings-2")
	touch{kind: "ConfigMap", name: "settings-3"}.do(t, c, foreign(fleetNamespace, "settings-3"))
	corrected("settings-3")

	if err := system.Hub.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range system.Clusters {
		eventually(t, c.Name+" is back", func() error { return system.WaitState(t.Context(), c.Name, "Ready") })
	}
	expectFleet(t)
	quiet(t)
	writes := from.requests(t, c, lab.Request.Applies)
	if len(writes) != 3 {
		t.Errorf("%d writes for 3 corrections: %v", len(writes), writes)
	}
	from.noWrites(t, system.Clusters[0], system.Clusters[2])
}

// takeOver is how long a second agent may take to follow one that was killed: the Lease's 15 s and some.
const takeOver = 30 * time.Second

// testFence: two agents of one cluster with one identity, as a Deployment of two has; one writes, the other follows it.
func testFence(t *testing.T) {
	installFleet(t)
	remove(t, "fence")
	c := system.Clusters[2]
	uids := map[string]string{}
	for _, o := range objects(t, fleetNamespace, fleetFiles()) {
		got, err := live(t, c, o)
		if err != nil {
			t.Fatal(err)
		}
		uids[lab.Label(o)] = string(got.GetUID())
	}
	c.Agent.Stop()
	token, err := system.Token(t.Context(), c.Name, "--reissue")
	if err != nil {
		t.Fatal(err)
	}
	var agents []*lab.Agent
	for _, pod := range []string{"pod-a", "pod-b"} {
		a := system.NewAgent(c, lab.AgentOptions{Name: "agent-" + c.Name + "-" + pod, Pod: pod, Token: token})
		if err := a.Start(); err != nil {
			t.Fatal(err)
		}
		agents = append(agents, a)
	}
	eventually(t, "one agent has joined", func() error { return system.WaitState(t.Context(), c.Name, "Ready") })
	quiet(t)
	expectFleet(t)
	for _, o := range objects(t, fleetNamespace, fleetFiles()) {
		if got, err := live(t, c, o); err != nil || uids[lab.Label(o)] != string(got.GetUID()) {
			t.Errorf("an agent without a record of what it owns made %s anew: %v", lab.Label(o), err)
		}
	}
	from := mark(t)
	fence := func(value string) {
		putReady(t, moduleOf("fence", "fence", map[string]string{"a.yaml": namespace("fence") + configMap("a", value)}))
		if err := there(t, c, "fence", "a", value); err != nil {
			t.Error(err)
		}
	}
	fence("1")
	quiet(t) // what the first agent did is on record
	leader, follower := agents[0], agents[1]
	if holder(t, c) == "pod-b" {
		leader, follower = follower, leader
	}
	if strings.Contains(follower.Output(), "lease taken") {
		t.Errorf("both agents took the Lease:\n%s", follower.Tail())
	}
	leader.Kill()
	c.Agent = follower
	err = lab.PollFor(t.Context(), takeOver, func() error {
		if !strings.Contains(follower.Output(), "lease taken") {
			return fmt.Errorf("the Lease is %s's", holder(t, c))
		}
		return nil
	})
	if err != nil {
		t.Fatalf("the other agent does not take over: %v\n%s", err, follower.Tail())
	}
	fence("2")
	touch{kind: "ConfigMap", name: "a"}.do(t, c, foreign("fence", "a"))
	eventually(t, "the other agent corrects drift", func() error { return there(t, c, "fence", "a", "2") })
	// Of the first agent's objects none was made anew: 2 of the put, 1 of the update, 1 correction.
	if writes := from.requests(t, c, lab.Request.Applies); len(writes) != 4 {
		t.Errorf("%d writes, want 4: %v", len(writes), writes)
	}
	expectFleet(t)
}

func holder(t *testing.T, c *lab.Cluster) string {
	t.Helper()
	lease, err := c.Get(t.Context(), "coordination.k8s.io/v1", "Lease", "towline-system", "towline-agent")
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := unstructured.NestedString(lease.Object, "spec", "holderIdentity")
	return name
}
