package control

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/api"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// Whatever the leader and the API do rests on a look at the store, and is committed after it. Here something else commits in between, at random, and
// mostly about the modules and clusters of which that commit is: a person's word, a join, a report, another part of the leader, or another hub that
// leads from there on, before the commit or after it. What must be true of each commit is judged by the records as they are right before it and by what
// people said to which Kubernetes cluster, and not by what led to it; and whatever happened, all comes to rest as the last words say.

// tape is what a run is made of: each choice takes its next number. After its end everything is the first choice, which does nothing or little.
type tape struct {
	list []byte
	at   int
}

func (x *tape) pick(n int) int {
	if x.at >= len(x.list) {
		return 0
	}
	x.at++
	return int(x.list[x.at-1]) % n
}

// one is one of some.
func one[T any](x *tape, of ...T) T { return of[x.pick(len(of))] }

// interleaved is a hub without its network: the API, the registry and the leader on one store, all driven from one goroutine, one after
// another, but for what is put before a commit.
type interleaved struct {
	*Controller
	t        *testing.T
	ctx      context.Context
	tape     *tape
	room     room
	mix      []word          // what is put before commits that matter
	backend  backend.Backend // below what is interleaved
	store    *storetest.Store
	ca       *registry.CA
	bundles  *bundle.Cache
	backup   *backup
	restored int
	api      *api.API
	registry *registry.Registry
	lead     store.Leadership
	sub      store.Subscription
	quiet    bool    // nothing happens in between any more
	single   single  // what happens in between at one moment that is known before
	depth    int     // of operations that are under way
	near     touched // by the commit before which something happens
	last     store.Reader
	kubes    map[fleet.ClusterName]*kube // that have the names now
	made     map[string]*kube            // all, by their UIDs
	number   int                         // of puts
	files    map[string][]byte           // of the catalog
	others   map[string][]byte           // of another catalog
	source   map[string][]byte           // of the first module, if it follows one
	said     words
	log      []string
	found    string
}

// driven marks what the run does itself: what the store does beside it is not interleaved.
type driven struct{}

// leads marks what a hub does that leads, or led when it began.
type leads struct{}

// commits is a backend that has the run do something else before a commit.
type commits struct {
	backend.Backend
	run *interleaved
}

// Commit is of the backend.
func (b *commits) Commit(ctx context.Context, parts []backend.Part) (int64, []bool, error) {
	if ctx.Value(driven{}) == nil {
		return b.Backend.Commit(ctx, parts)
	}
	near := touchedBy(parts)
	b.run.single.commits(b.run)
	b.run.before(near)
	rev, happened, err := b.Backend.Commit(ctx, parts)
	if err == nil && slices.Contains(happened, true) {
		if by := ctx.Value(leads{}); near.orders && by != nil && by != b.run.Controller {
			b.run.finds("all: something is ordered by a hub that leads no more")
		}
		b.run.committed(near)
	}
	return rev, happened, err
}

// touched is what the records are of that a commit writes.
type touched struct {
	modules  []fleet.ModuleRef
	clusters []fleet.ClusterName
	orders   bool // something to clusters
	goes     bool // by some of it
	says     bool // something of what modules, clusters or holds there are
}

func touchedBy(parts []backend.Part) (out touched) {
	for _, p := range parts {
		for _, op := range p.Then {
			_, key, _ := strings.Cut(op.Key, "/") // behind the space of the records
			class, rest, _ := strings.Cut(key, "/")
			out.goes = out.goes || bytes.Contains(op.Value, []byte(fleet.DeleteDelete))
			out.orders = out.orders || class+"/" == store.DesiredPrefix || class+"/" == store.StepPrefix
			out.says = out.says || slices.Contains([]string{store.ModulePrefix, store.ClusterPrefix, store.HoldPrefix, store.ConfirmPrefix, store.CatalogPrefix}, class+"/")
			for _, ref := range wovenModules {
				if strings.Contains(rest+"/", ref.String()+"/") && !slices.Contains(out.modules, ref) {
					out.modules = append(out.modules, ref)
				}
			}
			for _, name := range wovenClusters {
				if strings.HasPrefix(rest+"/", string(name)+"/") && !slices.Contains(out.clusters, name) {
					out.clusters = append(out.clusters, name)
				}
			}
		}
	}
	return out
}

// there has an agent connected where its cluster says so.
type there struct{ run *interleaved }

