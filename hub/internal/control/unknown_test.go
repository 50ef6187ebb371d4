package control

import (
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// While it cannot be said who is to have what a module lets go it is looked again, the longer it lasts the more rarely, and at once when
// something has come of a look at a source; when it can be said nothing is looked at for that any more.
func TestUnknownHeirsAreLookedAtMoreAndMoreRarely(t *testing.T) {
	for lasts, want := range map[time.Duration]time.Duration{0: againUnknown, 4 * time.Second: againUnknown, 20 * time.Second: 2 * time.Second, 24 * time.Hour: maxAgainUnknown} {
		if got := againAfter(lasts); got != want {
			t.Errorf("after %s: %s", lasts, got)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLeader(t)
		st, cluster := l.state(shop), fleet.ClusterName("c")
		st.take()
		asked := func() bool {
			l.touchKey(store.FollowKey(fleet.ModuleRef{Project: shop.Project, Name: "other"}))
			dirty, _ := st.take()
			return len(dirty) > 0
		}
		if asked() {
			t.Error("looked at for nothing")
		}
		if d := l.noteUnknown(shop, cluster, true); d != 0 || !asked() {
			t.Errorf("unknown for %s, or not looked at", d)
		}
		<-time.After(time.Minute)
		if d := l.noteUnknown(shop, cluster, true); d != time.Minute {
			t.Errorf("unknown for %s", d)
		}
		l.noteUnknown(shop, cluster, false)
		if asked() || len(l.unknown) > 0 {
			t.Error("looked at though all is known")
		}
	})
}
