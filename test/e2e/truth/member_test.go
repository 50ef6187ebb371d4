package truth

import (
	"context"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/test/lab"
)

// What happens to a cluster as one of the fleet.

// leave has a cluster leave the fleet, with what it has or without, whatever is down or held. It joins again at the next quiet point, by
// then under way or through.
func (w *world) leave() bool {
	c := w.AnyCluster()
	if w.leaving(c) {
		return false
	}
	what := []string{"keep", "delete"}[w.Rand.IntN(2)]
	w.Note("leave", "%s, objects: %s", c.Name, what)
	if err := w.CLI(w.T.Context(), "cluster", "remove", c.Name, "--objects="+what, "--yes").Err(); err != nil {
		if !strings.Contains(err.Error(), "is being deleted, and its agent has not done it yet") {
			w.Fatal("%v", err)
		}
		return true
	}
	if what == "delete" {
		for _, x := range w.pool() {
			w.touched[place{c.Name, x}] = true
		}
	}
	w.Down[leavingKey(c)] = func() { w.joinAgain(c) }
	return true
}

// leavingKey sorts behind all that keeps an agent from leaving.
func leavingKey(c *lab.Cluster) string { return "zzz leaving " + c.Name }

func (w *world) leaving(c *lab.Cluster) bool { return w.Down[leavingKey(c)] != nil }

// joinAgain waits until a cluster has left, and joins it with a new agent, which may find what the one before noted.
func (w *world) joinAgain(c *lab.Cluster) {
	w.eventually(func(ctx context.Context) error {
		w.revive()
		r := w.CLI(ctx, "get", "clusters", c.Name)
		// Of an agent that was started again meanwhile there is a row that says that the hub does not know its cluster.
		if !strings.Contains(r.Stderr, "cluster "+c.Name+" not found") && !strings.Contains(r.Stdout, " Unregistered ") {
			return fmt.Errorf("%s has not left: %s%s", c.Name, r.Stdout, r.Stderr)
		}
		return nil
	})
	c.Agent.Stop()
	w.forgot[c.Name] = true
	w.join(c, w.Rand.IntN(2) == 0)
}

// join starts a new agent of a cluster with a token, by which it joins.
func (w *world) join(c *lab.Cluster, kept bool, flags ...string) {
	token, err := w.Token(w.T.Context(), c.Name, append(flags, "--label", "ring="+w.labels[c.Name])...)
	w.Must(err)
	w.pods++
	o := lab.AgentOptions{Name: fmt.Sprintf("agent-%s-%d", c.Name, w.pods), Token: token}
	switch {
	case c == w.inSecrets():
		o.Pod = fmt.Sprintf("pod-%d", w.pods)
	case kept:
		o.StateDir = c.Agent.StateDir
	}
	c.Agent = w.NewAgent(c, o)
	w.Must(c.Agent.Start())
}

// begin ends an agent and takes all that it had, who it is too and maybe its Lease, and joins the cluster again with a new one.
func (w *world) begin() bool {
	c := w.AnyCluster()
	a := c.Agent
	if !a.Running() || !w.Reach(c) || w.leaving(c) || w.Down["link "+c.Name] != nil {
		return false
	}
	w.Note("begin", "%s", c.Name)
	w.forgot[c.Name] = true
	w.Wake(a)
	a.Kill()
	all := func(*unstructured.Unstructured) bool { return true }
	w.loseNotes(c, "v1", "Secret", all)
	if w.Rand.IntN(2) > 0 {
		w.loseNotes(c, "coordination.k8s.io/v1", "Lease", all)
	}
	w.Must(os.RemoveAll(a.StateDir))
	w.join(c, false, "--reissue")
	w.Must(w.WaitState(w.T.Context(), c.Name, "Ready")) // a cluster that is told to leave before lets nobody join
	return true
}
