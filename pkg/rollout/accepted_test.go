package rollout_test

import (
	"testing"

	"towline.dev/towline/pkg/rollout"
)

// TestAcceptedByAHubOfBefore: a hub of before only counted the failures in spite of which a person went on. They stop nothing after an upgrade, on
// the way forward and back, and the next one does.
func TestAcceptedByAHubOfBefore(t *testing.T) {
	for name, tc := range map[string]struct {
		story []string
		goes  rollout.RunState
		next  string
		stops string
	}{
		"forward": {[]string{"stage all max=1", "start r2 from=r1", "fail c1 Boom", "resume by=ana"}, rollout.Progressing, "fail c2 Boom", rollout.ReasonFailures},
		"back": {[]string{"strategy onFailure=Rollback back=1", "stage all max=1", "start r2 from=r1", "ready c1", "ready c2", "fail c3 Boom", "fail c3 Boom",
			"resume by=ana"}, rollout.RollingBack, "fail c2 Boom", rollout.ReasonRollbackFailed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, line := range append([]string{"fleet c1..c4 at=r1"}, tc.story...) {
				w.command(line)
			}
			w.state.UnmarkAccepted()
			w.command("decide")
			if w.state.State.Ended() || w.state.State != tc.goes {
				t.Fatalf("%s (%s), want %s", w.state.State, w.state.Reason, tc.goes)
			}
			w.command(tc.next)
			if w.state.State != rollout.Paused || w.state.Reason != tc.stops {
				t.Errorf("%s (%s) after one more failure", w.state.State, w.state.Reason)
			}
		})
	}
}
