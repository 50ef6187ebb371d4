package session

import (
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
)

func TestKnowsBoots(t *testing.T) {
	hub := &storev1.Hub{Boots: []string{"c", "d", "e"}, ForgottenBoots: 2}
	for _, tc := range []struct {
		name  string
		boot  *agentv1.Boot
		knows bool
	}{
		{"the newest", bootOf(hub), true},
		{"an older one", &agentv1.Boot{Number: 3, Id: "c"}, true},
		{"a forgotten one", &agentv1.Boot{Number: 2, Id: "b"}, true},
		{"one since the copy", &agentv1.Boot{Number: 6, Id: "f"}, false},
		{"one that the copy has by another start", &agentv1.Boot{Number: 5, Id: "x"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := knows(hub, tc.boot); got != tc.knows {
				t.Errorf("%t, want %t", got, tc.knows)
			}
		})
	}
}
