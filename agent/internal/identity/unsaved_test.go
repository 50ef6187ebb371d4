package identity

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// An agent that cannot write its state renews its certificate all the same, and saves it when it can.
func TestRenewsWithoutAState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		i := h.joined()
		before, err := i.TLS()
		if err != nil {
			t.Fatal(err)
		}
		full := errors.New("no space left on device")
		h.state.fails(full, certName, pendingName)
		h.loses(1)
		stop := runs(t, i)
		<-i.Renewed()
		if after, err := i.TLS(); err != nil || after == before {
			t.Errorf("the old certificate is still used: %v", err)
		}
		if keys := h.signed(); len(keys) != 3 || keys[1] != keys[2] {
			t.Errorf("%d requests; one whose answer was lost is made again with another key", len(keys))
		}
		if reopened := h.mustOpen(""); reopened.get().leaf.Equal(i.get().leaf) {
			t.Error("it was saved all the same")
		}
		h.state.fails(nil, certName, pendingName)
		<-time.After(resave + time.Second)
		synctest.Wait()
		if reopened := h.mustOpen(""); !reopened.get().leaf.Equal(i.get().leaf) {
			t.Error("the renewed certificate is not stored")
		}
		stop()
	})
}

// While an agent cannot write its state it goes on with the certificate that is there for as long as that is good: where it starts anew
// meanwhile, or another process of its Deployment takes over, nobody has one that was replaced. It is renewed when it can be saved.
func TestUsesWhatItHasSaved(t *testing.T) {
	for name, failing := range map[string][]string{"no write": {certName, pendingName}, "the last write": {certName}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHub(t)
				i := h.joined()
				h.state.fails(errors.New("etcdserver: mvcc: database space exceeded"), failing...)
				stop := runs(t, i)
				<-time.After(life * 9 / 10)
				synctest.Wait()
				if again := h.mustOpen(""); !again.get().leaf.Equal(i.get().leaf) {
					t.Error("a certificate is in use that an agent which starts now does not have")
				}
				h.state.fails(nil, failing...)
				<-i.Renewed()
				if again := h.mustOpen(""); !again.get().leaf.Equal(i.get().leaf) {
					t.Error("the renewed certificate is not stored")
				}
				if left := time.Until(i.get().leaf.NotAfter); left < life*9/10 {
					t.Errorf("the certificate ends in %s", left)
				}
				stop()
			})
		})
	}
}

// An agent whose state can neither be read nor written, as while the API server that has it hangs, does not let its certificate end either.
func TestRenewsWithAStateThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		i := h.joined()
		no := errors.New("no answer within 20s")
		h.state.fails(no, certName, pendingName)
		h.state.hangs(no)
		stop := runs(t, i)
		<-time.After(life + time.Hour)
		synctest.Wait()
		if left := time.Until(i.get().leaf.NotAfter); left < life/2 {
			t.Errorf("the certificate ends in %s", left)
		}
		h.state.fails(nil, certName, pendingName)
		h.state.hangs(nil)
		<-time.After(resave + time.Second)
		synctest.Wait()
		if again := h.mustOpen(""); !again.get().leaf.Equal(i.get().leaf) {
			t.Error("the renewed certificate is not stored")
		}
		stop()
	})
}

// An identity that is damaged, or cut off, is as none: a join token brings another one, which is stored in its place.
func TestDamagedIdentityBeginsAnew(t *testing.T) {
	for name, damage := range map[string]func(*memory){
		"cut off":          func(m *memory) { m.values[certName] = m.values[certName][:20] },
		"no certificate":   func(m *memory) { m.values[certName] = []byte(`{"schema":1,"chain":["YQ=="]}`) },
		"another checksum": func(m *memory) { m.breaks(certName) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHub(t)
				token := h.token()
				if err := h.mustOpen(token).Enroll(t.Context()); err != nil {
					t.Fatal(err)
				}
				damage(h.state)
				without := h.mustOpen("")
				if _, err := without.TLS(); without.HubID() != "" || !errors.Is(err, fleet.ErrUnknownUser) || !strings.Contains(err.Error(), "--reissue") {
					t.Errorf("without a token: %v", err)
				}
				h.refuses(fleet.Errorf(fleet.ErrPrecondition, "join token for c1 was used; run: towline cluster join c1 --reissue"))
				if err := h.mustOpen(token).Enroll(t.Context()); err == nil || !strings.Contains(err.Error(), "was used") {
					t.Errorf("with the token of before: %v", err)
				}
				h.refuses(nil)
				i := h.mustOpen(h.token())
				if err := i.Enroll(t.Context()); err != nil || i.HubID() != "hub-1" {
					t.Fatalf("with a new token: %v", err)
				}
				if again := h.mustOpen(""); again.Join() != i.Join() {
					t.Error("the new identity is not stored in the place of the damaged one")
				}
			})
		})
	}
}
