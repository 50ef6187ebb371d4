package plan

import (
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestHoldOf: an annotation of the live object holds it, whatever it says, until it is taken away or its time is over.
func TestHoldOf(t *testing.T) {
	now := time.Date(2026, 7, 3, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		held, lasts bool
		text        string
	}{
		{name: "none"},
		{name: "others", annotations: map[string]string{"towline.dev/owner": "x"}},
		{name: "an end alone is no hold", annotations: map[string]string{fleet.HoldUntilAnnotation: "2026-07-03T13:00:00Z"}},
		{"a reason", map[string]string{fleet.HoldAnnotation: "debugging INC-42"}, true, true, ": debugging INC-42"},
		{"no reason", map[string]string{fleet.HoldAnnotation: ""}, true, true, "annotation towline.dev/hold"},
		{"false is a reason like any other", map[string]string{fleet.HoldAnnotation: "false"}, true, true, ": false"},
		{"lines", map[string]string{fleet.HoldAnnotation: " a\nb\x1b[31m"}, true, true, ": a b[31m"},
		{"not over", map[string]string{fleet.HoldAnnotation: "x", fleet.HoldUntilAnnotation: "2026-07-03T14:00:01+02:00"}, true, true, "until 2026-07-03T12:00:01Z"},
		{"over", map[string]string{fleet.HoldAnnotation: "x", fleet.HoldUntilAnnotation: "2026-07-03T12:00:00Z"}, true, false, "x; until"},
		{"no time", map[string]string{fleet.HoldAnnotation: "x", fleet.HoldUntilAnnotation: "tomorrow"}, true, true, `no time: "tomorrow"`},
		{"an empty end", map[string]string{fleet.HoldAnnotation: "x", fleet.HoldUntilAnnotation: ""}, true, true, "without an end"},
		{"long", map[string]string{fleet.HoldAnnotation: strings.Repeat("long ", 1000), fleet.HoldUntilAnnotation: strings.Repeat("x", 1000)}, true, true, "…"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := HoldOf(tc.annotations)
			if (h != nil) != tc.held {
				t.Fatalf("held: %+v", h)
			}
			if h == nil {
				return
			}
			if h.Lasts(now) != tc.lasts || !strings.Contains(h.Text(), tc.text) || len(h.Text()) > 256 {
				t.Errorf("lasts %v: %s", h.Lasts(now), h.Text())
			}
		})
	}
}
