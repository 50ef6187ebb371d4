package cli

import (
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/rollout"
)

// TestRetryOfAnEndedRolloutSaysWhatBegins: a word that begins a new rollout is not answered with how the old one ended.
func TestRetryOfAnEndedRolloutSaysWhatBegins(t *testing.T) {
	hub := &fakeHub{acted: &v1.RolloutAnswer{Id: "shop/57", Rollout: ended("Aborted", nil),
		Notes: []*v1.Note{{Code: rollout.NoteNewRollout, Facts: &v1.Facts{Revision: 42}}}}}
	if got, want := hub.run(t, run{}, "rollout", "retry", "shop").out, "shop/57 retry accepted\na new rollout of r42 starts\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
