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
	must(w.t, err)
	w.note("replace", "%s %s", c.Name, x)
	live.SetLabels(nil)
	live.SetAnnotations(nil)
	resource, err := c.Resource(shapes[x.kind].apiVersion, x.kind, home)
	must(w.t, err)
	_, err = resource.Update(w.t.Context(), live, metav1.UpdateOptions{FieldManager: "kubectl-replace"})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		must(w.t, err)
	}
	return true
}

// strip takes from an object what is noted of who wrote which of its fields.
func (w *world) strip() bool {
	c, x, ok := w.found()
	if !ok {
		return false
	}
	w.note("strip", "%s %s", c.Name, x)
	return w.merge(c, x, `{"metadata":{"managedFields":[{}]}}`, func() {})
}

// pin deletes an object that a finalizer holds until the next quiet point.
func (w *world) pin() bool {
	c, x, ok := w.found()
	if !ok {
		return false
	}
	at := fmt.Sprintf("z finalizer %s %s", c.Name, x)
	if w.down[at] != nil {
		return false
	}
	w.note("pin", "%s %s", c.Name, x)
	w.merge(c, x, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, finalizer), func() {})
	w.gone(c, x)
	w.down[at] = func() { w.unpin(c, x) }
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
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	must(w.t, lab.Poll(ctx, func() error { return do(ctx) }))
}

// pinned reports that a finalizer holds an object of a cluster.
func (w *world) pinned(c *lab.Cluster) bool {
	for what := range w.down {
		if strings.HasPrefix(what, "z finalizer "+c.Name) {
			return true
		}
	}
	return false
}

// empty deletes the namespace of all objects, and makes it again.
func (w *world) empty() bool {
	c := w.cluster()
	if !w.reach(c) || w.pinned(c) || w.down["zz kind "+c.Name] != nil {
		return false
	}
	w.note("empty", "%s", c.Name)
	for _, x := range w.pool() {
		w.lost(c, x, !shapes[x.kind].cluster)
	}
	namespaces, err := c.Resource("v1", "Namespace", "")
	must(w.t, err)
	must(w.t, namespaces.Delete(w.t.Context(), home, metav1.DeleteOptions{}))
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
	c, kind := w.cluster(), pick(w, []string{"Widget", "Gadget"})
	at := "zz kind " + c.Name
	if !w.reach(c) || w.pinned(c) || w.down[at] != nil {
		return false
	}
	w.note("undefine", "%s %s", c.Name, kind)
	for _, x := range w.pool() {
		w.lost(c, x, x.kind == kind)
	}
	definitions, err := c.Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "")
	must(w.t, err)
	must(w.t, definitions.Delete(w.t.Context(), strings.ToLower(kind)+"s.truth.example.com", metav1.DeleteOptions{}))
	w.down[at] = func() {
		w.eventually(func(ctx context.Context) error {
			return c.Create(ctx, definition(kind))
		})
	}
	return true
}

// hang has an API server take requests and not answer until the next quiet point.
func (w *world) hang() bool {
	c := w.cluster()
	if !w.reach(c) {
		return false
	}
	w.note("hang", "%s", c.Name)
	must(w.t, c.Part(w.t.Context(), "apiserver", "pause"))
	w.down["server "+c.Name] = func() { must(w.t, c.Part(w.t.Context(), "apiserver", "resume")) }
	return true
}

// inSecrets is the cluster whose agent keeps its state in Secrets, as it does in a pod.
func (w *world) inSecrets() *lab.Cluster { return w.Clusters[1] }

// lose ends an agent and takes all that it noted but who it is.
func (w *world) lose() bool {
	c := w.cluster()
	a := c.Agent
	if !a.Running() || !w.reach(c) {
		return false
	}
	w.note("lose", "%s", c.Name)
	w.forgot[c.Name] = true
	w.resume(a)
	a.Kill()
	if c == w.inSecrets() {
		w.loseSecrets(c)
	} else {
		w.loseFiles(a.StateDir)
	}
	must(w.t, a.Start())
	return true
}

func (w *world) loseFiles(dir string) {
	entries, err := os.ReadDir(dir)
	must(w.t, err)
	for _, e := range entries {
		if e.Name() == "identity.state" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			must(w.t, err)
		}
	}
}

func (w *world) loseSecrets(c *lab.Cluster) {
	secrets, err := c.Resource("v1", "Secret", agentsNamespace)
	must(w.t, err)
	list, err := secrets.List(w.t.Context(), listAll)
	must(w.t, err)
	for _, s := range list.Items {
		if s.GetAnnotations()["towline.dev/state-name"] != "identity" {
			must(w.t, secrets.Delete(w.t.Context(), s.GetName(), metav1.DeleteOptions{}))
		}
	}
}

const agentsNamespace = "towline-system"

// revive starts the agent again that keeps its state in Secrets, as the kubelet does: one that cannot read them ends.
func (w *world) revive() {
	a := w.inSecrets().Agent
	if !a.Running() {
		w.journal = append(w.journal, "revive "+a.Name)
		must(w.t, a.Start())
	}
}

// roll has a new pod of an agent take the place of the one that runs, which ends at once, is killed or hangs, as a Deployment does
// with a new version.
func (w *world) roll() bool {
	c := w.inSecrets()
	old := c.Agent
	if !old.Running() {
		return false
	}
	w.pods++
	pod := fmt.Sprintf("pod-%d", w.pods)
	w.note("roll", "%s", pod)
	c.Agent = w.NewAgent(c, lab.AgentOptions{Name: "agent-" + c.Name + "-" + pod, Pod: pod})
	must(w.t, c.Agent.Start())
	switch w.random.IntN(3) {
	case 0:
		w.resume(old)
		old.Stop()
	case 1:
		w.resume(old)
		old.Kill()
	default:
		if w.down["pause "+old.Name] == nil {
			old.Pause()
		}
		delete(w.down, "pause "+old.Name)
		w.down["z old "+old.Name] = func() {
			old.Resume()
			old.Stop()
		}
	}
	return true
}

// hold stops all writes of a module, a cluster, or a module in a cluster until the next quiet point.
func (w *world) hold() bool {
	c := w.cluster()
	name, m := w.someModule()
	args := []string{"cluster/" + c.Name}
	if m != nil && w.random.IntN(2) == 0 {
		args = []string{"module/" + name, "--cluster", c.Name}
	}
	at := "hold " + strings.Join(args, " ")
	if w.down[at] != nil {
		return false
	}
	w.note("hold", "%s", strings.Join(args, " "))
	w.towline(append([]string{"hold"}, args...)...)
	w.down[at] = func() { w.CLI(w.t.Context(), append([]string{"unhold"}, args...)...) } // it ends with its module
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
	w.note("take", "%s %s %s", c.Name, x, v)
	o := x.wanted(v)
	o.SetLabels(map[string]string{"kustomize.toolkit.fluxcd.io/name": "apps"})
	resource, err := c.Resource(shapes[x.kind].apiVersion, x.kind, home)
	must(w.t, err)
	live, err := resource.Get(w.t.Context(), x.name, metav1.GetOptions{})
	if err == nil {
		o.SetUID(live.GetUID())
		_, err = resource.Apply(w.t.Context(), x.name, o, metav1.ApplyOptions{FieldManager: "kustomize-controller", Force: true})
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) { // ports of one name
		must(w.t, err)
	}
	return true
}
