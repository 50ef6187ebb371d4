package worker

import (
	"testing"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// Statuses go to people who may not read Secrets, of whatever group.
func TestValuesOfSecretsAreMasked(t *testing.T) {
	for _, tc := range []struct {
		id     fleet.ObjectID
		masked bool
	}{
		{fleet.ObjectID{Kind: "Secret", Name: "a"}, true},
		{fleet.ObjectID{Group: "vault.example.com", Kind: "Secret", Name: "a"}, true},
		{fleet.ObjectID{Kind: "ConfigMap", Name: "a"}, false},
	} {
		got := valuesOf(tc.id, apply.Field{Pointer: "/data/k", Live: "live"}, "want")
		want := values{"/data/k", "want", "live"}
		if tc.masked {
			want = values{"/data/k", fleet.Masked, fleet.Masked}
		}
		if got != want {
			t.Errorf("%s: %+v", tc.id, got)
		}
	}
}

// A change that went away by itself, after a correction of it had failed, is over: the next one is one more.
func TestChangesAreCountedOnce(t *testing.T) {
	var f *flaps
	if got := f.changes(); got != 1 {
		t.Errorf("the first change counts as %d", got)
	}
	f = &flaps{}
	now := time.Unix(1, 0)
	f.observe("ana", apply.Hash{1}, true, now)
	f.observe("ana", apply.Hash{1}, true, now) // the same correction, tried again
	if got := f.changes(); got != 1 {
		t.Errorf("a correction that is tried twice counts as %d changes", got)
	}
	f.open = false
	if got := f.changes(); got != 2 {
		t.Errorf("the next change counts as %d", got)
	}
}
