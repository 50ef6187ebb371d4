package hub_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"towline.dev/towline/hub"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/rpc/clientconfig"
)

// caCommand runs towline-hub ca.
func (w *world) caCommand(args ...string) (string, error) {
	var out strings.Builder
	c := hub.Command()
	c.SetArgs(append([]string{"ca"}, append(args, "--data-dir", w.dir)...))
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.ExecuteContext(w.ctx)
	return out.String(), err
}

// A hub gets another CA with its next start: its agent, and a client with the configuration of before, go on without a new join, and the
// commands say what is under way.
func TestCAIsRotated(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	if out, err := w.caCommand("rotate"); err != nil || !strings.Contains(out, "new CA ") {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := w.caCommand("rotate"); err == nil || !strings.Contains(err.Error(), "start the hub with it first") {
		t.Errorf("twice, without a start: %v", err)
	}
	w.restart()
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	out, err := w.caCommand("status")
	if err != nil || !strings.Contains(out, "is needed by cluster a, until ") || !strings.Contains(out, "signs") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := w.caCommand("rotate"); err == nil || !strings.Contains(err.Error(), "a rotation is under way: the CA ") {
		t.Errorf("twice: %v", err)
	}
	if files, _ := filepath.Glob(filepath.Join(w.dir, "ca.next")); len(files) > 0 {
		t.Errorf("%v is left", files)
	}
}

// While the record of the CAs cannot be read, nobody knows whether a rotation is under way. None begins, for the hub starts again only with the key
// that the agents know, which would be gone; it says how.
func TestCAIsNotRotatedOnADamagedRecord(t *testing.T) {
	w := newMortalWorld(t)
	storetest.Damage(t, w.mortal.store, store.CAKey)
	w.eventually(func() bool { out, err := w.caCommand("status"); return err != nil || !strings.Contains(out, "signs") })
	before, err := os.ReadFile(filepath.Join(w.dir, "ca.key"))
	must(t, err)
	for _, command := range []string{"rotate", "status"} {
		if out, err := w.caCommand(command); err == nil || !strings.Contains(err.Error(), "damaged: start the hub once with --adopt-ca") {
			t.Errorf("ca %s: %v\n%s", command, err, out)
		}
	}
	if after, err := os.ReadFile(filepath.Join(w.dir, "ca.key")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the key that the agents know is replaced: %v", err)
	}
}

// The commands of a hub are for the hub of its directory, also where another one is current in the configuration there.
func TestCommandsAskTheHubOfTheirDirectory(t *testing.T) {
	w := newWorld(t, false)
	path := filepath.Join(w.dir, hub.AdminFile)
	file, err := clientconfig.Load(path)
	must(t, err)
	file.Set(clientconfig.Context{Name: "prod", Server: "127.0.0.1:1", Token: "of another hub"})
	file.CurrentContext = "prod"
	must(t, file.Save(path))
	if out, err := w.caCommand("status"); err != nil || !strings.Contains(out, "signs") {
		t.Errorf("ca status: %v\n%s", err, out)
	}
	c := hub.Command()
	c.SetArgs([]string{"backup", "--data-dir", w.dir, "--to", filepath.Join(t.TempDir(), "hub.db")})
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	if err := c.ExecuteContext(w.ctx); err != nil {
		t.Errorf("backup: %v", err)
	}
}
