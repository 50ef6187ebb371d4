package worker

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// defaulted is the binding of a secret of the hub that nobody has set.
func defaulted(value string) fleet.LateBinding {
	return fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}, Default: &value}
}

// searches has the agent begin in a cluster without a state, where the search for its objects does not end.
func (r *rig) searches(trouble func(*http.Request) error) {
	r.t.Helper()
	r.stop()
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/secrets") && strings.Contains(q.Header.Get("Accept"), "PartialObjectMetadataList") {
			return errors.New("connection reset by a test")
		}
		return trouble(q)
	})
	r.loseState()
}

// TestDefaultIsTakenThatAWriteMadeUnheard: an agent begins anew, and the answer to the write that makes an object with a default does not come, or the agent
// is killed before it. Then a revision changes the object.
func TestDefaultIsTakenThatAWriteMadeUnheard(t *testing.T) {
	for name, killed := range map[string]bool{"the answer is lost": false, "the agent is killed": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			made := make(chan struct{})
			var once sync.Once
			r.searches(func(q *http.Request) (err error) {
				if q.Method != http.MethodPatch || !strings.HasSuffix(q.URL.Path, "/configmaps/uses") {
					return nil
				}
				once.Do(func() {
					answer, sent := r.count.next.RoundTrip(q)
					if err = sent; err == nil {
						_, _ = io.Copy(io.Discard, answer.Body)
						_ = answer.Body.Close()
						err = errors.New("connection reset by a test")
					}
					close(made)
				})
				return err
			})
			r.absent()
			s := r.binding(r.bundle("shop", nil, configMap("uses", `k: "${PW}"`)), defaulted("guest"))
			r.set([]fleet.Sync{s})
			<-made
			if killed {
				r.killed(r.store.copy())
				r.start()
			}
			r.absent()
			r.set([]fleet.Sync{s})
			r.ready(s)
			next := r.binding(r.bundle("shop", nil, configMap("uses", `k: "${PW}", more: "${PW}"`)), defaulted("guest"))
			r.set([]fleet.Sync{next})
			r.ready(next)
			if got := r.data("uses", "more"); got != "guest" {
				t.Errorf("more is %q", got)
			}
		})
	}
}

// TestDefaultIsKnownWhileSomethingFails: the record of last values goes, as an agent of before may have had none, while one object of a module fails. What the
// others were written with is known, and the revision that mends the module changes them.
func TestDefaultIsKnownWhileSomethingFails(t *testing.T) {
	r := newRig(t)
	r.absent()
	bad := `apiVersion: v1
kind: ConfigMap
metadata: {name: bad, namespace: $NS}
data: {k: {is: no text}}
`
	s := r.binding(r.bundle("shop", nil, configMap("uses", `k: "${PW}"`), bad), defaulted("guest"))
	r.set([]fleet.Sync{s})
	fails := func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Phase == fleet.PhaseFailed && strings.Contains(x.Message, "bad")
	}
	r.wait("shop", "fails", fails)
	r.stop()
	if err := r.store.Remove(t.Context(), lastsName); err != nil {
		t.Fatal(err)
	}
	r.forget()
	r.start()
	r.absent()
	r.m.Set(r.current, nil)
	r.wait("shop", "fails, and has what it had", func(x fleet.SyncStatus) bool { return fails(x) && !strings.Contains(x.Message, "secret db") })
	next := r.binding(r.bundle("shop", nil, configMap("uses", `k: "${PW}", more: "${PW}"`), configMap("bad", "k: v")), defaulted("guest"))
	r.set([]fleet.Sync{next})
	r.ready(next)
	if got := r.data("uses", "more"); got != "guest" {
		t.Errorf("more is %q", got)
	}
}

// TestDefaultsAreWrittenWithoutALook: while the search goes on, new objects with a default are made, and none of them is asked for before: of a kind whose
// objects cannot be read the others do not wait.
func TestDefaultsAreWrittenWithoutALook(t *testing.T) {
	r := newRig(t)
	r.searches(func(q *http.Request) error {
		if q.Method == http.MethodGet && strings.Contains(q.URL.Path, r.ns+"/configmaps/") {
			return errors.New("a conversion webhook does not answer")
		}
		return nil
	})
	r.absent()
	s := r.binding(r.bundle("shop", nil, configMap("a", `k: "${PW}"`), configMap("b", `k: "${PW}"`), secret("c", `stringData: {k: "${PW}"}`)), defaulted("guest"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.eventually("are there", func() bool {
		return r.secretData("c")["k"] == "guest" && r.data("a", "k") == "guest" && r.data("b", "k") == "guest"
	})
}
