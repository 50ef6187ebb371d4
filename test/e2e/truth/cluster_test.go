package truth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

// What happens to whole objects, kinds and namespaces in a cluster, and to the agent's own files.

// finalizer is what a controller holds an object by.
const finalizer = "truth.example.com/hold"

// replace puts an object as somebody's file has it, without our marks.
func (w *world) replace() bool {
	c, x, ok := w.found()
	if !ok {
		return false
	}
	live, err := w.live(c, x)
	if apierrors.IsNotFound(err) {
		return true
	}
	w.Must(err)
	w.Note("replace", "%s %s", c.Name, x)
	live.SetLabels(nil)
	live.SetAnnotations(nil)
	resource, err := c.Resource(shapes[x.kind].apiVersion, x.kind, home)
	w.Must(err)
	_, err = resource.Update(w.T.Context(), live, metav1.UpdateOptions{FieldManager: "kubectl-replace"})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		w.Must(err)
	}
	return true
}

// strip takes from an object what is noted of who wrote which of its fields.
func (w *world) strip() bool {
	c, x, ok := w.found()
	if !ok {
		return false
	}
	w.Note("strip", "%s %s", c.Name, x)
	return w.merge(c, x, `{"metadata":{"managedFields":[{}]}}`, func() {})
}

// pin deletes an object that a finalizer holds until the next quiet point.
func (w *world) pin() bool {
	c, x, ok := w.found()
	if !ok {
		return false
	}
	at := fmt.Sprintf("z finalizer %s %s", c.Name, x)
	if w.Down[at] != nil {
		return false
	}
	w.Note("pin", "%s %s", c.Name, x)
	w.merge(c, x, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, finalizer), func() {})
	w.gone(c, x)
	w.Down[at] = func() { w.unpin(c, x) }
	return true
}