func (s there) Connected(c fleet.ClusterName) bool {
	k := s.run.kubes[c]
	return k != nil && k.epoch > 0 && k.up
}
func (s there) Started() time.Time                           { return time.Time{} }
func (s there) Lost(fleet.ClusterName) time.Time             { return time.Time{} }
func (s there) LastSeen(fleet.ClusterName) (time.Time, bool) { return time.Time{}, false }
func (s there) Query(context.Context, fleet.ClusterName, *agentv1.Query) (*agentv1.QueryResult, error) {
	return nil, fleet.Errorf(fleet.ErrUnavailable, "no agent in this test")
}

func newInterleaved(t *testing.T, x *tape) *interleaved {
	w := &interleaved{t: t, tape: x, ctx: context.WithValue(rpc.WithCaller(t.Context(), rpc.Caller{Kind: rpc.KindUser, Name: "ana", Role: rpc.RoleAdmin}), driven{}, true),
		kubes: map[fleet.ClusterName]*kube{}, made: map[string]*kube{}, said: newWords()}
	w.mixes()
	w.files = map[string][]byte{}
	w.lists(w.spec(fleet.ModuleRef{Project: wovenCatalog.Project, Name: "three"}, 1, "nowhere", ""))
	w.backend = memory.New()
	b := &commits{w.backend, w}
	w.store = storetest.On(t, b, engine.Options{StandIn: record.StandIn})
	var err error
	w.ca, err = registry.OpenCA(t.TempDir(), nil)
	w.must(err)
	_, err = w.store.As(store.Hub).Update(context.Background(), func(x store.Writer) error {
		x.Put(store.HubKey, &storev1.Hub{HubId: "h", Incarnation: "i"})
		return nil
	})
	w.must(err)
	w.bundles = bundle.New(outsideBlobs{w.store.Blobs(), t})
	w.look()
	w.serves()
	return w
}

// serves makes what a hub consists of: it knows nothing but the store.
func (w *interleaved) serves() {
	var err error
	w.registry, err = registry.New(registry.Options{Store: w.store.As(store.Registry), CA: w.ca, HubID: "h", Log: slog.New(slog.DiscardHandler)})
	w.must(err)
	w.leads()
	w.api, err = api.New(api.Options{Store: w.store.As(store.API), Bundles: w.bundles, Sessions: there{w}, Registry: w.registry, Log: slog.New(slog.DiscardHandler), HubID: "h",
		Incarnation: hubOf(w.last).GetIncarnation(),
		Snapshot:    func(context.Context) (io.ReadCloser, error) { return nil, io.EOF },
		ResyncCatalog: func(ctx context.Context, ref fleet.ModuleRef, by record.Ask, take bool) (record.CatalogDone, error) {
			return w.ResyncCatalog(ctx, ref, by, take)
		},
		CatalogSeen: func(ref fleet.ModuleRef) (*storev1.CatalogState, time.Time) { return w.CatalogSeen(ref) }})
	w.must(err)
	w.o.Catalogs = w.api
	w.look()
}

func (w *interleaved) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%v\n%s", err, strings.Join(w.log, "\n"))
	}
}

// leads has a hub lead that knows nothing but the store. The one before it, if there is one, may be in the middle of something: it commits no more.
func (w *interleaved) leads() {
	if w.lead != nil {
		w.must(w.lead.Resign(w.ctx))
	}
	lead, err := w.store.Campaign(w.ctx, store.Candidate{Instance: "test"})
	w.must(err)
	w.lead = lead
	fetcher, err := source.New(source.Options{})
	w.must(err)
	c, err := New(Options{Store: w.store.As(store.Leader), Bundles: w.bundles, Source: shelf{fetcher, w}, Catalogs: w.api, Sessions: there{w}, Log: slog.New(slog.DiscardHandler),
		News:     func(ctx context.Context, list []record.News) ([]int64, error) { return w.api.StartFollowed(ctx, list) },
		Campaign: func(context.Context) (store.Leadership, error) { return lead, nil }})
	w.must(err)
	c.lead, c.room = lead, w.room
	c.states, c.backoff, c.leaving = map[fleet.ModuleRef]*moduleState{}, map[string]time.Duration{}, map[fleet.ClusterName]bool{}
	c.dropping, c.headings = map[fleet.ModuleRef]map[fleet.ClusterName]bool{}, map[fleet.ModuleRef]record.Heading{}
	c.modules, c.resolver, c.fetcher = newRunner(4, c.runModule), newRunner(maxResolvers, c.runResolve), newRunner(maxFetchers, c.runFetch)
	c.origins = &origins{}
	c.looker, c.lookedAt = newRunner(1, c.runLook), &origins{}
	c.looks.begin(time.Now())
	c.cataloguer, c.catalogHosts = newRunner(1, c.runCatalog), &origins{}
	c.catalogs.begin(time.Now())
	c.variants = newRunner(maxResolvers, c.runVariants)
	if w.sub != nil {
		w.sub.Stop()
	}
	w.Controller = c
	w.sub = w.store.Subscribe(c.takeStock, watched...)
}

