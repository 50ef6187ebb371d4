package hub_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
)

// errKilled is what a process would get that is not there any more.
var errKilled = errors.New("the hub is killed")

// mortal kills hubs between any two commits. What they stand on outlives them, and calls that a kill cut are made again.
type mortal struct {
	store backend.Backend
	full  atomic.Bool

	mu     sync.Mutex
	life   *life
	begins chan struct{} // closed with the next life
}

// life is what one process of the hub has.
type life struct {
	backend.Backend
	full  *atomic.Bool
	seats *backend.Seats
	dead  chan struct{}
	ready atomic.Bool // it serves

	mu    sync.Mutex
	left  int  // commits until it is killed; negative: it is not
	lost  bool // the last one does not happen
	conns []net.Conn
}

func newMortalWorld(t *testing.T) *world {
	m := &mortal{store: memory.New(), begins: make(chan struct{})}
	w := newWorldWith(t, func(o *hub.Options) {
		l := m.begin()
		o.CollectEvery = 2 * time.Second
		if d, err := time.ParseDuration(os.Getenv("TOWLINE_GRACE")); err == nil {
			o.Grace = d
		}
		if f := os.Getenv("TOWLINE_LOG"); f != "" {
			out, err := os.OpenFile(f, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			must(t, err)
			o.Log = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn}))
		}
		o.Listen, o.API = &cutListener{o.Listen, l}, &cutListener{o.API, l}
		hub.StandOn(o, l)
	}, m)
	m.lives()
	return w
}

func (m *mortal) begin() *life {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.life = &life{Backend: m.store, full: &m.full, seats: backend.NewSeats(), dead: make(chan struct{}), left: -1}
	return m.life
}

// lives says that the hub serves.
func (m *mortal) lives() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.life.ready.Store(true)
	close(m.begins)
	m.begins = make(chan struct{})
}

func (m *mortal) now() (*life, chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.life, m.begins
}

// dial makes what a kill cut again.
func (m *mortal) dial() []grpc.DialOption {
	if m == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			for {
				l, next := m.now()
				err := call(ctx, method, req, reply, cc, opts...)
				switch {
				case err == nil:
					return nil
				case !l.isDead() && strings.Contains(err.Error(), "error reading from server"): // a connection of before
					continue
				case !l.isDead():
					return err
				}
				select {
				case <-next:
				case <-ctx.Done():
					return err
				}
			}
		})}
}

func (l *life) isDead() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

// dies is called with the lock.
func (l *life) dies() {
	close(l.dead)
	for _, c := range l.conns {
		_ = c.Close()
	}
}

// after has the process be killed by its n-th commit from now on.
func (l *life) after(n int, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left, l.lost = n, lost
}

func (l *life) Commit(ctx context.Context, parts []backend.Part) (int64, []bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isDead() {
		return 0, nil, errKilled
	}
	if l.left > 0 {
		l.left--
	}
	if l.left == 0 && l.lost {
		l.dies()
		return 0, nil, errKilled
	}
	rev, happened, err := l.Backend.Commit(ctx, parts)
	if l.left == 0 {
		l.dies()
		return 0, nil, errKilled
	}
	return rev, happened, err
}

// Full is as the store says that is full: what adds to it is refused.
func (l *life) Full() error {
	if l.full.Load() {
		return fleet.Errorf(fleet.ErrExhausted, "the store is full")
	}
	return nil
}

func (l *life) Get(ctx context.Context, revision int64, keys ...string) (map[string]backend.KV, int64, error) {
	if l.isDead() {
		return nil, 0, errKilled
	}
	return l.Backend.Get(ctx, revision, keys...)
}

func (l *life) Range(ctx context.Context, q backend.RangeQuery) (backend.Page, error) {
	if l.isDead() {
		return backend.Page{}, errKilled
	}
	return l.Backend.Range(ctx, q)
}

func (l *life) Revision(ctx context.Context) (int64, error) {
	if l.isDead() {
		return 0, errKilled
	}
	return l.Backend.Revision(ctx)
}

func (l *life) Watch(ctx context.Context, prefix string, from int64, fn func(backend.Changes)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-l.dead:
			cancel()
		case <-ctx.Done():
		}
	}()
	return l.Backend.Watch(ctx, prefix, from, fn)
}

func (l *life) Elect(ctx context.Context, prefix string, value []byte) (backend.Leadership, error) {
	return l.seats.Elect(ctx, l, prefix, value)
}

// cutListener knows the connections of a process.
type cutListener struct {
	net.Listener
	life *life
}

