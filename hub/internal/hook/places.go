package hook

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

// maxCalls is how many bodies are read at a time, before it is known who sends them.
const maxCalls = 32

// places are those in which bodies are read. Who comes to full ones takes that of the call which has had its own for longest: what a server
// sends is there at once, and who sends slowly, from however many addresses, keeps nobody out. The zero places are ready.
type places struct {
	mu    sync.Mutex
	taken []*reading // the one that came first is first
}

// reading is a call whose body is read.
type reading struct {
	end func() // ends it, also while it waits for its caller
	cut bool   // another one has its place
}

// take takes a place, which leave gives back. Leave reports whether it was cut off meanwhile.
func (p *places) take(w http.ResponseWriter) (leave func() (cut bool)) {
	r := &reading{end: func() { _ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) }}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.taken) == maxCalls {
		slow := p.taken[0]
		p.taken, slow.cut = slices.Delete(p.taken, 0, 1), true
		slow.end()
	}
	p.taken = append(p.taken, r)
	return func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.taken = slices.DeleteFunc(p.taken, func(other *reading) bool { return other == r })
		return r.cut
	}
}
