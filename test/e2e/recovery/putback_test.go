package recovery

import (
	"errors"
	"fmt"
	"os"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/test/lab"
)

// Ways in which an agent goes through a restore of its cluster.
const (
	runsThrough   = "runs"
	startsAnew    = "starts anew"
	stateGoesBack = "starts anew, with its state in the cluster" // which goes back as well
)

// inNamespaces lists Namespaces, and ConfigMaps by NAMESPACE/NAME, with one value for all.
func inNamespaces(name, value string, names ...string) string {
	var files strings.Builder
	for _, n := range names {
		namespace, object, found := strings.Cut(n, "/")
		if !found {
			fmt.Fprintf(&files, "---\n{apiVersion: v1, kind: Namespace, metadata: {name: %s}}\n", n)
			continue
		}
		fmt.Fprintf(&files, "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: %s}, data: {value: %q}}\n", object, namespace, value)
	}
	return fmt.Sprintf("---\napiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: %s}\nspec:\n  placement: {selector: {}}\n"+
		"  source:\n    inline:\n      files:\n        a.yaml: %q\n", name, files.String())
}

// restoredFurther: the etcd of a cluster goes back to before a module was deleted, a Namespace was removed, and an object went from one
// module to another. Nothing of that is undone or deleted unasked, all that came back is listed, and what is done about it then is
// through: it goes by a confirm, with its Namespace, or is taken up again; the object that had moved goes with the module that has it. An
// agent whose state went back as well knows of nothing that came since: what the newest revision drops goes by that.
func restoredFurther(how string) func(*world) {
	return func(w *world) {
		c := w.Clusters[0]
		if how == stateGoesBack {
			w.inPod(c)
		}
		w.put(inNamespaces("deleted", "1", "away", "away/a"))
		w.put(inNamespaces("from", "1", "moves", "moves/a", "moves/goes"))
		w.put(inNamespaces("to", "1", "moves/b"))
		w.putReady(inNamespaces("roomy", "1", "room", "room/a", "roomier", "roomier/b"))
		for _, m := range []string{"deleted", "from", "to", "roomy"} {
			must(w.t, w.CLI(w.t.Context(), "rollout", "wait", m, "--timeout", "2m").Err())
		}
		copied := w.etcd(c) + "-copy"
		w.halt(c)
		must(w.t, os.CopyFS(copied, os.DirFS(w.etcd(c))))
		w.resume(c)
		w.ready()
		must(w.t, w.CLI(w.t.Context(), "delete", "module", "deleted", "--yes", "--timeout", "2m").Err())
		w.putReady(inNamespaces("from", "2", "moves", "moves/a") + inNamespaces("to", "2", "moves/b", "moves/goes"))
		w.putReady(inNamespaces("roomy", "2", "roomier", "roomier/b"))
		w.eventually(func() error { return errors.Join(w.noNamespace(c, "room"), w.noNamespace(c, "away")) })
		w.halt(c)
		if how != runsThrough {
			c.Agent.Stop()
		}
		w.replace(c, copied)
		from := w.marks()
		w.resume(c)
		for _, action := range []string{"stop", "start"} { // it would wait for versions that are to come yet
			must(w.t, c.Part(w.t.Context(), "controller-manager", action))
		}
		if how != runsThrough {
			must(w.t, c.Agent.Start())
		}
		w.ready()
		w.eventually(func() error {
			return errors.Join(w.has(c, "moves", "goes", "2"), w.has(c, "moves", "b", "2"), w.has(c, "moves", "a", "2"), w.has(c, "roomier", "b", "2"), w.ownedBy(c, "moves", "goes", "to"))
		})
		w.says(c.Name, "stray") // the module that the hub has no more
		must(w.t, w.has(c, "away", "a", "1"))
		if how == stateGoesBack { // it is as if the agent had been away: the revision drops it once more
			w.eventually(func() error { return w.noNamespace(c, "room") })
			w.throughWith(c)
			must(w.t, os.RemoveAll(copied))
			return
		}
		w.silentDeletes(from)
		must(w.t, w.has(c, "room", "a", "1"))
		w.eventually(func() error {
			out := w.CLI(w.t.Context(), "get", "objects", "--cluster", c.Name).Stdout
			if !containsRow(out, "room/a") {
				return fmt.Errorf("room/a, which the copy brought back, is not listed:\n%s", out)
			}
			return nil
		})
		w.eventually(func() error { return w.confirmAll("roomy") })
		w.throughWith(c)
		must(w.t, os.RemoveAll(copied))
	}
}

// inASoak leaves a scenario out of make test, which goes through a shorter one.
func inASoak(run func(*world)) func(*world) {
	return func(w *world) {
		if os.Getenv("TOWLINE_SOAK") == "" {
			w.t.Skip("TOWLINE_SOAK is not set")
		}
		run(w)
	}
}

// throughWith does something about all that a restore has brought back.
func (w *world) throughWith(c *lab.Cluster) {
	w.t.Helper()
	w.putReady(inNamespaces("deleted", "3", "away", "away/a"))
	must(w.t, w.has(c, "away", "a", "3"))
	w.eventually(func() error { return w.noNamespace(c, "room") })
	must(w.t, w.CLI(w.t.Context(), "delete", "module", "to", "--yes", "--timeout", "2m").Err())
	must(w.t, errors.Join(w.gone(c, "moves", "goes"), w.gone(c, "moves", "b"), w.has(c, "moves", "a", "2")))
	must(w.t, w.CLI(w.t.Context(), "delete", "module", "deleted", "from", "roomy", "--yes", "--timeout", "2m").Err())
	for _, name := range []string{"moves", "away", "roomier"} {
		w.eventually(func() error { return w.noNamespace(c, name) })
	}
}

// confirmAll confirms what waits of a module.
func (w *world) confirmAll(module string) error {
	out := w.CLI(w.t.Context(), "get", "holds", "--module", module, "-o", "name")
	ids := strings.Fields(out.Stdout)
	if len(ids) == 0 {
		return fmt.Errorf("nothing of %s waits for a confirm: %s", module, out.Stderr)
	}
	for _, id := range ids {
		if err := w.CLI(w.t.Context(), "confirm", id).Err(); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) noNamespace(c *lab.Cluster, name string) error {
	_, err := c.Get(w.t.Context(), "v1", "Namespace", "", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("cluster %s: Namespace %s is still there (%v)", c.Name, name, err)
}

func (w *world) ownedBy(c *lab.Cluster, namespace, name, module string) error {
	got, err := c.Get(w.t.Context(), "v1", "ConfigMap", namespace, name)
	if err != nil {
		return err
	}
	of, _, _ := unstructured.NestedString(got.Object, "metadata", "annotations", fleet.OwnerAnnotation)
	if !strings.HasPrefix(of, "default/"+module+"@") {
		return fmt.Errorf("%s/%s carries the mark %q, want that of %s", namespace, name, of, module)
	}
	return nil
}

// inPod has a cluster's agent keep its state in Secrets of the cluster.
func (w *world) inPod(c *lab.Cluster) {
	w.t.Helper()
	token, err := w.Token(w.t.Context(), c.Name, "--reissue")
	must(w.t, err)
	c.Agent.Stop()
	c.Agent = w.NewAgent(c, lab.AgentOptions{Name: c.Agent.Name + "-pod", Pod: "pod-0", Token: token})
	must(w.t, c.Agent.Start())
	w.ready()
}
