package hub_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
)

// wordy is a report of about 0.3 MB.
func wordy(module string) *agentv1.SyncStatus {
	st := &agentv1.SyncStatus{Module: module, Generation: 1, Bundle: make([]byte, 32), Phase: "Applied", States: []byte{0}}
	for i := range 200 {
		text := fmt.Sprintf("%0250d", i)
		st.Exceptions = append(st.Exceptions, &agentv1.ObjectException{Reason: text, Message: text, Field: text, Want: text, Live: text, ChangedBy: text})
	}
	return st
}

// An agent that reports without end, of modules that it has and of thousands that nobody gave it, fills neither the store nor the
// hub's memory, and other agents are served meanwhile.
func TestHostileAgentFillsNothing(t *testing.T) {
	w := newWorldWith(t, func(o *hub.Options) { o.QuotaBytes = 1 << 30 })
	w.join("evil", nil, nil)
	w.join("good", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	before := w.usage().GetBytes()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	heap, peak := m.HeapAlloc, uint64(0)
	sent := make(chan int, 1)
	go func() { // it is slowed down, and ends when its session does or the test stops it
		n := 0
		for ; n < 3000; n++ {
			s := &agentv1.Status{Syncs: []*agentv1.SyncStatus{wordy("default/shop"), wordy(fmt.Sprintf("default/x%d", 2*n)), wordy(fmt.Sprintf("default/x%d", 2*n+1))}}
			if w.agents["evil"].SendStatus(s) != nil {
				break
			}
		}
		sent <- n
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 50 {
		runtime.GC() // what is alive counts, not what waits to be collected
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapAlloc)
		<-tick.C
	}
	began := time.Now()
	w.put(module("shop", configMap("2")))
	for w.agents["good"].Held().Syncs[0].Revision != 2 {
		select {
		case <-w.ctx.Done():
			t.Fatal("the other agent is not served")
		case <-tick.C:
		}
	}
	grown := w.usage().GetBytes() - before
	got, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: "evil"})
	must(t, err)
	took := time.Since(began)
	w.stops["evil"]()
	t.Logf("%d frames of 0.9 MB were sent: the store grew by %d MB, the live heap by up to %d MB, the other agent was served in %s", <-sent, grown>>20, (int64(peak)-int64(heap))>>20,
		took.Round(time.Millisecond))
	if took > 10*time.Second {
		t.Errorf("the other agent was served after %s", took)
	}
	if grown > 96<<20 {
		t.Errorf("the store grew by %d MB", grown>>20)
	}
	if peak > heap+64<<20 {
		t.Errorf("the heap grew from %d MB to %d MB", heap>>20, peak>>20)
	}
	if n := len(got.GetCluster().GetStatus().GetStrays()); n > 20 {
		t.Errorf("%d strays are kept", n)
	}
	if told := fmt.Sprint(got.GetCluster().GetStatus().GetConditions()); !strings.Contains(told, "default/x") {
		t.Errorf("nobody is told: %s", told)
	}
}
