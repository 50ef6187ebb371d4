package wire

import (
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
)

// What an agent quotes was written by anybody in its cluster: no control character of it reaches a terminal.
func TestTextOfAgentsIsCleaned(t *testing.T) {
	const raw, want = "kept: a\x1b[2J\x07b\n c\u009b1m", "kept: a[2Jb  c1m"
	if got := CutText(raw); got != want {
		t.Errorf("%q", got)
	}
	removed, err := SyncSummaryFromProto(&agentv1.SyncStatus{Module: "default/shop", Phase: "Removed", Message: raw})
	if err != nil || removed.Message != want {
		t.Errorf("%q, %v", removed.Message, err)
	}
}
