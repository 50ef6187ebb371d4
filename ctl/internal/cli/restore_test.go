package cli

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "towline.dev/towline/gen/towline/v1"
)

// What a restore leaves to decide is told before it is accepted, and accepting asks.
func TestRestoreIsAccepted(t *testing.T) {
	h := &fakeHub{}
	if r := h.run(t, run{}, "restore", "show"); r.code != 0 || !strings.Contains(r.out, "never restored") {
		t.Errorf("%d %q %q", r.code, r.out, r.err)
	}
	h.restored = &v1.Restore{Restored: timestamppb.Now(), Ahead: []string{"a", "b", "c", "d", "e", "f"}}
	if r := h.run(t, run{}, "restore", "show"); r.code != 0 || !strings.Contains(r.out, "6 clusters have seen what came after the backup, and keep what they hold: a, b, c, d, e and 1 more") {
		t.Errorf("%d %q %q", r.code, r.out, r.err)
	}
	h.restored.Unheard, h.restored.Stands = []string{"x", "y"}, true
	if r := h.run(t, run{}, "restore", "show"); r.code != 0 || !strings.Contains(r.out, "2 clusters were not heard since: x, y") || !strings.Contains(r.out, "nothing begins by itself") {
		t.Errorf("%d %q %q", r.code, r.out, r.err)
	}
	if r := h.run(t, run{}, "restore", "accept"); r.code != 2 || !strings.Contains(r.err, "6 clusters") || !strings.Contains(r.err, "--yes") {
		t.Errorf("without a word: %d %q %q", r.code, r.out, r.err)
	}
	if r := h.run(t, run{}, "restore", "accept", "--yes", "-m", "the disk died"); r.code != 0 || !strings.Contains(r.out, "accepted by admin") {
		t.Errorf("%d %q %q", r.code, r.out, r.err)
	}
}
