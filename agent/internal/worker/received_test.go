package worker

import (
	"context"
	"log/slog"
	"testing"

	"towline.dev/towline/agent/internal/vault"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// TestOlderSecretsDoNotReplaceNewer: what a copy of the hub's store has that was put back is older by its version and by its time, and is not
// taken, over a restart neither. What was set in it since is, and so is everything of another store.
func TestOlderSecretsDoNotReplaceNewer(t *testing.T) {
	ctx, state := context.Background(), newMemory()
	v, err := vault.Open(ctx, state)
	if err != nil {
		t.Fatal(err)
	}
	open := func() *received {
		x := &received{loaded: make(chan struct{})}
		x.load(ctx, v, state, slog.New(slog.DiscardHandler))
		return x
	}
	x := open()
	key := fleet.SecretKey{Name: "db", Key: "password"}
	for _, tc := range []struct {
		what, value string
		age         SecretAge
		want        string
	}{
		{"the first", "one", SecretAge{1, 100, 1000}, "one"},
		{"a newer one", "two", SecretAge{1, 120, 2000}, "two"},
		{"of a copy that was put back", "one", SecretAge{1, 100, 1000}, "two"},
		{"set in the copy, which counts on from there", "three", SecretAge{1, 110, 3000}, "three"},
		{"encrypted anew with another key of the hub", "three", SecretAge{1, 130, 3000}, "three"},
		{"by a hub whose clock went back", "four", SecretAge{1, 140, 2500}, "four"},
		{"of another store", "five", SecretAge{2, 3, 50}, "five"},
		{"of a hub that does not say", "six", SecretAge{Lineage: 2}, "six"},
	} {
		s, err := wire.SealSecret(v.PublicKey(), "default", "db", map[string][]byte{"password": []byte(tc.value)})
		if err != nil {
			t.Fatal(err)
		}
		use, err := x.keep(ctx, []Sealed{{Project: "default", Name: "db", Sealed: s.GetSealed(), Age: tc.age}})
		if err != nil {
			t.Fatal(err)
		}
		use()
		for when, x := range map[string]*received{"": x, " after a restart": open()} {
			if got, err := x.value("default", key); err != nil || got != tc.want {
				t.Errorf("%s%s: %q %v, want %s", tc.what, when, got, err, tc.want)
			}
		}
	}
}
