package worker

import (
	"context"
	"encoding/base64"
	"log/slog"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/vault"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// TestOlderSecretsDoNotReplaceNewer: what a copy of the hub's store has that was put back is older by its version and by its time, and what
// a restored store has by its time alone. It is not taken, over a restart neither. What was set in it since is, and so is everything of
// another hub.
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
		{"the first", "one", SecretAge{"h", 1, 100, 1000}, "one"},
		{"a newer one", "two", SecretAge{"h", 1, 120, 2000}, "two"},
		{"of a copy that was put back", "one", SecretAge{"h", 1, 100, 1000}, "two"},
		{"set in the copy, which counts on from there", "three", SecretAge{"h", 1, 110, 3000}, "three"},
		{"encrypted anew with another key of the hub", "three", SecretAge{"h", 1, 130, 3000}, "three"},
		{"by a hub whose clock went back", "four", SecretAge{"h", 1, 140, 2500}, "four"},
		{"of a store of the hub that was restored", "one", SecretAge{"h", 2, 100, 1000}, "four"},
		{"again, with more writes than the other store had", "one", SecretAge{"h", 2, 150, 1000}, "four"},
		{"set anew in the restored store", "five", SecretAge{"h", 2, 151, 4000}, "five"},
		{"of another hub", "six", SecretAge{"g", 3, 3, 50}, "six"},
		{"of a hub that does not say", "seven", SecretAge{Hub: "g", Lineage: 3}, "seven"},
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

// TestSecondKeyOfASecretIsNotItsDefault: the hub sends the keys of a secret that are in use, one of before after the index. A revision that uses a second key,
// which is set, is not applied with the default in between.
func TestSecondKeyOfASecretIsNotItsDefault(t *testing.T) {
	r := newRig(t)
	guest := "guest"
	pw := fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}}
	user := fleet.LateBinding{Name: "U", Secret: &fleet.SecretKey{Name: "db", Key: "user"}, Default: &guest}
	s := r.binding(r.bundle("shop", nil, secret("uses", `stringData: {pw: "${PW}"}`)), pw)
	r.sends(map[string]map[string]string{"db": {"password": "x-password"}})
	r.set([]fleet.Sync{s})
	r.ready(s)
	next := r.binding(r.bundle("shop", nil, secret("uses", `stringData: {pw: "${PW}", user: "${U}"}`)), pw, user)
	r.set([]fleet.Sync{next})
	r.wait("shop", "waits for the key", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && !x.Ready && strings.Contains(x.Message, "secret db: key user has not come from the hub yet")
	})
	if p, err := r.m.Preview(t.Context(), next, r.store); err != nil || len(p.Objects) != 1 || p.Objects[0].Reason != fleet.ReasonUnchecked {
		t.Errorf("%v: preview %+v", err, p)
	}
	seen, err := r.res("v1", "secrets", r.ns).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=uses"})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	r.sends(map[string]map[string]string{"db": {"password": "x-password", "user": "admin"}})
	r.ready(next)
	if got := r.secretData("uses")["user"]; got != "admin" {
		t.Errorf("user %q", got)
	}
	r.delete("v1", "secrets", "uses")
	for e := range seen.ResultChan() {
		if e.Type == "DELETED" {
			break
		}
		user, _, _ := unstructured.NestedString(e.Object.(*unstructured.Unstructured).Object, "data", "user")
		if user != "" && user != base64.StdEncoding.EncodeToString([]byte("admin")) {
			t.Errorf("was applied with %s", user)
		}
	}
}
