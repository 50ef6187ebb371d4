package control

import (
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/pkg/rollout"
)

// A look for which another module waits is stored whatever it finds, and lets that go on; what it begins nobody outside asked for.
func TestLookThatAnotherModuleAwaitsIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		f.lives(6 * time.Minute)
		f.lives(20 * time.Second)
		asked := time.Now()
		f.call(shop, false)
		f.lives(3 * time.Second)
		if rec, _ := f.stored(); rec.GetLooked().AsTime().Before(asked) {
			t.Errorf("stored is a look of %s before", asked.Sub(rec.GetLooked().AsTime()))
		}
		f.lives(20 * time.Second)
		f.source.at("2", "two")
		f.call(shop, false)
		f.lives(3 * time.Second)
		if len(f.begun) != 1 || f.begun[0].Ask.By != record.ByFollow {
			t.Errorf("begun %v", f.begun)
		}
	})
}
