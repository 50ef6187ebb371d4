package identity

import (
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/jointoken"
)

// A token of another hub brings nothing from the one that answers: the certificate that ended is renewed there all the same.
func TestTokenOfAnotherHubKeepsNoRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.joined()
		<-time.After(6 * life)
		other, _ := newCA(t)
		i := h.mustOpen(jointoken.New("c1", jointoken.Pin(other)).String())
		stop := runs(t, i)
		if err := i.Enroll(t.Context()); err == nil {
			t.Fatal("the token of another hub is redeemed")
		}
		<-i.Renewed()
		if _, err := i.TLS(); err != nil || !i.NeedsEnroll() {
			t.Errorf("%v; the token waits still: %v", err, i.NeedsEnroll())
		}
		stop()
	})
}

// An agent whose certificate the hub renews no more does not go on asking.
func TestRecoveryIsAskedForUntilItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		i := h.joined()
		<-time.After(life + rpc.RecoveryWindow)
		before := len(h.signed())
		stop := runs(t, i)
		<-time.After(24 * time.Hour)
		if n := len(h.signed()) - before; n != 0 {
			t.Errorf("asked %d times after the window", n)
		}
		stop()
	})
}
