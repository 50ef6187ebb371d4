package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent"
)

// The handler of errors that clients of Kubernetes begin with keeps the time of the last error over bubbles, whose clocks begin anew: it
// would sleep until then.
func init() { utilruntime.ErrorHandlers = nil }

// box is a cluster: its API server, and the agent in it.
type box struct {
	w      *world
	name   string
	server *Server
	delay  time.Duration
	hubs   []string

	mu     sync.Mutex
	agent  *agentProcess // the newest one
	starts int
	down   bool // the API server does not answer
	hung   bool // what is asked meanwhile is never answered
	flaky  bool // every third request fails
	asked  int
	denies bool // deletions fail
	full   bool // so does what writes a Secret, in which the agent has its state
	swap   bool // the next object that is to be deleted is another one by then
	odd    map[int]trouble
	writes int
}

// trouble is what becomes of a write to an API server.
type trouble int

const (
	refused    trouble = iota + 1 // 500, and it did not happen
	unanswered                    // it happened, and the connection breaks
	kills                         // it happened, and the agent is killed before it hears of it
	killsFirst                    // the agent is killed before it happens
)

func newBox(w *world, name string, i int) *box {
	b := &box{w: w, name: name, server: NewServer(name), hubs: []string{agentsAddress}, delay: 2*time.Millisecond + time.Duration(i)*130*time.Microsecond, odd: map[int]trouble{}}
	b.server.OnWrite = func(x Write) { w.judge.wrote(b, x) }
	return b
}

// agentProcess is one process of an agent.
type agentProcess struct {
	b      *box
	id     int
	cancel context.CancelFunc
	ended  chan struct{}
	dead   chan struct{}
	once   sync.Once
}

var (
	errDead = errors.New("the process is dead")
	errAPI  = errors.New("connection reset by the API server")
)

// start runs a new process of the agent. One that still runs goes on beside it.
func (b *box) start() {
	b.mu.Lock()
	b.starts++
	p := &agentProcess{b: b, id: b.starts, ended: make(chan struct{}), dead: make(chan struct{})}
	b.agent = p
	b.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	must(b.w.t, os.Setenv("POD_NAME", fmt.Sprintf("agent-%s", b.name)))
	a, err := agent.New(agent.Options{Hubs: b.hubs, JoinTokenFile: b.tokenFile(), Config: &rest.Config{Host: "http://" + b.name, Transport: p},
		Dialer: b.w.net.Dialer(b.name), Uptime: uptime, Log: b.w.log.With("cluster", b.name, "process", p.id)})
	must(b.w.t, err)
	b.w.note("agent %s %d starts", b.name, p.id)
	b.w.all.Go(func() {
		defer close(p.ended)
		err := a.Run(ctx)
		if err != nil && !p.isDead() {
			b.w.note("agent %s %d ended by itself: %v", b.name, p.id, err)
			b.w.judge.agentEnded(b, err)
		}
	})
	synctest.Wait() // it has read its name
}

// tokenFile has the cluster's join token. One that is put there while an agent runs is what it has to find.
func (b *box) tokenFile() string { return filepath.Join(b.w.dir, b.name+".token") }

func (b *box) putToken(token string) {
	must(b.w.t, os.WriteFile(b.tokenFile(), []byte(token), 0o600))
}

// uptime is by the time of the life: by the machine's own an agent would be in more of a hurry the busier the machine is.
func uptime() time.Duration { return time.Duration(time.Now().UnixNano()) }

func (p *agentProcess) isDead() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// kill ends the newest process at once.
func (b *box) kill(why string) {
	if p := b.process(); p != nil {
		p.kill(why)
	}
}

func (p *agentProcess) kill(why string) {
	p.once.Do(func() {
		p.b.w.note("agent %s %d is killed: %s", p.b.name, p.id, why)
		close(p.dead)
		p.b.w.net.Cut(p.b.name, "")
		p.cancel()
	})
}

// again starts the agent again if it is dead.
func (b *box) again() {
	p := b.process()
	if p == nil {
		return
	}
	select {
	case <-p.ended:
		b.start()
	case <-p.dead:
		<-p.ended
		b.start()
	default:
	}
}

// RoundTrip is how a process reaches the API server.
func (p *agentProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close()
	}
	if err := p.travel(r.Context()); err != nil {
		return nil, err
	}
	what := trouble(0)
	if changes(r) {
		if what = p.b.next(r); what != 0 {
			p.b.w.note("%s: write %s %s: trouble %d", p.b.name, r.Method, r.URL.Path, what)
		}
	}
	switch what {
	case refused:
		return respond(r, http.StatusInternalServerError, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 500, "message": "etcdserver: request timed out"})
	case killsFirst:
		p.kill("before a write")
		return nil, errDead
	}
	p.b.swaps(r)
	answer, err := p.b.server.Serve(r, body, p.id)
	switch what {
	case unanswered:
		return nil, errAPI
	case kills:
		p.kill("after a write")
		return nil, errDead
	}
	if err == nil {
		err = p.travel(r.Context())
	}
	return answer, err
}

// swaps has somebody put an object of their own in the place of one that is about to be deleted.
func (b *box) swaps(r *http.Request) {
	name, of := path.Base(r.URL.Path), strings.Contains(r.URL.Path, "/configmaps/")
	b.mu.Lock()
	swap := b.swap && of && r.Method == http.MethodDelete
	b.swap = b.swap && !swap
	b.mu.Unlock()
	if swap {
		b.w.note("%s: somebody puts another %s in the place of the one that is to be deleted", b.name, name)
		b.server.Drop("configmaps", metav1.NamespaceDefault, name)
		b.server.Replace("configmaps", foreign(name))
	}
}

// travel is the way to the API server, or back.
func (p *agentProcess) travel(ctx context.Context) error {
	timer := time.NewTimer(p.b.delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.dead:
		return errDead
	case <-timer.C:
	}
	if p.b.hangs() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.dead:
		}
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.isDead() {
		return errDead
	}
	p.b.asked++
	if p.b.down || p.b.flaky && p.b.asked%3 == 0 {
		return errAPI
	}
	return nil
}

func (b *box) process() *agentProcess {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.agent
}

// changes reports a request with a side effect.
func changes(r *http.Request) bool {
	return r.Method != http.MethodGet && !strings.Contains(r.URL.RawQuery, "dryRun")
}

// deny has deletions fail.
func (b *box) deny(is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.denies = is
}

// fill has the API server take no Secrets.
func (b *box) fill(is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.full = is
}

// next is what becomes of the next write.
func (b *box) next(r *http.Request) trouble {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.denies && r.Method == http.MethodDelete || b.full && strings.Contains(r.URL.Path, "/secrets") {
		return refused
	}
	b.writes++
	what := b.odd[b.writes]
	delete(b.odd, b.writes)
	return what
}

// upset has trouble with the nth write from now on.
func (b *box) upset(n int, what trouble) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.odd[b.writes+n] = what
}

// calm ends all trouble.
func (b *box) calm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.odd)
	b.down, b.swap = false, false
}

func (b *box) goesDown(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
}

// hang has the API server take requests and answer none of them, also not when that is over.
func (b *box) hang(is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hung = is
}

func (b *box) hangs() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hung
}

// stumble has every third request fail.
func (b *box) stumble(is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flaky = is
}