func (w *world) unpin(c *lab.Cluster, x id) {
	w.eventually(func(ctx context.Context) error {
		resource, err := c.Resource(shapes[x.kind].apiVersion, x.kind, home)
		if err != nil {
			return err
		}
		_, err = resource.Patch(ctx, x.name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// eventually does what may need an API server that is only just back.
func (w *world) eventually(do func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(w.T.Context(), limit)
	defer cancel()
	w.Must(lab.Poll(ctx, func() error { return do(ctx) }))
}

// pinned reports that a finalizer holds an object of a cluster.
func (w *world) pinned(c *lab.Cluster) bool {
	for what := range w.Down {
		if strings.HasPrefix(what, "z finalizer "+c.Name) {
			return true
		}
	}
	return false
}

// empty deletes the namespace of all objects, and makes it again.
func (w *world) empty() bool {
	c := w.AnyCluster()
	if !w.Reach(c) || w.pinned(c) || w.Down["zz kind "+c.Name] != nil {
		return false
	}
	w.Note("empty", "%s", c.Name)
	for _, x := range w.pool() {
		w.lost(c, x, !shapes[x.kind].cluster)
	}
	namespaces, err := c.Resource("v1", "Namespace", "")
	w.Must(err)
	w.Must(namespaces.Delete(w.T.Context(), home, metav1.DeleteOptions{}))
	w.eventually(func(ctx context.Context) error {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": home}}}
		return c.Create(ctx, o)
	})
	return true
}

// lost notes that the test deletes an object by what it is in, or of.
func (w *world) lost(c *lab.Cluster, x id, is bool) {
	if is {
		w.touched[place{c.Name, x}] = true
		delete(w.foreign, place{c.Name, x})
	}
}

// undefine deletes a custom kind, with its objects, until the next quiet point.
func (w *world) undefine() bool {
	c, kind := w.AnyCluster(), e2etest.Pick(w.Random, []string{"Widget", "Gadget"})
	at := "zz kind " + c.Name
	if !w.Reach(c) || w.pinned(c) || w.Down[at] != nil {
		return false
	}
	w.Note("undefine", "%s %s", c.Name, kind)
	for _, x := range w.pool() {
		w.lost(c, x, x.kind == kind)
	}
	definitions, err := c.Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "")
	w.Must(err)
	w.Must(definitions.Delete(w.T.Context(), strings.ToLower(kind)+"s.truth.example.com", metav1.DeleteOptions{}))
	w.Down[at] = func() {
		w.eventually(func(ctx context.Context) error {
			return c.Create(ctx, definition(kind))
		})
	}
	return true
}

// hang has an API server take requests and not answer until the next quiet point.
func (w *world) hang() bool {
	c := w.AnyCluster()
	if !w.Reach(c) {
		return false
	}
	w.Note("hang", "%s", c.Name)
	w.Must(c.Part(w.T.Context(), "apiserver", "pause"))
	w.Down["server "+c.Name] = func() { w.Must(c.Part(w.T.Context(), "apiserver", "resume")) }
	return true
}

// inSecrets is the cluster whose agent keeps its state in Secrets, as it does in a pod.
func (w *world) inSecrets() *lab.Cluster { return w.Clusters[1] }

// lose ends an agent and takes all that it noted but who it is.
func (w *world) lose() bool {
	c := w.AnyCluster()
	a := c.Agent
	if !a.Running() || !w.Reach(c) || w.leaving(c) {
		return false
	}
	w.Note("lose", "%s", c.Name)
	w.forgot[c.Name] = true
	w.Wake(a)
	a.Kill()
	if c == w.inSecrets() {
		w.loseSecrets(c)
	} else {
		w.loseFiles(a.StateDir)
	}
	w.Must(a.Start())
	return true
}

func (w *world) loseFiles(dir string) {
	entries, err := os.ReadDir(dir)
	w.Must(err)
	for _, e := range entries {
		if e.Name() == "identity.state" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.Must(err)
		}
	}
}

func (w *world) loseSecrets(c *lab.Cluster) {
	w.loseNotes(c, "v1", "Secret", func(s *unstructured.Unstructured) bool {
		return s.GetAnnotations()["towline.dev/state-name"] != "identity"
	})
}

// loseNotes deletes objects in which an agent that has ended noted something.
func (w *world) loseNotes(c *lab.Cluster, apiVersion, kind string, which func(*unstructured.Unstructured) bool) {
	resource, err := c.Resource(apiVersion, kind, agentsNamespace)
	w.Must(err)
	list, err := resource.List(w.T.Context(), listAll)
	w.Must(err)
	for i := range list.Items {
		if o := &list.Items[i]; which(o) {
			w.Must(resource.Delete(w.T.Context(), o.GetName(), metav1.DeleteOptions{}))
		}
	}
}

const agentsNamespace = "towline-system"

// revive starts the agent again that keeps its state in Secrets, as the kubelet does: one that cannot read them ends.
func (w *world) revive() {
	a := w.inSecrets().Agent
	if !a.Running() {
		w.Write("revive " + a.Name)
		w.Must(a.Start())
	}
}

// roll has a new pod of an agent take the place of the one that runs, which ends at once, is killed or hangs, as a Deployment does
// with a new version.
func (w *world) roll() bool {
	c := w.inSecrets()
	old := c.Agent
	if !old.Running() || w.leaving(c) {
		return false
	}
	w.pods++
	pod := fmt.Sprintf("pod-%d", w.pods)
	w.Note("roll", "%s", pod)
	c.Agent = w.NewAgent(c, lab.AgentOptions{Name: "agent-" + c.Name + "-" + pod, Pod: pod})
	w.Must(c.Agent.Start())
	switch w.Rand.IntN(3) {
	case 0:
		w.Wake(old)
		old.Stop()
	case 1:
		w.Wake(old)
		old.Kill()
	default:
		if w.Down["asleep "+old.Name] == nil {
			old.Pause()
		}
		delete(w.Down, "asleep "+old.Name)
		w.Down["z old "+old.Name] = func() {
			old.Resume()
			old.Stop()
		}
	}
	return true
}

// hold stops all writes of a module, a cluster, or a module in a cluster until the next quiet point.
func (w *world) hold() bool {
	c := w.AnyCluster()
	name, m := w.someModule()
	args := []string{"cluster/" + c.Name}
	if m != nil && w.Rand.IntN(2) == 0 {
		args = []string{"module/" + name, "--cluster", c.Name}
	}
	at := "hold " + strings.Join(args, " ")
	if w.Down[at] != nil || w.leaving(c) {
		return false
	}
	w.Note("hold", "%s", strings.Join(args, " "))
	w.towline(append([]string{"hold"}, args...)...)
	w.Down[at] = func() { w.CLI(w.T.Context(), append([]string{"unhold"}, args...)...) } // it ends with its module
	return true
}

// take has another tool apply an object, with its mark, though a module has it.
func (w *world) take() bool {
	c, x, ok := w.found()
	if !ok {
		return false
	}
	if _, foreign := w.foreign[place{c.Name, x}]; foreign {
		return false
	}
	v := w.value()
	w.Note("take", "%s %s %s", c.Name, x, v)
	o := x.wanted(v)
	o.SetLabels(map[string]string{"kustomize.toolkit.fluxcd.io/name": "apps"})
	resource, err := c.Resource(shapes[x.kind].apiVersion, x.kind, home)
	w.Must(err)
	live, err := resource.Get(w.T.Context(), x.name, metav1.GetOptions{})
	if err == nil {
		o.SetUID(live.GetUID())
		_, err = resource.Apply(w.T.Context(), x.name, o, metav1.ApplyOptions{FieldManager: "kustomize-controller", Force: true})
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) { // ports of one name
		w.Must(err)
	}
	return true
}
