package hub_test

import (
	"path/filepath"
	"strings"
	"testing"

	"towline.dev/towline/hub"
)

// A hub gets another CA with its next start: its agent, and a client with the configuration of before, go on without a new join, and the
// commands say what is under way.
func TestCAIsRotated(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	ca := func(args ...string) (string, error) {
		var out strings.Builder
		c := hub.Command()
		c.SetArgs(append([]string{"ca"}, append(args, "--data-dir", w.dir)...))
		c.SetOut(&out)
		c.SetErr(&out)
		err := c.ExecuteContext(w.ctx)
		return out.String(), err
	}
	if out, err := ca("rotate"); err != nil || !strings.Contains(out, "new CA ") {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := ca("rotate"); err == nil || !strings.Contains(err.Error(), "start the hub with it first") {
		t.Errorf("twice, without a start: %v", err)
	}
	w.restart()
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	out, err := ca("status")
	if err != nil || !strings.Contains(out, "is needed by cluster a, until ") || !strings.Contains(out, "signs") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := ca("rotate"); err == nil || !strings.Contains(err.Error(), "a rotation is under way: the CA ") {
		t.Errorf("twice: %v", err)
	}
	if files, _ := filepath.Glob(filepath.Join(w.dir, "ca.next")); len(files) > 0 {
		t.Errorf("%v is left", files)
	}
}
