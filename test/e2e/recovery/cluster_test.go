package recovery

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"towline.dev/towline/test/lab"
)

// etcd is where a control plane's etcd keeps its data.
func (w *world) etcd(c *lab.Cluster) string { return filepath.Join(filepath.Dir(c.Kubeconfig), "etcd") }

// halt stops what a control plane's etcd serves, and etcd, so that its data can be copied.
func (w *world) halt(c *lab.Cluster) {
	w.t.Helper()
	for _, part := range []string{"apiserver", "etcd"} {
		must(w.t, c.Part(w.t.Context(), part, "stop"))
	}
}

func (w *world) resume(c *lab.Cluster) {
	w.t.Helper()
	for _, part := range []string{"etcd", "apiserver"} {
		must(w.t, c.Part(w.t.Context(), part, "start"))
	}
}

// replace puts a copy in the place of a control plane's etcd.
func (w *world) replace(c *lab.Cluster, from string) {
	w.t.Helper()
	must(w.t, os.RemoveAll(w.etcd(c)))
	must(w.t, os.CopyFS(w.etcd(c), os.DirFS(from)))
}

// restoredCluster: the etcd of a cluster goes back to before a change. The change is made again, what came since is made
// anew, and what the copy brought back is reported and left alone.
func restoredCluster(w *world) {
	c := w.Clusters[0]
	w.putReady(module("store", "1", "a", "dropped"))
	copied := w.etcd(c) + "-copy"
	w.halt(c)
	must(w.t, os.CopyFS(copied, os.DirFS(w.etcd(c))))
	w.resume(c)
	w.ready()
	w.putReady(module("store", "2", "a", "added"))
	w.eventually(func() error { // what the revision drops goes when it is ready
		if _, err := c.Get(w.t.Context(), "v1", "ConfigMap", "store", "dropped"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("store/dropped is still there: %v", err)
		}
		return nil
	})
	w.halt(c)
	w.replace(c, copied)
	from := w.marks()
	w.resume(c)
	w.says(c.Name, "restored")
	for name, value := range map[string]string{"a": "2", "added": "2"} {
		w.eventually(func() error { return w.has(c, "store", name, value) })
	}
	w.silentDeletes(from)
	must(w.t, w.has(c, "store", "dropped", "1"))
	w.eventually(func() error {
		out := w.CLI(w.t.Context(), "get", "objects", "--cluster", c.Name, "--module", "store")
		if !containsRow(out.Stdout, "store/dropped") {
			return fmt.Errorf("what the copy brought back is not listed:\n%s", out.Stdout)
		}
		return nil
	})
	must(w.t, os.RemoveAll(copied))
}

// nameTaken: a module is deleted while a cluster is away, and another one that has it, too, joins under that one's name. What is to be removed
// from the first is not removed from the other: it is a stray there. Then each has its own name again, and the module is put again.
func nameTaken(w *world) {
	c, other := w.Clusters[0], w.Clusters[1]
	w.putReady(module("left", "1", "a"))
	c.Agent.Stop()
	other.Agent.Stop()
	w.says(c.Name, "Disconnected")
	w.removed(other.Name)
	must(w.t, w.CLI(w.t.Context(), "delete", "module", "left", "--yes", "--wait=false").Err())
	from := w.marks()
	w.joins(other, c.Name, "--reissue")
	w.says(c.Name, "Ready", "stray")
	w.silentDeletes(from)
	must(w.t, w.has(other, "left", "a", "1"))
	w.eventually(func() error {
		if out := w.CLI(w.t.Context(), "get", "modules"); containsRow(out.Stdout, "left") {
			return fmt.Errorf("the module waits for a cluster that is not there any more:\n%s", out.Stdout)
		}
		return nil
	})

	other.Agent.Stop()
	w.removed(c.Name)
	for _, x := range w.Clusters {
		w.joins(x, x.Name, "--label", "env=test")
	}
	w.ready()
	w.putReady(module("left", "2", "a"))
	for _, x := range w.Clusters {
		must(w.t, w.has(x, "left", "a", "2"))
	}
	w.nothingDeleted(from)
}

// removed has the hub forget a cluster whose agent is told nothing.
func (w *world) removed(name string) {
	w.t.Helper()
	must(w.t, w.CLI(w.t.Context(), "cluster", "remove", name, "--force", "--yes").Err())
}

// joins has the agent of a cluster join under a name, with the state that it has.
func (w *world) joins(c *lab.Cluster, name string, flags ...string) {
	w.t.Helper()
	token, err := w.Token(w.t.Context(), name, flags...)
	must(w.t, err)
	c.Agent = w.NewAgent(c, lab.AgentOptions{Token: token, Name: c.Agent.Name + "-" + name, StateDir: c.Agent.StateDir})
	must(w.t, c.Agent.Start())
}

// clones makes the second cluster one from the first one's etcd, with the agent and all. The agent of the first runs, and the other one is to be
// started, with the state that the first had.
func (w *world) clones(name string) (clone *lab.Agent) {
	w.t.Helper()
	c, other := w.Clusters[0], w.Clusters[1]
	other.Agent.Stop()
	c.Agent.Stop()
	w.halt(c)
	w.halt(other)
	w.replace(other, w.etcd(c))
	state := filepath.Join(w.Dir, name)
	must(w.t, lab.CopyState(c.Agent.StateDir, state))
	w.resume(c)
	w.resume(other)
	must(w.t, c.Agent.Start())
	must(w.t, w.WaitState(w.t.Context(), c.Name, "Ready"))
	return w.NewAgent(other, lab.AgentOptions{Name: "agent-" + name, StateDir: state})
}

// clonedUnseen: the agent of the copy asks for the session for the first time while the API server of the first cluster hangs. It cannot be told
// from another process of that cluster, and has it until the agent of the first one sees its cluster again.
func clonedUnseen(w *world) {
	c, other := w.Clusters[0], w.Clusters[1]
	w.putReady(module("shop", "6", "a", "b"))
	clone := w.clones("unseen-clone")
	from := w.marks()
	must(w.t, c.Part(w.t.Context(), "apiserver", "pause"))
	w.says(c.Name, "does not answer in time")
	must(w.t, clone.Start())
	w.eventually(func() error {
		if !strings.Contains(clone.Output(), "connected to the hub") {
			return fmt.Errorf("the copy has no session:\n%s", clone.Tail())
		}
		return nil
	})
	must(w.t, c.Part(w.t.Context(), "apiserver", "resume"))
	w.says(c.Name, "Ready", "cloned")
	w.put(module("shop", "7", "a", "b"))
	w.eventually(func() error { return w.has(c, "shop", "a", "7") })
	must(w.t, w.has(other, "shop", "a", "6"))
	w.silentDeletes(from)
	clone.Stop()
	c.Agent.Stop()
	w.joins(c, c.Name, "--reissue")
}

// clonedCluster: a second cluster is made from the first one's. One of the two has the session; the hub says that there are two.
func clonedCluster(w *world) {
	c, other := w.Clusters[0], w.Clusters[1]
	w.putReady(module("shop", "8", "a", "b"))
	clone := w.clones("clone")
	from := w.marks()
	must(w.t, clone.Start())
	w.says(c.Name, "cloned")
	w.silentDeletes(from)
	w.put(module("shop", "9", "a", "b"))
	w.eventually(func() error { return w.has(c, "shop", "a", "9") })
	must(w.t, w.has(other, "shop", "a", "8"))
	w.silentDeletes(from)
}
