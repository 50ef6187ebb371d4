package worker

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// A webhook that does not answer holds up the objects that it is asked about, and no other module.
func TestWritesThatHangHoldUpNoOtherModule(t *testing.T) {
	for _, kind := range []string{"apply", "removal"} {
		t.Run(kind, func(t *testing.T) {
			r := aloneRig(t)
			var slow []string
			for i := range 2 * cap(r.m.slots) {
				slow = append(slow, configMap(fmt.Sprintf("slow-%02d", i), "k: v"))
			}
			s := r.bundle("slow", nil, slow...)
			if kind == "removal" {
				r.set([]fleet.Sync{s})
				r.ready(s)
			}
			hanging, release := make(chan string, len(slow)), make(chan struct{})
			r.count.upset(func(q *http.Request) error {
				if q.Method == http.MethodGet || !strings.Contains(q.URL.Path, "/slow-") {
					return nil
				}
				hanging <- q.URL.Path
				select {
				case <-release:
					return nil
				case <-q.Context().Done():
					return context.Cause(q.Context())
				}
			})
			var gone []fleet.Tombstone
			syncs := []fleet.Sync{s}
			if kind == "removal" {
				syncs, gone = nil, append(gone, r.tombstone("slow", fleet.DeleteDelete))
			}
			r.set(syncs, gone...)
			r.receive(hanging, cap(r.m.slots))
			quick := r.bundle("quick", nil, configMap("quick", "k: v"))
			began := time.Now()
			r.set(slices.Concat(syncs, []fleet.Sync{quick}), gone...)
			r.ready(quick)
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %s", took)
			}
			if n := len(hanging); n > 0 {
				t.Errorf("%d more writes of the slow module hang", n)
			}
			close(release)
		})
	}
}

// pass lets virtual time go by, and what is due happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestSlotsAreLent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Manager{slots: make(chan struct{}, 2), slow: make(chan struct{}, 3)}
		var done []func()
		take := func() {
			m.slots <- struct{}{}
			done = append(done, m.lend())
		}
		take()
		done[0]()
		take()
		take()
		for _, inUse := range [][2]int{{2, 0}, {0, 2}} {
			if len(m.slots) != inUse[0] || len(m.slow) != inUse[1] {
				t.Errorf("%d slots, %d slow", len(m.slots), len(m.slow))
			}
			pass(2 * slotTime)
		}
		take()
		take()
		pass(2 * slotTime)
		if len(m.slots) != 1 || len(m.slow) != 3 {
			t.Errorf("%d slots, %d slow, when as many are slow as may be", len(m.slots), len(m.slow))
		}
		for _, end := range done[1:] {
			end()
		}
		if len(m.slots) != 0 || len(m.slow) != 0 {
			t.Errorf("%d slots, %d slow, at the end", len(m.slots), len(m.slow))
		}
	})
}
