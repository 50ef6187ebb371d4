package worker

import (
	"regexp"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// Whoever reads the log finds a line when a sync is begun and one when it is applied, a line for each correction and each object
// that goes, with a reason in words; and none for what changes nothing.
func TestLogSaysWhatWasDone(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.loud = true
	r.start()
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	s = r.renewed(s) // the same again
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"other"}}`)
	r.wait("shop", "corrected", func(x fleet.SyncStatus) bool { return x.Corrections == 1 && x.Ready })
	s = r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.eventually("b is gone", func() bool { return r.get("v1", "configmaps", "b") == nil })
	r.set(nil, r.tombstone("shop", fleet.DeleteOrphan))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	log := r.heard.String()
	for line, want := range map[string]int{
		`msg="sync begun" module=shop `:                  2,
		`msg="sync applied" module=shop `:                2,
		`msg="drift corrected" module=shop object=`:      1,
		`because="its module does not list it any more"`: 1,
		`because="it is to be left without our marks"`:   1,
	} {
		if got := strings.Count(log, line); got != want {
			t.Errorf("%d times %s, want %d", got, line, want)
		}
	}
	if numbers := regexp.MustCompile(`rules?="?\d`).FindString(log); numbers != "" {
		t.Errorf("it speaks of %s", numbers)
	}
}
