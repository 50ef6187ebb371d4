package etcd_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/etcd"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

func TestEtcd(t *testing.T) {
	storetest.Run(t, func(t testing.TB) backend.Backend {
		return openBackend(t, etcd.Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	})
}

func openBackend(t testing.TB, o etcd.Options) backend.Backend {
	t.Helper()
	b, err := etcd.Open(within(t), o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func openDir(t testing.TB, o etcd.Options) *storetest.Store {
	t.Helper()
	return storetest.On(t, openBackend(t, o), engine.Options{})
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func count(t testing.TB, s store.Store, key string, n uint64) int64 {
	t.Helper()
	rev, err := s.Update(within(t), func(w store.Writer) error {
		w.Put(key, &storev1.Counter{Value: n})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func counted(t testing.TB, s store.Store, rev int64, key string) uint64 {
	t.Helper()
	var n uint64
	if err := s.View(within(t), rev, func(r store.Reader) error {
		c, _, _ := store.Get[*storev1.Counter](r, key)
		n = c.GetValue()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func shut(t testing.TB, s *storetest.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestEtcdKeepsEverythingOverARestart(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, etcd.Options{Dir: dir})
	const records = 3000 // more than a page of the list
	rev := int64(0)
	for at := 0; at < records; at += store.MaxOps {
		var err error
		rev, err = s.Update(within(t), func(w store.Writer) error {
			for i := at; i < min(at+store.MaxOps, records); i++ {
				w.Put(fmt.Sprintf("meta/uid/%05d", i), &storev1.Counter{Value: uint64(i)})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	content := []byte(strings.Repeat("content ", 1000))
	digests, err := s.Blobs().Put(within(t), content)
	if err != nil {
		t.Fatal(err)
	}
	old, err := s.Campaign(within(t), store.Candidate{Instance: "control"})
	if err != nil {
		t.Fatal(err)
	}
	shut(t, s)

	s = openDir(t, etcd.Options{Dir: dir})
	defer shut(t, s)
	n := 0
	if err := s.View(within(t), rev, func(r store.Reader) error {
		store.Scan(r, "meta/uid/", func(c *storev1.Counter, e store.Entry) bool {
			if e.Key != fmt.Sprintf("meta/uid/%05d", c.GetValue()) {
				t.Errorf("%s holds %d", e.Key, c.GetValue())
			}
			n++
			return true
		})
		return nil
	}); err != nil || n != records {
		t.Errorf("%d records of %d, %v", n, records, err)
	}
	if got, err := s.Blobs().Get(within(t), digests[0]); err != nil || string(got) != string(content) {
		t.Errorf("the blob: %v", err)
	}
	// The next leader need not wait for the last one's lease, and shuts it out.
	if _, err := s.Campaign(within(t), store.Candidate{Instance: "control"}); err != nil {
		t.Fatal(err)
	}
	_, err = s.Batch(within(t), old.Fence(), []store.Op{{Key: "meta/uid/x", Delete: true}})
	if !errors.Is(err, fleet.ErrStale) {
		t.Errorf("the leader of before the restart: %v", err)
	}
}

func TestEtcdDirectoryHasOneUser(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, etcd.Options{Dir: dir, UnsafeNoFsync: true})
	_, err := etcd.Open(within(t), etcd.Options{Dir: dir})
	if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second user gets: %v", err)
	}
	shut(t, s)
	shut(t, openDir(t, etcd.Options{Dir: dir, UnsafeNoFsync: true}))
}

func TestEtcdOpensNoPort(t *testing.T) {
	before := listeners(t)
	s := openDir(t, etcd.Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	defer shut(t, s)
	if after := listeners(t); after != before {
		t.Errorf("listening sockets: %d before, %d with etcd", before, after)
	}
}

// listeners counts the sockets of this process that listen or are bound.
func listeners(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc here")
	}
	n := 0
	for _, fd := range fds {
		to, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

func TestEtcdCompactsByItself(t *testing.T) {
	keys := openBackend(t, etcd.Options{Dir: t.TempDir(), UnsafeNoFsync: true, KeepRevisions: 50})
	s := storetest.On(t, keys, engine.Options{})
	defer shut(t, s)
	first := count(t, s, "meta/uid/n", 0)
	for ctx := within(t); ; {
		count(t, s, "meta/uid/n", uint64(time.Now().UnixNano()))
		_, _, err := keys.Get(ctx, first, "r/meta/uid/n")
		if errors.Is(err, backend.ErrCompacted) {
			return
		}
		if err != nil {
			t.Fatalf("history is never dropped: %v", err)
		}
	}
}

func TestEtcdFullComesBackByItself(t *testing.T) {
	const quota = 16 << 20
	s := openDir(t, etcd.Options{Dir: t.TempDir(), UnsafeNoFsync: true, QuotaBytes: quota})
	defer shut(t, s)
	big := &storev1.RevisionRecord{}
	write := func(ctx context.Context) error {
		big.Artifact = noise(200_000)
		_, err := s.Update(ctx, func(w store.Writer) error {
			w.Put(store.RevisionPrefix+"p/m/1", big)
			return nil
		})
		return err
	}
	ctx := within(t)
	var err error
	for err == nil && ctx.Err() == nil {
		err = write(ctx)
	}
	if !errors.Is(err, fleet.ErrExhausted) {
		t.Fatalf("over the quota: %v", err)
	}
	if n := counted(t, s, 0, "meta/uid/none"); n != 0 {
		t.Fatal("reads must go on")
	}
	untilFree(t, write)
	if rev := count(t, s, "meta/uid/after", 3); counted(t, s, rev, "meta/uid/after") != 3 {
		t.Error("it does not work as before")
	}
}

// ownEtcd is an etcd of someone else, behind a unix socket.
func ownEtcd(t testing.TB) *embed.Etcd { return ownEtcdAt(t, "", "towline") }

// ownEtcdAt is one at a socket, empty: anywhere, of the cluster of a name.
func ownEtcdAt(t testing.TB, socket, cluster string, more ...func(*embed.Config)) *embed.Etcd {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := embed.NewConfig()
	cfg.Dir, cfg.InitialClusterToken = filepath.Join(dir, "d"), cluster
	cfg.ListenPeerUrls = nil
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Host: cmp.Or(socket, filepath.Join(dir, "s"))}}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.EnableGRPCGateway = false
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.UnsafeNoFsync = true
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	for _, set := range more {
		set(cfg)
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	<-e.Server.ReadyNotify()
	t.Cleanup(e.Close)
	return e
}

// An etcd of one's own is full: what is there is read, and whoever is refused, as a hub that starts, hears what goes on and what to do.
func TestEtcdOfOnesOwnThatIsFull(t *testing.T) {
	server := ownEtcdAt(t, "", "towline", func(c *embed.Config) { c.QuotaBackendBytes = 2 << 20 })
	s := openDir(t, etcd.Options{Endpoints: endpoint(server)})
	count(t, s, "meta/uid/before", 3)
	var err error
	for n := 0; err == nil && n < 64; n++ {
		content := make([]byte, 1<<18)
		_, _ = rand.Read(content) // what is packed is smaller
		_, err = s.Blobs().Put(within(t), content)
	}
	if !errors.Is(err, fleet.ErrExhausted) || !strings.Contains(err.Error(), "it takes no change, and only reads go on") {
		t.Fatalf("over the quota: %v", err)
	}
	if n := counted(t, s, 0, "meta/uid/before"); n != 3 {
		t.Errorf("it reads %d", n)
	}
	if _, err := etcd.Open(within(t), etcd.Options{Endpoints: endpoint(server)}); !errors.Is(err, fleet.ErrExhausted) || !strings.Contains(err.Error(), "etcdctl alarm disarm") {
		t.Errorf("a hub that starts: %v", err)
	}
}

func endpoint(e *embed.Etcd) []string { return []string{"unix:" + e.Config().ListenClientUrls[0].Host} }

func TestEtcdOfOnesOwn(t *testing.T) {
	server := ownEtcd(t)
	n := 0
	storetest.Run(t, func(t testing.TB) backend.Backend {
		n++
		return openBackend(t, etcd.Options{Endpoints: endpoint(server), Prefix: fmt.Sprintf("suite%d/", n)})
	})
}

func TestTwoHubsShareAnEtcd(t *testing.T) {
	server := ownEtcd(t)
	open := func() *storetest.Store {
		return openDir(t, etcd.Options{Endpoints: endpoint(server), SessionTTL: 2 * time.Second})
	}
	a, b := open(), open()
	defer shut(t, b)
	rev := count(t, a, "meta/uid/n", 7)
	if got := counted(t, b, rev, "meta/uid/n"); got != 7 {
		t.Errorf("the other hub reads %d", got)
	}
	// What moves the revision without a record must not keep a barrier waiting.
	if _, err := a.Blobs().Put(within(t), []byte("blob")); err != nil {
		t.Fatal(err)
	}
	if at, err := b.Barrier(within(t)); err != nil || at <= rev {
		t.Errorf("barrier at %d after %d: %v", at, rev, err)
	}
	first, err := a.Campaign(within(t), store.Candidate{Instance: "control"})
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan store.Leadership, 1)
	go func() {
		l, err := b.Campaign(within(t), store.Candidate{Instance: "control"})
		if err != nil {
			t.Error(err)
		}
		second <- l
	}()
	shut(t, a)
	<-first.Lost()
	next := <-second
	if next == nil {
		t.FailNow()
	}
	if _, err := b.Batch(within(t), first.Fence(), []store.Op{{Key: "meta/uid/n", Delete: true}}); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("the first leader's fence: %v", err)
	}
	if _, err := b.Batch(within(t), next.Fence(), []store.Op{{Key: "meta/uid/n", Delete: true}}); err != nil {
		t.Errorf("the second leader's fence: %v", err)
	}
}

// The other hubs learn who leads by one write, which may fail: it is done again, and an older word never comes after a newer one.
func TestWhatCouldNotBeAnnouncedIsSaidAgain(t *testing.T) {
	server := ownEtcd(t)
	b := openBackend(t, etcd.Options{Endpoints: endpoint(server), SessionTTL: 30 * time.Second})
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	const key = "hubs/a"
	a, err := b.Announce(within(t), key, []byte("follows"))
	if err != nil {
		t.Fatal(err)
	}
	_, since, err := b.Get(within(t), 0, key)
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(within(t))
	cancel()
	if err := a.Set(over, []byte("leads")); err == nil {
		t.Fatal("a write whose time was over is no failure")
	}
	watching, found := context.WithCancel(within(t))
	defer found()
	said := ""
	err = b.Watch(watching, key, since+1, func(c backend.Changes) {
		for _, change := range c.List {
			if said = string(change.Value); said == "leads" {
				found()
			}
		}
	})
	if said != "leads" {
		t.Errorf("the others read %q: %v", said, err)
	}
}

func TestEtcdThatIsNotThere(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err = etcd.Open(ctx, etcd.Options{Endpoints: []string{"unix:" + l.Addr().String()}})
	if !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("opening it: %v", err)
	}
	if _, err := etcd.Open(ctx, etcd.Options{}); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("neither directory nor endpoints: %v", err)
	}
}
