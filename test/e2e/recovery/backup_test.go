package recovery

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// restoredHub: the hub is restored from a backup in which two modules were being removed from a cluster; both were removed there since and
// put again. Nothing is done before a person accepts; what he holds before stays, and what a module of another name lists goes over to
// it as it is, without a delete, also when the hold ends.
func restoredHub(w *world) {
	c := w.Clusters[1]
	for _, x := range w.Clusters {
		must(w.t, x.Create(w.t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "backup"}}}))
	}
	inside := func(name string, objects ...string) string { return inNamespaces(name, "1", objects...) }
	both := inside("held", "backup/a") + inside("taken", "backup/b")
	w.put(both)
	gone := func() error { return errors.Join(w.gone(c, "backup", "a"), w.gone(c, "backup", "b")) }
	there := func() error { return errors.Join(w.has(c, "backup", "a", "1"), w.has(c, "backup", "b", "1")) }
	w.eventually(there)
	c.Link.Cut()
	w.says(c.Name, "Disconnected")
	must(w.t, w.CLI(w.t.Context(), "delete", "module", "held", "taken", "--yes", "--wait=false").Err())
	file := filepath.Join(w.Dir, "hub.db")
	w.hubRuns("backup", "--data-dir", w.Hub.DataDir, "--to", file)
	c.Link.Restore()
	w.eventually(gone)
	w.putReady(both)
	w.Hub.Stop()
	w.hubRuns("restore", "--data-dir", w.Hub.DataDir, "--from", file, "--replace")
	from := w.marks()
	must(w.t, w.Hub.Start(w.t.Context()))
	for _, x := range w.Clusters {
		w.says(x.Name, "REGRESSED")
	}
	must(w.t, w.CLI(w.t.Context(), "hold", "module/held").Err())
	w.put(inside("heir-of-taken", "backup/b"))
	w.silent(from)
	must(w.t, w.CLI(w.t.Context(), "restore", "accept", "--yes").Err())
	w.eventually(func() error { return w.ownedBy(c, "backup", "b", "heir-of-taken") })
	w.put(inside("heir-of-held", "backup/a"))
	w.eventually(func() error { return w.ownedBy(c, "backup", "a", "held") })
	must(w.t, w.CLI(w.t.Context(), "unhold", "module/held").Err())
	w.eventually(func() error { return w.ownedBy(c, "backup", "a", "heir-of-held") })
	w.silentDeletes(from)
	must(w.t, there())

	must(w.t, w.CLI(w.t.Context(), "delete", "module", "heir-of-taken", "heir-of-held", "--yes", "--timeout", "2m").Err())
	w.putReady(both)
	must(w.t, w.CLI(w.t.Context(), "delete", "module", "held", "taken", "--yes", "--timeout", "2m").Err())
}

// hubRuns runs a command of the hub's binary.
func (w *world) hubRuns(args ...string) {
	w.t.Helper()
	out, err := exec.CommandContext(w.t.Context(), filepath.Join(os.Getenv("TOWLINE_BIN"), "towline-hub"), args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("towline-hub %v: %v\n%s", args, err, out)
	}
}
