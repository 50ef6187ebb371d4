package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/client"
)

var (
	clusterNames = []string{"east", "north", "west"}
	moduleNames  = []string{"one", "two", "three"}
	letters      = []string{"a", "b", "c", "d", "e", "f"}
)

const (
	agentsAddress = "hub:7443"
	peopleAddress = "hub:7444"
	person        = "person"
)

// world is a hub, its clusters with their agents, and people, all from one seed.
type world struct {
	t    *testing.T
	ctx  context.Context
	seed uint64
	rnd  *rand.Rand
	dir  string
	net  *Network
	log  *slog.Logger
	*client.Client

	kept  *hub.SimulatedStore
	hub   *hubProcess
	boxes map[string]*box
	all   sync.WaitGroup // of processes

	mu      sync.Mutex
	began   time.Time
	trace   []string
	history *history // nil: none is kept
	judge   *judge
	over    bool
	numbers int // of the puts

	// wild has more go wrong: where lives are asked for by number, and where bugs are planted. Without that a life is short and plain.
	wild bool
}

// note adds a line to what has happened.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noted(format, args...)
}

func (w *world) noted(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.trace = append(w.trace, fmt.Sprintf("%10.3f ", time.Since(w.began).Seconds())+text)
	w.history.add("note %s", strings.ReplaceAll(text, "\n", " "))
}

