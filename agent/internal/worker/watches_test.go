package worker

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// watches counts those that are open, by what they ask for.
type watches struct {
	next http.RoundTripper

	mu   sync.Mutex
	open map[string]int
	most map[string]int
}

func (w *watches) RoundTrip(r *http.Request) (*http.Response, error) {
	q := r.URL.Query()
	if q.Get("watch") == "" {
		return w.next.RoundTrip(r)
	}
	what := r.URL.Path + "?" + q.Get("labelSelector") + "&" + q.Get("fieldSelector")
	answer, err := w.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[what]++
	w.most[what] = max(w.most[what], w.open[what])
	answer.Body = &watchBody{ReadCloser: answer.Body, end: sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.open[what]--; w.open[what] == 0 {
			delete(w.open, what)
		}
	})}
	return answer, nil
}

// of is how many of a kind are open.
func (w *watches) of(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open[what]
}

// now are those that are open.
func (w *watches) now() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.open)
}

// twice are those of which two were open at a time.
func (w *watches) twice() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for what, n := range w.most {
		if n > 1 {
			out = append(out, what)
		}
	}
	return out
}

type watchBody struct {
	io.ReadCloser
	end func()
}

func (b *watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}

func (b *watchBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

// Kinds that come and go with what modules list leave nothing behind, no watch, no goroutine and no memory; and no kind is watched
// twice.
func TestWatchesComeAndGo(t *testing.T) {
	const kinds, rounds = 30, 6
	r := aloneRig(t)
	r.stop()
	open := &watches{open: map[string]int{}, most: map[string]int{}}
	r.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		open.next = next
		return open
	})
	var objects []string
	for i := range kinds {
		r.clusterScoped("customresourcedefinitions", strings.NewReplacer("gadgets", fmt.Sprintf("gadget%ds", i), "Gadget", fmt.Sprintf("Gadget%d", i)).
			Replace(strictCRD("color: {type: string}")))
		objects = append(objects, fmt.Sprintf("apiVersion: $NS.example.com/v1\nkind: Gadget%d\nmetadata: {name: g, namespace: $NS}\nspec: {color: red}\n", i))
	}
	r.options = append(r.options, func(o *Options) { o.linger = time.Millisecond })
	r.start()
	var few []string // as many, so that nobody has to confirm that the others go
	for i := range kinds {
		few = append(few, configMap(fmt.Sprintf("c%d", i), "k: v"))
	}
	goroutines, watched, heap := 0, 0, 0.0
	for round := range rounds {
		for _, list := range [][]string{slices.Concat(objects, few), few} {
			s := r.bundle("shop", []fleet.Policy{{PruneWhen: fleet.PruneAfterApply}}, list...)
			r.set([]fleet.Sync{s})
			r.wait("shop", "ready", isReady(s))
			r.eventually("what is listed is watched, and nothing else", func() bool { return (open.now() > kinds) == (len(list) > kinds) })
		}
		if round == 1 { // what is made once is there by now
			goroutines, watched, heap = goroutinesNow(), open.now(), r.heapNow()
		}
	}
	within := func(now, then float64) bool { return now <= 1.02*then }
	r.eventually("nothing is left of the kinds", func() bool {
		return open.now() <= watched && within(float64(goroutinesNow()), float64(goroutines)) && within(r.heapNow(), heap)
	})
	t.Logf("after %d rounds more: %.0f bytes of heap, %.0f before; %d goroutines, %d before", rounds-2, r.heapNow(), heap, goroutinesNow(), goroutines)
	if two := open.twice(); len(two) > 0 {
		t.Errorf("watched twice at a time: %v", two)
	}
}

// heapNow is how much is alive, without what the rig itself has noted.
func (r *rig) heapNow() float64 {
	r.count.take()
	r.heard.mu.Lock()
	r.heard.text.Reset()
	r.heard.mu.Unlock()
	runtime.GC()
	runtime.GC() // what the first one has finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// goroutinesNow are those of the agent, without those of connections, which stay open for a while.
func goroutinesNow() (n int) {
	stacks := make([]byte, 1<<22)
	for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if !strings.Contains(stack, "net/http.(*persistConn)") && !strings.Contains(stack, "testing.") {
			n++
		}
	}
	return n
}
