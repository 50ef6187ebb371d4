package identity

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/pkg/fleet"
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

// Who is locked or revoked while its certificate ends hears it when it asks for the next one: it is refused then, and not only cut off, until
// the hub gives it another. That the hub is away or busy is no refusal, nor does it end one.
func TestRefusedRecoveryIsARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		i := h.joined()
		h.refuses(fleet.Errorf(fleet.ErrUnavailable, "not now"))
		stop := runs(t, i)
		defer stop()
		wants := func(when string, kind error) {
			t.Helper()
			<-time.After(time.Hour)
			if _, err := i.Entry(); !errors.Is(err, kind) {
				t.Errorf("%s: %v", when, err)
			}
		}
		<-time.After(life)
		wants("the hub is away", fleet.ErrUnavailable)
		h.refuses(fleet.With(fleet.Errorf(fleet.ErrDenied, "cluster c1: is locked"), fleet.Hint{Unmet: fleet.PreconditionUnlocked}))
		wants("it is locked", fleet.ErrDenied)
		if _, err := i.Entry(); fleet.HintOf(err).Unmet != fleet.PreconditionUnlocked {
			t.Errorf("it does not know that it is locked: %v", err)
		}
		h.refuses(fleet.Errorf(fleet.ErrUnavailable, "not now"))
		wants("locked, and the hub is away", fleet.ErrDenied)
		h.refuses(nil)
		wants("unlocked", nil)
		h.refuses(fleet.Errorf(fleet.ErrUnavailable, "not now"))
		<-time.After(2 * life)
		wants("the next one has ended, too", fleet.ErrUnavailable)
	})
}
