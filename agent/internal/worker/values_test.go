package worker

import (
	"testing"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// Statuses go to people who may not read Secrets, of whatever group.
func TestValuesOfSecretsAreMasked(t *testing.T) {
	w := withRecords(t, targetSync, 1, 1)
	for _, tc := range []struct {
		id     fleet.ObjectID
		masked bool
	}{
		{fleet.ObjectID{Kind: "Secret", Name: "a"}, true},
		{fleet.ObjectID{Group: "vault.example.com", Kind: "Secret", Name: "a"}, true},
		{fleet.ObjectID{Kind: "ConfigMap", Name: "a"}, false},
	} {
		got := w.valuesOf(tc.id, !tc.id.IsSecret(), apply.Field{Pointer: "/data/k", Live: "live"}, "want")
		want := values{"/data/k", "want", "live"}
		if tc.masked {
			want = values{"/data/k", fleet.Masked, fleet.Masked}
		}
		if got != want {
			t.Errorf("%s: %+v", tc.id, got)
		}
	}
}