func (w *interleaved) note(format string, args ...any) {
	w.log = append(w.log, strings.Repeat("    ", w.depth)+fmt.Sprintf(format, args...))
}

func (w *interleaved) finds(format string, args ...any) {
	if w.found == "" {
		w.found = fmt.Sprintf(format, args...)
		w.note("!!! %s", w.found)
	}
}

// maxDepth is how many operations are under way at once.
const maxDepth = 3

// before has something else happen now and then, which is over when the commit goes on: mostly to what the commit is about, and mostly before one
// that orders something.
func (w *interleaved) before(near touched) {
	if w.quiet || w.depth == 0 || w.depth >= maxDepth || w.found != "" {
		return
	}
	odds := 8
	switch {
	case near.orders:
		odds = 2
	case near.says:
		odds = 4
	}
	if w.tape.pick(odds) != odds-1 {
		return
	}
	defer func(near touched) { w.near = near }(w.near)
	w.near = near
	w.note("... and before that is committed:")
	w.step()
}

// committed judges what a commit has changed. Now and then the leader ends right after it, before it knows.
func (w *interleaved) committed(near touched) {
	was := w.last
	w.look()
	if was != nil && w.found == "" && was.Revision() != w.last.Revision() {
		w.judge(was, w.last)
	}
	if !w.quiet && w.depth > 0 && (near.orders || near.says) && w.tape.pick(16) == 15 {
		w.note("... and another hub leads from there on")
		w.leads()
	}
}

// look waits until the commit is in the read model, and has everybody told.
func (w *interleaved) look() {
	synctest.Wait()
	_ = w.store.View(context.Background(), 0, func(r store.Reader) error {
		w.last = r
		return nil
	})
}

// step is one operation, in the middle of which others may happen.
func (w *interleaved) step() {
	w.depth++
	defer func() { w.depth-- }()
	w.operation()
	w.follows()
}

// follows tells the leader what has changed.
func (w *interleaved) follows() {
	synctest.Wait()
	keys, _ := w.sub.Take()
	for _, k := range keys {
		w.follow(k)
	}
}

// leader runs what is due of the leader, of one of its parts; false: nothing is.
func (w *interleaved) leader() bool {
	w.follows()
	if record.Stands(store.Untracked(w.last)) {
		_, err := w.settleRestore(w.ctx)
		w.note("the restore stands: %v", err)
		w.follows()
	}
	all := []*runner{w.modules, w.resolver, w.fetcher, w.variants, w.looker, w.cataloguer}
	first := w.tape.pick(len(all))
	for i := range all {
		r := all[(first+i)%len(all)]
		if key, ok := r.take(w.tape); ok {
			w.note("leader: %s of the %s", key, [...]string{"modules", "resolver", "fetcher", "variants", "looker", "cataloguer"}[(first+i)%len(all)])
			w.single.begins(w)
			r.one(context.WithValue(w.ctx, leads{}, w.Controller), key)
			w.single.ends(w)
			if ref, is := store.SplitModule(key); is && r == w.looker {
				seen, _ := w.Followed(ref)
				w.note("the source is %s %s %s", seen.GetResolvedRef(), seen.GetReason(), seen.GetMessage())
			}
			if ref, is := store.SplitCatalog(key); is && r == w.cataloguer {
				came, _ := w.CatalogSeen(ref)
				w.note("the catalog is %s %s %v", came.GetStatus().GetState(), came.GetStatus().GetReason(), came.GetStatus().GetProblems())
			}
			return true
		}
	}
	return false
}

// take begins a run that is due.
func (r *runner) take(x *tape) (key string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []string
	for k, e := range r.entries {
		if _, runs := r.running[k]; !runs && !e.at.After(time.Now()) {
			due = append(due, k)
		}
	}
	if len(due) == 0 || r.active >= r.workers {
		return "", false
	}
	slices.Sort(due)
	key = one(x, due...)
	e := r.entries[key]
	delete(r.entries, key)
	heap.Remove(&r.due, e.index)
	r.running[key] = false
	r.active++
	return key, true
}

// wakes is when the next run of a part is due; zero: none is.
func (w *interleaved) wakes() (next time.Time) {
	for _, r := range []*runner{w.modules, w.resolver, w.fetcher, w.variants, w.looker, w.cataloguer} {
		r.mu.Lock()
		for _, e := range r.entries {
			if next.IsZero() || e.at.Before(next) {
				next = e.at
			}
		}
		r.mu.Unlock()
	}
	return next
}
