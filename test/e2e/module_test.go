package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/test/lab"
)

// configMap is a ConfigMap's manifest.
func configMap(name, value string) string {
	return fmt.Sprintf("---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: %s}, data: {value: %q}}\n", name, value)
}

func namespace(name string) string {
	return fmt.Sprintf("---\n{apiVersion: v1, kind: Namespace, metadata: {name: %s}}\n", name)
}

// gone fails unless the object is not there.
func gone(t *testing.T, c *lab.Cluster, apiVersion, kind, ns, name string) error {
	t.Helper()
	got, err := c.Get(t.Context(), apiVersion, kind, ns, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("cluster %s: %s %s/%s is still there, deletion %v", c.Name, kind, ns, name, got.GetDeletionTimestamp())
}

// there fails unless the object is there, with the value if one is given.
func there(t *testing.T, c *lab.Cluster, ns, name, value string) error {
	t.Helper()
	got, err := c.Get(t.Context(), "v1", "ConfigMap", ns, name)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", c.Name, err)
	}
	if v, _, _ := unstructured.NestedString(got.Object, "data", "value"); value != "" && v != value {
		return fmt.Errorf("cluster %s: ConfigMap %s/%s holds %q, want %q", c.Name, ns, name, v, value)
	}
	return nil
}

// everywhere runs f for each cluster.
func everywhere(f func(c *lab.Cluster) error) error {
	for _, c := range system.Clusters {
		if err := f(c); err != nil {
			return err
		}
	}
	return nil
}

// testBadModules puts what cannot work after what did: each error names the thing, and the last good state stays.
func testBadModules(t *testing.T) {
	remove(t, "bad")
	good := moduleOf("bad", "bad", map[string]string{"a.yaml": namespace("bad") + configMap("good", "one")})
	putReady(t, good)
	from := mark(t)
	server := httptest.NewServer(http.NotFoundHandler())
	dead := server.URL
	server.Close()
	broken := func(text string) string { return moduleOf("bad", "bad", map[string]string{"broken.yaml": text}) }
	for name, bad := range map[string]struct {
		module string
		words  []string
	}{
		"no kind":  {broken("{apiVersion: v1, metadata: {name: x}}"), []string{"broken.yaml:1", "kind"}},
		"no name":  {broken("---\n{apiVersion: v1, kind: ConfigMap, metadata: {}}"), []string{"broken.yaml:2", "ConfigMap", "name"}},
		"twice":    {broken(configMap("x", "1") + configMap("x", "2")), []string{"ConfigMap", "x"}},
		"not YAML": {broken("apiVersion: v1\nkind: [\n"), []string{"broken.yaml:"}},
		"nothing":  {broken("# only words\n"), []string{"allowEmpty"}},
		"the agent's own": {broken("---\n{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: towline-agent}}\n"),
			[]string{"broken.yaml:2", "ClusterRole towline-agent", "belongs to the agent"}},
		"unknown field": {strings.Replace(good, "placement:", "placment:", 1), []string{"placment", "did you mean placement"}},
		"selector": {moduleOf("bad", "bad", map[string]string{"a.yaml": configMap("x", "1")},
			"placement: {selector: {matchExpressions: [{key: a, operator: Near}]}}"), []string{"module bad", "Near"}},
		"no placement": {moduleOf("bad", "bad", map[string]string{"a.yaml": configMap("x", "1")}, "placement: {}"), []string{"placement"}},
		"unreachable":  {httpModule("bad", dead+"/x.tar.gz", ""), []string{dead, "cannot be reached"}},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, bad.module, []string{"apply", "-f", "-", "--wait", "--timeout", "20s"}, bad.words...) // who cannot be reached is waited for all the time
		})
	}
	from.noWrites(t)
	if err := everywhere(func(c *lab.Cluster) error { return there(t, c, "bad", "good", "one") }); err != nil {
		t.Error(err)
	}
	// The last good revision is still the one that is kept, and the next good one is taken.
	putReady(t, strings.Replace(good, "one", "two", 1))
	if err := everywhere(func(c *lab.Cluster) error { return there(t, c, "bad", "good", "two") }); err != nil {
		t.Error(err)
	}
	// An unknown kind is known to be one only in the cluster: it is said there, and the others go on.
	refused(t, moduleOf("bad", "bad", map[string]string{"a.yaml": namespace("bad") + configMap("good", "three") +
		"---\n{apiVersion: no.example.com/v1, kind: Unknown, metadata: {name: x}}\n"}, "rollout: {progressDeadline: 5s}"),
		[]string{"apply", "-f", "-", "--wait", "--timeout", "2m"}, "Failed")
	// One cluster that says so is enough to end the wait; the others may still be at it.
	eventually(t, "the other object goes on, and what is said of the unknown kind", func() error {
		for _, r := range rows(t, "bad", "--kind", "Unknown") {
			if r.Health == "Healthy" || !strings.Contains(r.Message, "no.example.com") {
				return fmt.Errorf("the object of the unknown kind: %s", r)
			}
		}
		return everywhere(func(c *lab.Cluster) error { return there(t, c, "bad", "good", "three") })
	})
}