func (c *cutListener) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	if c.life.isDead() {
		_ = conn.Close()
		return conn, nil
	}
	c.life.conns = append(c.life.conns, conn)
	return conn, nil
}

// kills has the hub be killed by one of its next commits.
func (c *chaos) kills() {
	n, lost := 1+c.rand.IntN(killsWithin), c.rand.IntN(2) == 0
	l, _ := c.mortal.now()
	if !l.ready.Load() {
		return
	}
	c.note("the hub is to be killed by commit %d from here, lost %v", n, lost)
	l.after(n, lost)
}

var killsWithin = func() int {
	if n, err := strconv.Atoi(os.Getenv("TOWLINE_KILLS")); err == nil && n > 1 {
		return n
	}
	return 8
}()

// revives starts the hub again each time that it was killed.
func (c *chaos) revives() {
	for {
		l, _ := c.mortal.now()
		select {
		case <-c.ctx.Done():
			return
		case <-l.dead:
		}
		c.note("the hub is killed")
		c.stopHub()
		if os.Getenv("TOWLINE_DAMAGE") != "" && c.rand.IntN(2) == 0 {
			c.damages()
		}
		c.start()
		c.turns(clusters...)
		c.note("the hub is back")
		c.mortal.lives()
		c.mu.Lock()
		c.killed++
		c.mu.Unlock()
	}
}

// healing are the classes of records without which the hub goes on by itself.
var healing = []string{"observed/", "sessions/", "acks/", "floors/", "confirms/"}

// damages changes a bit of a record while there is no hub.
func (c *chaos) damages() {
	classes := healing
	if c.mends() {
		classes = append(slices.Clone(healing), "desired/", "desired/", "desired/")
	}
	prefix := pickOf(c, classes)
	page, err := c.mortal.store.Range(c.ctx, backend.RangeQuery{Prefix: recordsOf + prefix})
	must(c.t, err)
	if len(page.KVs) == 0 {
		return
	}
	kv := pickOf(c, page.KVs)
	value := slices.Clone(kv.Value)
	value[4] ^= 1 // of the checksum
	_, _, err = c.mortal.store.Commit(c.ctx, []backend.Part{{If: []backend.Compare{{Key: kv.Key, Revision: kv.Mod}}, Then: []backend.Op{{Key: kv.Key, Value: value}}}})
	c.note("%s is damaged: %v", kv.Key, err)
}

// recordsOf is where the records of a store are.
const recordsOf = "r/"

// replaces makes a cluster anew: nothing of what was in it is there, and its agent knows of nothing.
func (c *chaos) replaces(cluster string) {
	p := c.now().clusters[cluster]
	if p.gone {
		return
	}
	c.backup = nil
	c.note("%s is made anew", cluster)
	if c.up[cluster] {
		c.stops[cluster]()
	}
	b := c.boxes[cluster]
	b.mu.Lock()
	clear(b.owner)
	b.held, b.told, b.slow, b.leaving = fleet.Assemblage{}, "", false, nil
	b.mu.Unlock()
	again, err := c.Clusters.JoinCluster(c.ctx, &towlinev1.JoinClusterRequest{Name: cluster, Reissue: true})
	must(c.t, err)
	c.replaced++
	c.redeems(cluster, again.GetToken(), fmt.Sprintf("uid-%s-%d", cluster, c.replaced))
	c.connectBox(b)
}

// fills has people do what must be possible while the store is full.
func (c *chaos) fills() {
	c.note("the store is full")
	c.mortal.full.Store(true)
	for range 1 + c.rand.IntN(4) {
		name, cluster := pickOf(c, modules), pickOf(c, clusters)
		switch c.rand.IntN(7) {
		case 0:
			c.deletes(name, c.rand.IntN(2) == 0)
		case 1, 2:
			c.moves(cluster)
		case 3:
			c.toggle(cluster)
		case 4:
			c.confirm()
		default:
			c.verb(name, cluster)
		}
	}
	c.mortal.full.Store(false)
	c.note("the store is not full any more")
}

// mends reports that records of what clusters are to have are damaged, too, which people have assigned again.
func (c *chaos) mends() bool { return os.Getenv("TOWLINE_DAMAGE") == "2" }

// assignsAgain does what the hub says of what it cannot read.
func (c *chaos) assignsAgain(name string) {
	if !c.mends() {
		return
	}
	w := word(name, "retry")
	for _, t := range c.trackers(nil) {
		if (fleet.ModuleRef{Project: t.GetProject(), Name: t.GetModule()}).Display() == name && strings.Contains(t.String(), "is damaged") {
			w.Clusters = []string{t.GetCluster()}
			_ = c.say(c.Client, w)
		}
	}
}
