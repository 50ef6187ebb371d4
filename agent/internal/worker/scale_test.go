package worker

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestScale applies KUBELAB_SCALE Deployments without pods and takes them up again after a restart. It says what that
// costs; run it alone for figures.
func TestScale(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("KUBELAB_SCALE"))
	if n == 0 {
		t.Skip("set KUBELAB_SCALE to a number of Deployments")
	}
	r := aloneRig(t)
	objects := make([]string, n)
	for i := range objects {
		objects[i] = deployment(fmt.Sprintf("web-%05d", i), 0)
	}
	s := r.bundle("shop", nil, objects...)
	r.count.take()
	began := time.Now()
	r.set([]fleet.Sync{s})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseApplied
	})
	counts, _ := r.count.take()
	t.Logf("applied %d in %v: %v, heap %d MB, peak RSS %s", n, time.Since(began), counts, heap(), peak())
	r.ready(s)
	t.Logf("ready after %v, heap %d MB", time.Since(began), heap())
	r.stop()
	r.m = nil
	before := heap()
	r.statuses = map[fleet.ModuleRef]fleet.SyncStatus{}
	r.count.take()
	r.start()
	began = time.Now()
	r.set([]fleet.Sync{s})
	r.ready(s)
	counts, _ = r.count.take()
	t.Logf("taken up in %v: %v, heap +%d MB, peak RSS %s", time.Since(began), counts, heap()-before, peak())
	r.gen++
	s.Generation = r.gen
	var u0, u1 = cpu(), time.Duration(0)
	r.set([]fleet.Sync{s})
	r.ready(s)
	u1 = cpu()
	t.Logf("resync of %d: %v CPU", n, u1-u0)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	began = time.Now()
	deadline := time.Now().Add(5 * time.Minute)
	for tick := time.NewTicker(50 * time.Millisecond); time.Now().Before(deadline); <-tick.C {
		r.mu.Lock()
		x := r.statuses[s.Module]
		r.mu.Unlock()
		if x.Phase == fleet.PhaseRemoved {
			break
		}
	}
	counts, _ = r.count.take()
	t.Logf("removed in %v: %v", time.Since(began), counts)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc >> 20
}

// peak is VmHWM of this process.
func peak() string {
	raw, _ := os.ReadFile("/proc/self/status")
	for _, l := range strings.Split(string(raw), "\n") {
		if strings.HasPrefix(l, "VmHWM") {
			return strings.TrimSpace(strings.TrimPrefix(l, "VmHWM:"))
		}
	}
	return ""
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
