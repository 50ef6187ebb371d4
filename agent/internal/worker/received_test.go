package worker

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sync/semaphore"
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
		x := &received{loaded: make(chan struct{}), saving: semaphore.NewWeighted(1)}
		if err := x.load(ctx, v, state, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		return x
	}
	x := open()
	key := fleet.SecretKey{Name: "db", Key: "password"}
	for _, tc := range []struct {
		what, value string
		age         SecretAge
		want        string
	}{
		{"the first", "one", SecretAge{Hub: "h", Lineage: 1, Version: 100, Changed: 1000}, "one"},
		{"a newer one", "two", SecretAge{Hub: "h", Lineage: 1, Version: 120, Changed: 2000}, "two"},
		{"of a copy that was put back", "one", SecretAge{Hub: "h", Lineage: 1, Version: 100, Changed: 1000}, "two"},
		{"set in the copy, which counts on from there", "three", SecretAge{Hub: "h", Lineage: 1, Version: 110, Changed: 3000}, "three"},
		{"encrypted anew with another key of the hub", "three", SecretAge{Hub: "h", Lineage: 1, Version: 130, Changed: 3000}, "three"},
		{"by a hub whose clock went back", "four", SecretAge{Hub: "h", Lineage: 1, Version: 140, Changed: 2500}, "four"},
		{"of a store of the hub that was restored", "one", SecretAge{Hub: "h", Lineage: 2, Version: 100, Changed: 1000}, "four"},
		{"again, with more writes than the other store had", "one", SecretAge{Hub: "h", Lineage: 2, Version: 150, Changed: 1000}, "four"},
		{"set anew in the restored store", "five", SecretAge{Hub: "h", Lineage: 2, Version: 151, Changed: 4000}, "five"},
		{"of another hub", "six", SecretAge{Hub: "g", Lineage: 3, Version: 3, Changed: 50}, "six"},
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

// TestSecretThatCannotBeReadIsNotItsDefault: the hub says that there is a secret which it cannot read, as without its key, or of which it
// cannot tell which is for the cluster. What is new there is not applied with the default, as if nobody had set a value.
func TestSecretThatCannotBeReadIsNotItsDefault(t *testing.T) {
	for name, problem := range map[string]string{
		"unreadable": "secret db cannot be read: it is sealed by key 1a2b3c4d, which this hub does not have",
		"ambiguous":  "secret db: cluster eu-1 has the labels of both -l env=prod and -l tier=web",
		"older hub":  "secret db is not there: towline secret set db KEY=-", // which does not say that this is why
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			guest := "guest"
			pw := fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}, Default: &guest}
			use, err := r.m.Secrets(context.Background(), []Sealed{{Project: "default", Name: "db", Problem: problem}})
			if err != nil {
				t.Fatal(err)
			}
			use(func() {})
			s := r.binding(r.bundle("shop", nil, secret("uses", `stringData: {pw: "${PW}"}`)), pw)
			r.set([]fleet.Sync{s})
			var last fleet.SyncStatus
			r.wait("shop", "says something of the sync that is no beginning", func(x fleet.SyncStatus) bool {
				last = x
				return x.Generation == s.Generation && (x.Ready || strings.Contains(x.Message, "secret db"))
			})
			if got := r.get("v1", "secrets", "uses"); got != nil || last.Ready {
				t.Errorf("applied with the default, ready %v, %q: %v", last.Ready, last.Message, r.secretData("uses"))
			}
			p, err := r.m.Preview(context.Background(), s, r.store)
			if err != nil || len(p.Objects) != 1 || p.Objects[0].Action != fleet.PreviewRefuse || !strings.Contains(p.Objects[0].Message, problem) {
				t.Errorf("%v: preview %+v", err, p)
			}
			use, err = r.m.Secrets(context.Background(), []Sealed{{Project: "default", Name: "db", Problem: problem, Absent: true}})
			if err != nil {
				t.Fatal(err)
			}
			use(func() {})
			r.ready(s)
			if got := r.secretData("uses")["pw"]; got != guest {
				t.Errorf("nobody has set it, and the password is %q", got)
			}
		})
	}
}

// TestOlderSecretDoesNotReplaceANewerOneAfterAProblem: a hub whose store was restored on another machine without its key says that it cannot
// read the secret; then it is given the key, and sends what the backup has. That is older than what the cluster holds, as if there had been
// no problem in between.
func TestOlderSecretDoesNotReplaceANewerOneAfterAProblem(t *testing.T) {
	ctx, state := context.Background(), newMemory()
	v, err := vault.Open(ctx, state)
	if err != nil {
		t.Fatal(err)
	}
	again := func() *received {
		x := &received{loaded: make(chan struct{}), saving: semaphore.NewWeighted(1)}
		if err := x.load(ctx, v, state, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		return x
	}
	x := again()
	key := fleet.SecretKey{Name: "db", Key: "password"}
	sends := func(value string, age SecretAge) {
		t.Helper()
		one := Sealed{Project: "default", Name: "db", Problem: "secret db cannot be read: the hub lacks the key", Keys: []string{"other", "password"}}
		if value != "" {
			s, err := wire.SealSecret(v.PublicKey(), "default", "db", map[string][]byte{"password": []byte(value)})
			if err != nil {
				t.Fatal(err)
			}
			one = Sealed{Project: "default", Name: "db", Sealed: s.GetSealed(), Keys: []string{"password"}, Age: age}
		}
		use, err := x.keep(ctx, []Sealed{one})
		if err != nil {
			t.Fatal(err)
		}
		use()
	}
	sends("new", SecretAge{Hub: "h", Lineage: 1, Version: 120, Changed: 2000})
	sends("", SecretAge{Hub: "h", Lineage: 2})
	if got, err := x.value("default", key); !errors.Is(err, errUntold) {
		t.Errorf("while the hub cannot tell: %q %v", got, err)
	}
	x = again()
	sends("old", SecretAge{Hub: "h", Lineage: 2, Version: 100, Changed: 1000})
	if got, err := x.value("default", key); err != nil || got != "new" {
		t.Errorf("the password of the backup came after the newer one: %q %v", got, err)
	}
	if _, err := x.value("default", fleet.SecretKey{Name: "db", Key: "other"}); !errors.Is(err, errUnsent) {
		t.Errorf("a key of which nothing was said with the values: %v", err)
	}
	sends("newest", SecretAge{Hub: "h", Lineage: 2, Version: 130, Changed: 3000})
	if got, err := x.value("default", key); err != nil || got != "newest" {
		t.Errorf("%q %v", got, err)
	}
}

// TestSecretOfAnotherScopeIsNotOlder: the labels of a cluster are others in the store that was restored, so that another part of the secret is
// for it, which happens to have been set earlier. It is no older version of what the cluster has, and what the cluster has is not for it.
func TestSecretOfAnotherScopeIsNotOlder(t *testing.T) {
	held := SecretAge{Hub: "h", Lineage: 1, Version: 120, Changed: 2000, Scope: "-l env=dev"}
	next := SecretAge{Hub: "h", Lineage: 2, Version: 100, Changed: 1000, Scope: "-l env=prod"}
	if next.before(held) {
		t.Error("what is for the cluster is taken for an older version of what is not")
	}
	next.Scope = held.Scope
	if !next.before(held) {
		t.Error("an older version is not")
	}
	for _, unsaid := range []*SecretAge{&next, &held} { // by an agent, or from a hub, of before
		unsaid.Scope = ""
		if !next.before(held) {
			t.Error("without a scope it is not known to be another one")
		}
	}
}
