package e2e

import (
	"errors"
	"testing"
)

// testLastWord: who deletes a module twice, in two ways, while a cluster is away, finds there what the last word says.
func testLastWord(t *testing.T) {
	remove(t, "word")
	first, last := system.Clusters[0], system.Clusters[2]
	for _, orphan := range []bool{true, false} {
		putReady(t, moduleOf("word", "word", map[string]string{"a.yaml": namespace("word") + configMap("a", "1")}))
		last.Agent.Stop()
		eventually(t, last.Name+" is away", func() error { return system.WaitState(t.Context(), last.Name, "Disconnected") })
		words := [][]string{{"delete", "module", "word", "--yes", "--wait=false"}, {"delete", "module", "word", "--yes", "--wait=false", "--orphan"}}
		if !orphan {
			words[0], words[1] = words[1], words[0]
		}
		towline(t, words[0]...)
		eventually(t, "the others have heard the first word", func() error {
			if orphan {
				return gone(t, first, "v1", "ConfigMap", "word", "a")
			}
			return unmarked(t, "word", "a")
		})
		towline(t, words[1]...)
		if err := last.Agent.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the module is gone", func() error {
			if r := system.CLI(t.Context(), "get", "module", "word"); r.Code == 0 {
				return errors.New(r.Stdout)
			}
			return nil
		})
		if orphan {
			if err := there(t, last, "word", "a", "1"); err != nil {
				t.Errorf("the last word was to leave it: %v", err)
			}
		} else if err := gone(t, last, "v1", "ConfigMap", "word", "a"); err != nil {
			t.Errorf("the last word was to delete it: %v", err)
		}
	}
}

// unmarked reports an error while an object carries our label in the first cluster.
func unmarked(t *testing.T, namespace, name string) error {
	o, err := system.Clusters[0].Get(t.Context(), "v1", "ConfigMap", namespace, name)
	if err == nil && o.GetLabels()["towline.dev/hub"] != "" {
		err = errors.New("it is marked")
	}
	return err
}
