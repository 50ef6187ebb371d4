package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"towline.dev/towline/test/lab"
)

// ends waits until an agent has ended by itself with an error that says every word.
func ends(t *testing.T, a *lab.Agent, words ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	code, err := a.Wait(ctx)
	if err != nil {
		t.Fatalf("%v\n%s", err, a.Tail())
	}
	if code == 0 {
		t.Errorf("%s ended without an error:\n%s", a.Name, a.Tail())
	}
	for _, word := range words {
		if !strings.Contains(a.Output(), word) {
			t.Errorf("%s does not say %q:\n%s", a.Name, word, a.Tail())
		}
	}
	if strings.Contains(a.Output(), "goroutine ") || strings.Contains(a.Output(), "rpc error") {
		t.Errorf("%s: the error is not one for people:\n%s", a.Name, a.Tail())
	}
}

// stranger starts an agent that has nothing to do with the one of the cluster.
func stranger(t *testing.T, c *lab.Cluster, o lab.AgentOptions) *lab.Agent {
	t.Helper()
	// A namespace of its own, so that it does not wait for the Lease of the cluster's agent.
	o.Namespace = o.Name
	a := system.NewAgent(c, o)
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Kill)
	return a
}

func testJoin(t *testing.T) {
	first := system.Clusters[0]
	token := func(name string, flags ...string) string {
		text, err := system.Token(t.Context(), name, flags...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if r := system.CLI(context.Background(), "cluster", "remove", name, "--force", "--yes"); r.Code != 0 {
				t.Error(r.Err())
			}
		})
		return text
	}
	from := mark(t)

	expired := token("expired", "--ttl", "1s")
	eventually(t, "the token expires", func() error {
		if out := towline(t, "get", "tokens"); !strings.Contains(out, "Expired") {
			return errors.New(out)
		}
		return nil
	})
	ends(t, stranger(t, first, lab.AgentOptions{Name: "join-expired", Token: expired}), "expired", "towline cluster join expired --reissue")

	valid := token("twin")
	ends(t, stranger(t, first, lab.AgentOptions{Name: "join-twin", Token: valid}), "twin", "registered as c1")

	forged := []byte(valid)
	at := len(forged) - 12
	forged[at] = map[bool]byte{true: 'B', false: 'A'}[forged[at] == 'A']
	ends(t, stranger(t, first, lab.AgentOptions{Name: "join-forged", Token: string(forged)}), "token")
	ends(t, stranger(t, first, lab.AgentOptions{Name: "join-garbage", Token: "no-token"}), "token")
	ends(t, stranger(t, first, lab.AgentOptions{Name: "join-none"}), "token", "towline cluster join")

	// The token with which c1's agent joined.
	used := ""
	for i, arg := range first.Agent.Args {
		if arg == "--join-token" {
			used = first.Agent.Args[i+1]
		}
	}
	ends(t, stranger(t, first, lab.AgentOptions{Name: "join-used", Token: used}), "used", "towline cluster join c1 --reissue")
	refused(t, "", []string{"cluster", "join", "c1"}, "c1", "--reissue")
	if out := towline(t, "get", "tokens"); strings.Contains(out, used) || strings.Contains(out, valid) {
		t.Error("the tokens are listed with their secrets")
	}
	if err := system.WaitState(t.Context(), "c1", "Ready"); err != nil {
		t.Error(err)
	}
	from.noWrites(t)
}

// testIdentity: an identity that was copied does no harm, on the same cluster or on another.
func testIdentity(t *testing.T) {
	installFleet(t)
	first, second := system.Clusters[0], system.Clusters[1]
	from := mark(t)
	copied := filepath.Join(t.TempDir(), "copy")
	copyState := func(name string) string {
		dir := filepath.Join(copied, name)
		if err := lab.CopyState(first.Agent.StateDir, dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}

	// In a cluster with another UID.
	clone := stranger(t, second, lab.AgentOptions{Name: "identity-clone", StateDir: copyState("clone")})
	ends(t, clone, clone.StateDir, "UID", "kubeconfig", "--reissue")

	// In the same cluster, beside the agent that is there.
	twin := stranger(t, first, lab.AgentOptions{Name: "identity-twin", StateDir: copyState("twin")})
	eventually(t, "the twin says what is wrong", func() error {
		if !strings.Contains(twin.Output(), "another") {
			return fmt.Errorf("it says:\n%s", twin.Tail())
		}
		return nil
	})
	before := sessionOf(t, "c1")
	err := lab.Stays(t.Context(), 3*time.Second, func() error {
		if now := sessionOf(t, "c1"); now != before {
			return fmt.Errorf("the session moves to and fro: %s, was %s", now, before)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	twin.Kill()

	// The same directory is locked.
	locked := stranger(t, first, lab.AgentOptions{Name: "identity-locked", StateDir: first.Agent.StateDir})
	ends(t, locked, first.Agent.StateDir)
	from.noWrites(t)
	for _, c := range system.Clusters {
		if err := system.WaitState(t.Context(), c.Name, "Ready"); err != nil {
			t.Error(err)
		}
	}
	expectFleet(t)
}

// sessionOf names the session that the hub has with a cluster's agent.
func sessionOf(t *testing.T, cluster string) string {
	t.Helper()
	return towline(t, "get", "clusters", cluster, "-o", "jsonpath={.status.state} {.status.epoch}")
}

// testManifests holds what installs hub and agent against a real API server.
func testManifests(t *testing.T) {
	t.Cleanup(func() {
		for _, name := range []string{"manifest", "manifest-set", "manifest-few"} {
			system.CLI(context.Background(), "cluster", "remove", name, "--force", "--yes")
		}
	})
	refused(t, "", []string{"cluster", "join", "manifest", "--manifest"}, "--hub", "--advertise", "127.0.0.1")
	files := map[string]string{
		"agent":      towline(t, "cluster", "join", "manifest", "--manifest", "--hub", "hub.example.com:7443"),
		"daemonset":  towline(t, "cluster", "join", "manifest-set", "--manifest", "--daemonset", "--hub", "hub.example.com:7443"),
		"restricted": towline(t, "cluster", "join", "manifest-few", "--manifest", "--restricted", "--hub", "hub.example.com:7443"),
	}
	paths, err := filepath.Glob("../../deploy/hub/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("deploy/hub holds no manifests: %v", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[path] = string(data)
	}
	c := system.Clusters[0]
	for name, text := range files {
		count := 0
		decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096)
		for {
			object := &unstructured.Unstructured{}
			err := decoder.Decode(object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if len(object.Object) == 0 {
				continue
			}
			count++
			dryRun(t, c, name, object)
		}
		if count == 0 {
			t.Errorf("%s: holds no objects", name)
		}
	}
}

func dryRun(t *testing.T, c *lab.Cluster, file string, object *unstructured.Unstructured) {
	t.Helper()
	resource, err := c.Resource(object.GetAPIVersion(), object.GetKind(), object.GetNamespace())
	if err != nil {
		t.Errorf("%s: %v", file, err)
		return
	}
	data, err := object.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	force := true
	_, err = resource.Patch(t.Context(), object.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: lab.UserAgent,
		Force: &force, DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Errorf("%s: %s: %v", file, lab.Label(object), err)
	}
}