func httpModule(name, url, sha string) string {
	source := fmt.Sprintf("source: {http: {url: %q, sha256: %q}}", url, sha)
	if sha == "" {
		source = fmt.Sprintf("source: {http: {url: %q}}", url)
	}
	return moduleOf(name, name, nil, source)
}

// tarball holds files; a name that ends in @ is a symbolic link.
func tarball(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	for name, text := range files {
		header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}
		if link, ok := strings.CutSuffix(name, "@"); ok {
			header = &tar.Header{Name: link, Linkname: text, Typeflag: tar.TypeSymlink}
			text = ""
		}
		if err := archive.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func testSource(t *testing.T) {
	remove(t, "source")
	good := tarball(t, map[string]string{"app/a.yaml": namespace("source") + configMap("from-tar", "one")})
	served := map[string][]byte{
		"/good.tar.gz": good,
		"/dots.tar.gz": tarball(t, map[string]string{"../escape.yaml": configMap("x", "1")}),
		"/link.tar.gz": tarball(t, map[string]string{"a.yaml@": "/etc/passwd"}),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, ok := served[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
	defer server.Close()
	sum := sha256.Sum256(good)
	putReady(t, httpModule("source", server.URL+"/good.tar.gz", hex.EncodeToString(sum[:])))
	if err := everywhere(func(c *lab.Cluster) error { return there(t, c, "source", "from-tar", "one") }); err != nil {
		t.Error(err)
	}
	from := mark(t)
	wrong := strings.Repeat("ab", 32)
	for path, words := range map[string][]string{
		"/dots.tar.gz": {"../escape.yaml"}, "/link.tar.gz": {"a.yaml", "link"}, "/missing.tar.gz": {"/missing.tar.gz", "404"},
	} {
		refused(t, httpModule("source", server.URL+path, ""), []string{"apply", "-f", "-", "--wait", "--timeout", "1m"}, words...)
	}
	refused(t, httpModule("source", server.URL+"/good.tar.gz", wrong), []string{"apply", "-f", "-", "--wait", "--timeout", "1m"}, "sha256", wrong)
	from.noWrites(t)
}

func testPrune(t *testing.T) {
	remove(t, "prune")
	text := namespace("prune") + configMap("stays", "one")
	for i := range 5 {
		text += configMap(fmt.Sprintf("goes-%d", i), "x")
	}
	putReady(t, moduleOf("prune", "prune", map[string]string{"a.yaml": text}))
	uid := uidOf(t, "prune", "stays")
	from := mark(t)
	putReady(t, moduleOf("prune", "prune", map[string]string{"a.yaml": namespace("prune") + configMap("stays", "one") + configMap("new", "x")}))
	eventually(t, "what the update dropped is gone", func() error {
		return everywhere(func(c *lab.Cluster) error {
			for i := range 5 {
				if err := gone(t, c, "v1", "ConfigMap", "prune", fmt.Sprintf("goes-%d", i)); err != nil {
					return err
				}
			}
			return there(t, c, "prune", "new", "x")
		})
	})
	if got := uidOf(t, "prune", "stays"); got != uid {
		t.Error("what stays was made anew")
	}
	for _, c := range system.Clusters {
		if writes := from.requests(t, c, lab.Request.Applies); len(writes) != 6 {
			t.Errorf("cluster %s: %d writes for 5 deletions and a new object: %v", c.Name, len(writes), writes)
		}
	}
	if list := rows(t, "prune"); len(list) != 3*3 {
		t.Errorf("%d rows for 3 objects in 3 clusters: %v", len(list), list)
	}
}

func uidOf(t *testing.T, ns, name string) string {
	t.Helper()
	got, err := system.Clusters[0].Get(t.Context(), "v1", "ConfigMap", ns, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(got.GetUID())
}

func foreign(ns, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name, "namespace": ns}, "data": map[string]any{"value": "foreign"}}}
}

// testDelete: a module takes its objects along and confirms; --orphan leaves them; a namespace with something of
// somebody else's stays.
func testDelete(t *testing.T) {
	remove(t, "leaves")
	text := namespace("leaves") + configMap("a", "1") + configMap("b", "2") +
		"---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: app}, spec: {replicas: 1, selector: {matchLabels: {app: a}}, " +
		"template: {metadata: {labels: {app: a}}, spec: {containers: [{name: main, image: example.com/a}]}}}}\n"
	putReady(t, moduleOf("leaves", "leaves", map[string]string{"a.yaml": text}))
	out := towline(t, "delete", "module", "leaves", "--yes", removing)
	if !strings.Contains(out, "gone from 3 clusters, which were to remove 12 objects") {
		t.Errorf("delete does not say what it ordered:\n%s", out)
	}
	if err := everywhere(func(c *lab.Cluster) error { return gone(t, c, "v1", "Namespace", "", "leaves") }); err != nil {
		t.Errorf("delete said that all is gone: %v", err)
	}
	if r := system.CLI(t.Context(), "get", "module", "leaves"); r.Code == 0 {
		t.Errorf("the module is still there:\n%s", r.Stdout)
	}

	// Orphaned, without our marks, and not ours any more.
	putReady(t, moduleOf("leaves", "leaves", map[string]string{"a.yaml": text}))
	towline(t, "delete", "module", "leaves", "--orphan", "--yes", removing)
	err := everywhere(func(c *lab.Cluster) error {
		got, err := c.Get(t.Context(), "v1", "ConfigMap", "leaves", "a")
		if err == nil && (got.GetLabels()["towline.dev/hub"] != "" || got.GetAnnotations()["towline.dev/owner"] != "") {
			err = fmt.Errorf("cluster %s: the orphan carries our marks: %v %v", c.Name, got.GetLabels(), got.GetAnnotations())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}

	// What is the same as wanted is taken over again; the namespace is not ours, so it stays.
	putReady(t, moduleOf("leaves", "leaves", map[string]string{"a.yaml": text}))
	towline(t, "delete", "module", "leaves", "--yes", removing)
	if err := everywhere(func(c *lab.Cluster) error { return gone(t, c, "v1", "ConfigMap", "leaves", "a") }); err != nil {
		t.Error(err)
	}

	// A namespace that the module made, with something foreign inside.
	text = strings.ReplaceAll(text, "name: leaves}", "name: kept}")
	putReady(t, moduleOf("leaves", "kept", map[string]string{"a.yaml": text}))
	first := system.Clusters[0]
	if err := first.Create(t.Context(), foreign("kept", "theirs")); err != nil {
		t.Fatal(err)
	}
	towline(t, "delete", "module", "leaves", "--yes", removing)
	if err := there(t, first, "kept", "theirs", "foreign"); err != nil {
		t.Errorf("what is not ours went with the namespace: %v", err)
	}
	if err := gone(t, first, "v1", "ConfigMap", "kept", "a"); err != nil {
		t.Error(err)
	}
	if err := gone(t, system.Clusters[1], "v1", "Namespace", "", "kept"); err != nil {
		t.Error(err)
	}
}

// testNameAgain: a cluster whose agent is off does not keep the name of a deleted module. It carries out the removal of
// the first, as it was ordered, before it gets the second.
func testNameAgain(t *testing.T) {
	remove(t, "again")
	last := system.Clusters[2]
	putReady(t, moduleOf("again", "again", map[string]string{"a.yaml": namespace("again") + configMap("old", "1") + configMap("both", "first")}))
	before, err := last.Get(t.Context(), "v1", "ConfigMap", "again", "both")
	if err != nil {
		t.Fatal(err)
	}
	last.Agent.Stop()
	eventually(t, last.Name+" is away", func() error { return system.WaitState(t.Context(), last.Name, "Disconnected") })
	towline(t, "delete", "module", "again", "--yes", "--wait=false")
	put(t, moduleOf("again", "again", map[string]string{"a.yaml": namespace("again") + configMap("new", "2") + configMap("both", "second")}))
	eventually(t, "the others have the second module", func() error {
		return errors.Join(there(t, system.Clusters[0], "again", "new", "2"), gone(t, system.Clusters[0], "v1", "ConfigMap", "again", "old"))
	})
	if err := there(t, last, "again", "old", "1"); err != nil {
		t.Errorf("an agent that is off writes: %v", err)
	}
	if err := last.Agent.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, last.Name+" has the second module and nothing of the first", func() error {
		return errors.Join(there(t, last, "again", "new", "2"), there(t, last, "again", "both", "second"), gone(t, last, "v1", "ConfigMap", "again", "old"))
	})
	after, err := last.Get(t.Context(), "v1", "ConfigMap", "again", "both")
	if err != nil || after.GetUID() == before.GetUID() {
		t.Errorf("what both modules list is not removed with the first: %v", err)
	}
	eventually(t, "the second module is healthy everywhere", func() error {
		if s := module(t, "again").Status; s.Healthy != 3 || s.Clusters != 3 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

func testConflict(t *testing.T) {
	remove(t, "second")
	remove(t, "first")
	putReady(t, moduleOf("first", "first", map[string]string{"a.yaml": namespace("first") + configMap("shared", "of the first")}))
	refused(t, moduleOf("second", "first", map[string]string{"a.yaml": configMap("shared", "of the second") + configMap("own", "x")},
		"rollout: {progressDeadline: 5s}"), []string{"apply", "-f", "-", "--wait", "--timeout", "2m"}, "shared", "belongs to module first")
	if err := everywhere(func(c *lab.Cluster) error { return there(t, c, "first", "shared", "of the first") }); err != nil {
		t.Error(err)
	}
	if s := module(t, "first").Status; s.Healthy != 3 || s.Bad != 0 {
		t.Errorf("the first owner suffers: %+v", s)
	}
	// One cluster that says so is enough to end the wait; the others may still be at it.
	eventually(t, "the other objects of the second go on", func() error {
		return everywhere(func(c *lab.Cluster) error { return there(t, c, "first", "own", "x") })
	})
	goesOver(t, "dropped by the first", func() {
		putReady(t, moduleOf("first", "first", map[string]string{"a.yaml": namespace("first") + configMap("else", "x")}))
	})
	// The other way round, by the end of the owner.
	put(t, moduleOf("first", "first", map[string]string{"a.yaml": namespace("first") + configMap("shared", "of the second")}))
	eventually(t, "the first waits now", func() error {
		if s := module(t, "first").Status; s.Bad != 3 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	goesOver(t, "with the second deleted", func() { towline(t, "delete", "module", "second", "--yes", removing) })
	eventually(t, "the first is well", func() error {
		if s := module(t, "first").Status; s.Healthy != 3 || s.Bad != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// testMove: an object goes from a module to another one without a delete, whichever of them is put first; and it is kept,
// and listed, for as long as the other is to have it and does not come.
func testMove(t *testing.T) {
	remove(t, "to")
	remove(t, "from")
	from := func(more string, flags ...string) string {
		return moduleOf("from", "move", map[string]string{"a.yaml": namespace("move") + configMap("base", "x") + more}, flags...)
	}
	to := func(more string, flags ...string) string {
		return moduleOf("to", "move", map[string]string{"a.yaml": configMap("other", "x") + more}, flags...)
	}
	shared := configMap("shared", "to")
	without, with := from(""), from(configMap("shared", "from"))
	for _, onFailure := range []string{"Pause", "Rollback"} {
		// With Rollback, one moment in which a cluster counts as failed would send a module back for good.
		rollout := "rollout: {onFailure: " + onFailure + "}"
		for _, order := range []string{"the one that lets it go first", "the one that takes it first"} {
			putReady(t, with)
			putReady(t, to(""))
			both := from("", rollout) + "---\n" + to(shared, rollout)
			if order == "the one that takes it first" {
				both = to(shared, rollout) + "---\n" + from("", rollout)
			}
			moves(t, order+", "+onFailure, func() { putReady(t, both) })
			putReady(t, to(""))
		}
	}
	putReady(t, with)
	gate := "rollout: {stages: [{name: all, before: [{approval: {approvers: 1}}]}]}"
	put(t, from("", gate))
	put(t, to(shared, "rollout: {onFailure: Rollback}"))
	moves(t, "an owner whose rollout waits", func() {
		awaitedFromOwner(t)
		putReady(t, without)
		succeeded(t, "to")
	})
	putReady(t, to(""))
	putReady(t, with)
	putReady(t, to(""))
	put(t, to(shared, gate))
	moves(t, "a rollout that is aborted, and tried again", func() {
		putReady(t, without)
		keptForHeir(t)
		towline(t, "rollout", "abort", "to")
		keptForHeir(t)
		putReady(t, to(shared))
	})
}

// succeeded waits until the newest rollout of each module has.
func succeeded(t *testing.T, modules ...string) {
	t.Helper()
	for _, name := range modules {
		eventually(t, "the rollout of "+name+" succeeds", func() error {
			if state := strings.TrimSpace(towline(t, "get", "module", name, "-o", "jsonpath={.status.rolloutState}")); state != "Succeeded" {
				return errors.New(state)
			}
			return nil
		})
	}
}

// awaitedFromOwner checks that the shared object is listed as one that waits for its owner, and that no cluster counts as failed
// for it.
func awaitedFromOwner(t *testing.T) {
	t.Helper()
	eventually(t, "the shared object is awaited", func() error {
		n := 0
		for _, r := range rows(t, "to") {
			if r.Object.Name == "shared" && r.Reason == "AwaitingOwner" && r.Health == "Progressing" && strings.Contains(r.Message, "module from") {
				n++
			}
		}
		if n != 3 {
			return fmt.Errorf("%d times: %v", n, rows(t, "to"))
		}
		return nil
	})
	if s := module(t, "to").Status; s.Bad != 0 || !strings.HasPrefix(s.RolloutState, "Progressing") {
		t.Errorf("counts as failed: %+v", s)
	}
	if why := towline(t, "explain", "rollout", "to"); !strings.Contains(why, "waits for module from to let it go") {
		t.Errorf("explain: %s", why)
	}
	if table := towline(t, "get", "clusters"); strings.Contains(table, "Conflict") {
		t.Errorf("get clusters: %s", table)
	}
}

// keptForHeir checks that the shared object is listed as what is left of the module that let it go, with the reason.
func keptForHeir(t *testing.T) {
	t.Helper()
	eventually(t, "the shared object is kept and listed", func() error {
		n := 0
		for _, r := range rows(t, "from") {
			if r.Extra && r.Object.Name == "shared" && r.Reason == "AwaitingHeir" && strings.Contains(r.Message, "module to") {
				n++
			}
		}
		if n != 3 {
			return fmt.Errorf("%d times: %v", n, rows(t, "from"))
		}
		return nil
	})
}

// moves checks that the shared object goes from one module to the other by what happens, without a delete.
func moves(t *testing.T, how string, happens func()) {
	t.Helper()
	uid, from := uidOf(t, "move", "shared"), mark(t)
	happens()
	eventually(t, "the shared object goes over: "+how, func() error {
		return everywhere(func(c *lab.Cluster) error { return there(t, c, "move", "shared", "to") })
	})
	if now := uidOf(t, "move", "shared"); now != uid {
		t.Errorf("%s: the shared object was made anew", how)
	}
	for _, c := range system.Clusters {
		for _, r := range from.requests(t, c, func(r lab.Request) bool { return r.Verb == "delete" && r.Name == "shared" }) {
			t.Errorf("cluster %s: %s: %s", c.Name, how, r)
		}
	}
}

// goesOver checks that the shared object is there as the second module wants it after what happens, without a delete.
func goesOver(t *testing.T, how string, happens func()) {
	t.Helper()
	uid, from := uidOf(t, "first", "shared"), mark(t)
	happens()
	eventually(t, "the shared object goes over, "+how, func() error {
		return everywhere(func(c *lab.Cluster) error { return there(t, c, "first", "shared", "of the second") })
	})
	if now := uidOf(t, "first", "shared"); now != uid {
		t.Errorf("%s: the shared object was made anew", how)
	}
	for _, c := range system.Clusters {
		for _, r := range from.requests(t, c, func(r lab.Request) bool { return r.Verb == "delete" && r.Name == "shared" }) {
			t.Errorf("cluster %s: %s: %s", c.Name, how, r)
		}
	}
}

// testForeignObject: an object that is there already and is not as wanted is somebody else's.
func testForeignObject(t *testing.T) {
	remove(t, "adopt")
	putReady(t, moduleOf("adopt", "adopt", map[string]string{"a.yaml": namespace("adopt") + configMap("own", "1")}))
	first := system.Clusters[0]
	if err := first.Create(t.Context(), foreign("adopt", "theirs")); err != nil {
		t.Fatal(err)
	}
	text := namespace("adopt") + configMap("own", "2") + configMap("theirs", "ours")
	refused(t, moduleOf("adopt", "adopt", map[string]string{"a.yaml": text}, "rollout: {progressDeadline: 5s}"),
		[]string{"apply", "-f", "-", "--wait", "--timeout", "2m"}, "c1", "theirs")
	if err := there(t, first, "adopt", "theirs", "foreign"); err != nil {
		t.Error(err)
	}
	eventually(t, "the other objects and the other clusters go on", func() error {
		for _, c := range system.Clusters[1:] {
			if err := there(t, c, "adopt", "theirs", "ours"); err != nil {
				return err
			}
		}
		return everywhere(func(c *lab.Cluster) error { return there(t, c, "adopt", "own", "2") })
	})
	eventually(t, "the row of the foreign object says what to do", func() error {
		for _, r := range rows(t, "adopt", "--cluster", "c1", "--name", "theirs") {
			if r.Health != "Healthy" && strings.Contains(r.Message, "adopt") {
				return nil
			}
		}
		return fmt.Errorf("%v", rows(t, "adopt", "--cluster", "c1"))
	})
	if err := there(t, first, "adopt", "theirs", "foreign"); err != nil {
		t.Error(err)
	}
	// With the word for it, it is taken over.
	putReady(t, moduleOf("adopt", "adopt", map[string]string{"a.yaml": text}, "policies: [{adopt: Always, conflict: Force}]"))
	if err := there(t, first, "adopt", "theirs", "ours"); err != nil {
		t.Error(err)
	}
}

func testHold(t *testing.T) {
	remove(t, "held")
	putReady(t, moduleOf("held", "held", map[string]string{"a.yaml": namespace("held") + configMap("a", "wanted")}))
	towline(t, "hold", "module/held", "--cluster", "c1", "-m", "looking at it")
	first := system.Clusters[0]
	quiet(t)
	from := mark(t)
	byHand := touch{kind: "ConfigMap", name: "a", patch: map[string]any{"data": map[string]any{"value": "by hand"}}}
	for _, c := range system.Clusters {
		byHand.do(t, c, foreign("held", "a"))
	}
	for _, c := range system.Clusters[1:] {
		eventually(t, "drift is corrected where nothing is held", func() error { return there(t, c, "held", "a", "wanted") })
	}
	eventually(t, "the hub says that the object drifts and is held", func() error {
		for _, r := range rows(t, "held", "--cluster", "c1", "--name", "a") {
			if r.Drift == "Held" && r.Field == "/data/value" && r.Want == `"wanted"` && r.Live == `"by hand"` && r.ChangedBy == "kubectl-edit" && r.Seen == 1 {
				return nil
			}
		}
		return fmt.Errorf("%v", rows(t, "held", "--cluster", "c1"))
	})
	if err := lab.Stays(t.Context(), 2*time.Second, func() error { return there(t, first, "held", "a", "by hand") }); err != nil {
		t.Errorf("something was written under a hold: %v", err)
	}
	from.noWrites(t, first)
	towline(t, "unhold", "module/held", "--cluster", "c1")
	eventually(t, "drift is corrected after the hold", func() error { return there(t, first, "held", "a", "wanted") })
}
