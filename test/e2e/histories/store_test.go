package histories

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// saveStore keeps a copy of the hub's store, and putBack has the hub begin from it again, when other things have happened.
func (w *world) saveStore() bool {
	if w.saved != "" {
		return w.putBack()
	}
	w.saved = filepath.Join(w.Dir, fmt.Sprintf("saved-%d.db", len(w.puts)))
	w.Note("save the store", "%s", w.hubCommand("backup", "--to", w.saved))
	return true
}

func (w *world) putBack() bool {
	w.Hub.Kill()
	w.Note("put the store back", "%s", w.hubCommand("restore", "--from", w.saved, "--replace"))
	w.Must(w.Hub.Start(w.T.Context()))
	w.saved, w.moved, w.leaves = "", true, true
	w.melt()
	for _, name := range modules {
		w.wave(name, "the store was put back")
	}
	w.Down["store"] = func() { w.towline("accept", "restore", "accept", "--yes") }
	return true
}

func (w *world) hubCommand(args ...string) string {
	cmd := exec.CommandContext(w.T.Context(), filepath.Join(os.Getenv("TOWLINE_BIN"), "towline-hub"), append(args, "--data-dir", w.Hub.DataDir)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Fatal("towline-hub %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}