// newWorld starts a fleet.
func newWorld(t *testing.T, seed uint64, dir string, h *history) *world {
	w := &world{t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 12)), dir: dir, net: NewNetwork(), log: slog.New(slog.DiscardHandler), kept: hub.NewSimulatedStore(),
		boxes: map[string]*box{}, began: time.Now(), history: h}
	if h != nil {
		h.began, w.net.OnSend = w.began, h.sent
	}
	if f := os.Getenv("TOWLINE_SIM_LOG"); f != "" {
		out, err := os.OpenFile(f, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		must(t, err)
		w.log = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	w.wild = os.Getenv("SEEDS") != "" || os.Getenv("SEED") != "" || os.Getenv("TOWLINE_PLANTED") != ""
	ctx, cancel := context.WithCancel(context.Background())
	w.ctx = ctx
	w.judge = newJudge(w)
	t.Cleanup(func() { w.ends(cancel) })
	w.links(Condition{Delay: 3 * time.Millisecond})
	w.startHub()
	var err error
	w.Client, err = client.Dial(ctx, client.Options{Config: filepath.Join(dir, hub.AdminFile), Dialer: w.net.Dialer(person)})
	must(t, err)
	for i, name := range clusterNames {
		w.boxes[name] = newBox(w, name, i)
		w.enroll(name)
	}
	return w
}

// ends stops everything that runs.
func (w *world) ends(cancel func()) {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	if w.Client != nil {
		_ = w.Close()
	}
	for _, name := range clusterNames {
		if b := w.boxes[name]; b != nil {
			b.kill("the end")
		}
	}
	w.hub.kill("the end")
	cancel()
	w.all.Wait()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// links sets all links to the hub.
func (w *world) links(c Condition) {
	for i, from := range append([]string{person}, clusterNames...) {
		for _, to := range []string{agentsAddress, peopleAddress} {
			c := c
			c.Delay += time.Duration(i) * 170 * time.Microsecond
			w.net.Set(Link{from, to}, c)
			w.net.Set(Link{to, from}, c)
		}
	}
}

// hubProcess is one process of the hub.
type hubProcess struct {
	w      *world
	store  *hub.SimulatedProcess
	listen []interface{ Close() error }
	cancel context.CancelFunc
	ended  chan struct{}

	mu    sync.Mutex
	dead  bool
	until int             // commits until something happens; 0: nothing will
	then  hub.CommitFault // which, when it is killed
	kills bool            // with that commit it is killed, else that one commit fails
}

func (w *world) startHub() {
	w.t.Helper()
	p := &hubProcess{w: w, ended: make(chan struct{})}
	p.store = w.kept.Process(p.becomes, p.committed)
	agents, people := w.net.Listen(agentsAddress), w.net.Listen(peopleAddress)
	p.listen = []interface{ Close() error }{agents, people}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	h, err := hub.New(ctx, hub.Options{DataDir: w.dir, Listen: agents, API: people, Simulated: p.store, Log: w.log})
	must(w.t, err)
	w.hub = p
	w.all.Go(func() {
		defer close(p.ended)
		err := h.Run(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil && !p.dead {
			w.judge.finds("I10: the hub ended by itself: %v", err)
		}
	})
}

// committed is told of a commit that happened.
func (p *hubProcess) committed(revision int64, what string) {
	p.w.history.add("commit %d: %s", revision, what)
}

// becomes says what becomes of a commit, and kills the hub with it.
func (p *hubProcess) becomes() hub.CommitFault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == 0 {
		return hub.CommitDone
	}
	if p.until--; p.until > 0 {
		return hub.CommitDone
	}
	fault := p.then
	if p.kills {
		p.dies("with a commit")
		if fault == hub.CommitDone {
			fault = hub.CommitNotSent
		}
	} else {
		p.w.note("a commit of the hub: %v", fault)
	}
	return fault
}

// kill ends the process at once.
func (p *hubProcess) kill(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dies(why)
}

// dies is called with the lock.
func (p *hubProcess) dies(why string) {
	if p.dead {
		return
	}
	p.dead = true
	p.w.note("the hub is killed: %s", why)
	p.store.Kill()
	for _, l := range p.listen {
		_ = l.Close()
	}
	p.w.net.Cut("", agentsAddress)
	p.w.net.Cut("", peopleAddress)
	p.cancel()
}

func (p *hubProcess) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// revive has a hub run again.
func (w *world) revive() {
	if w.hub.isDead() {
		<-w.hub.ended
		w.note("the hub starts")
		w.startHub()
	}
}

// insist repeats a call until there is an answer; a good one to what only asks, whose name begins with ?, is nothing to note. The hub is started again meanwhile if it was killed.
func (w *world) insist(what string, call func(context.Context) error) error {
	for tries := 1; ; tries++ {
		ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
		err := call(ctx)
		cancel()
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.ResourceExhausted:
		default:
			if err != nil || !strings.HasPrefix(what, "? ") {
				w.note("%s: %v", what, said(err))
			}
			return err
		}
		if tries == 60 {
			w.judge.finds("I5: %s is not answered after %d tries: %v", what, tries, err)
			return err
		}
		if tries%5 == 0 { // somebody sees to it
			w.net.Set(Link{person, peopleAddress}, Condition{Delay: 3 * time.Millisecond})
			w.net.Set(Link{peopleAddress, person}, Condition{Delay: 3 * time.Millisecond})
			w.net.Cut(person, "")
		}
		pause(time.Second)
		w.revive()
	}
}

// said is an error without what is drawn anew in every run.
func said(err error) string {
	if err == nil {
		return "ok"
	}
	return status.Code(err).String()
}

// pause lets time pass.
func pause(d time.Duration) { <-time.After(d) }

// enroll registers a cluster and starts its agent.
func (w *world) enroll(name string) {
	b := w.boxes[name]
	err := w.insist("join "+name, func(ctx context.Context) error {
		got, err := w.Clusters.JoinCluster(ctx, &towlinev1.JoinClusterRequest{Name: name, Labels: map[string]string{"zone": w.judge.now().clusters[name].zone}})
		if status.Code(err) == codes.AlreadyExists { // the answer of the try before was lost
			got, err = w.Clusters.JoinCluster(ctx, &towlinev1.JoinClusterRequest{Name: name, Reissue: true})
		}
		b.putToken(got.GetToken())
		return err
	})
	if err != nil {
		w.judge.finds("I4: %s cannot join: %v", name, err)
		return
	}
	if w.wild && w.chance(2) { // what the agent is answered may be lost
		w.hub.upset(1+w.rnd.IntN(3), hub.CommitNotAnswered, w.chance(2))
	}
	b.start()
}
