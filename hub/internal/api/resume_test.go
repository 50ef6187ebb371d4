package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

// labelled puts a cluster.
func labelled(w store.Writer, name fleet.ClusterName, env string) {
	w.Put(store.ClusterKey(name), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: string(name), Labels: map[string]string{"env": env}}}})
}

func (a *API) change(t *testing.T, fn func(w store.Writer)) int64 {
	t.Helper()
	rev, err := storetest.All(a.o.Store).Update(t.Context(), func(w store.Writer) error {
		fn(w)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// watchClustersFrom is a watch, and what ends it and says how it ended.
func (a *API) watchClustersFrom(t *testing.T, req *towlinev1.WatchClustersRequest) (*clusterEvents, func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &clusterEvents{ctx: ctx, ch: make(chan *towlinev1.WatchClustersResponse, 20000)}
	done := make(chan error, 1)
	go func() { done <- a.WatchClusters(req, s) }()
	return s, func() error {
		cancel()
		return <-done
	}
}

// refusal is how a watch ends by itself.
func (a *API) refusal(t *testing.T, req *towlinev1.WatchClustersRequest) error {
	return a.WatchClusters(req, &clusterEvents{ctx: t.Context(), ch: make(chan *towlinev1.WatchClustersResponse, 10)})
}

// A watch that broke goes on behind its token: what was sent does not come again, what changed meanwhile does, and what does
// not match any more is gone.
func TestWatchGoesOnBehindItsToken(t *testing.T) {
	a := newAPI(t, func(w store.Writer) {
		labelled(w, "c1", "prod")
		labelled(w, "c2", "prod")
		labelled(w, "c3", "test")
		labelled(w, "c4", "prod")
	})
	req := &towlinev1.WatchClustersRequest{LabelSelector: "env=prod"}
	s, leave := a.watchClustersFrom(t, req)
	for _, name := range []string{"c1", "c2", "c4"} {
		s.expect(t, eventAdded, name, "prod")
	}
	req.ResumeToken = (<-s.ch).GetResumeToken() // of SYNCED
	_ = leave()
	a.change(t, func(w store.Writer) {
		labelled(w, "c2", "test")
		labelled(w, "c3", "prod")
		w.Delete(store.ClusterKey("c4"))
	})
	req.MinRevision = a.change(t, func(w store.Writer) { labelled(w, "c5", "test") })
	again, leaveAgain := a.watchClustersFrom(t, req)
	again.expect(t, eventDeleted, "c2", "prod")
	again.expect(t, eventAdded, "c3", "prod")
	again.expect(t, eventDeleted, "c4", "prod")
	again.expect(t, eventSynced, "", "")
	a.change(t, func(w store.Writer) { labelled(w, "c1", "test") })
	m := <-again.ch
	if m.GetType() != eventDeleted || m.GetResumeToken() == "" {
		t.Errorf("then %v", m)
	}
	_ = leaveAgain()

	last := &towlinev1.WatchClustersRequest{LabelSelector: "env=prod", ResumeToken: m.GetResumeToken()}
	quiet, leaveQuiet := a.watchClustersFrom(t, last)
	quiet.expect(t, eventSynced, "", "")
	_ = leaveQuiet()
}

// A token that the hub cannot go on from is refused, and never taken for another one.
func TestTokenThatIsNoneHere(t *testing.T) {
	a := newAPI(t, func(w store.Writer) { labelled(w, "c1", "prod") })
	s, leave := a.watchClustersFrom(t, &towlinev1.WatchClustersRequest{})
	s.expect(t, eventAdded, "c1", "prod")
	token := (<-s.ch).GetResumeToken()
	refused := func(what string, req *towlinev1.WatchClustersRequest, kind error) {
		t.Helper()
		if err := a.refusal(t, req); !errors.Is(err, kind) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, junk := range []string{"x", "AAAA", token[:len(token)-4], token + "AAAA", "===="} {
		refused("junk "+junk, &towlinev1.WatchClustersRequest{ResumeToken: junk}, fleet.ErrInvalid)
	}
	refused("another filter", &towlinev1.WatchClustersRequest{LabelSelector: "env=prod", ResumeToken: token}, fleet.ErrInvalid)
	refused("another question", &towlinev1.WatchClustersRequest{Name: "c1", ResumeToken: token}, fleet.ErrInvalid)
	for i := range 3 * boardLimits.Changes {
		a.clusterBoards.asked[""].take(eventModified, &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: fmt.Sprint("c", i%7)}}, 1)
	}
	refused("more changes than are kept", &towlinev1.WatchClustersRequest{ResumeToken: token}, fleet.ErrStale)
	a.clusterBoards.linger = 0
	_ = leave()
	refused("a board that is gone", &towlinev1.WatchClustersRequest{ResumeToken: token}, fleet.ErrStale)
}

var errBreak = errors.New("break")

// However often a watch breaks, and wherever, what it was told is what there is: a random history of rows that come, go, begin
// to match and cease to, and a watch that breaks after some messages and goes on behind its last token.
func TestWatchThatBreaksAnywhereEndsWithWhatThereIs(t *testing.T) {
	a := newAPI(t, func(store.Writer) {})
	match := func(c *towlinev1.Cluster) bool { return c.GetMetadata().GetLabels()["env"] == "prod" }
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		steps := make(chan func(s *board[*towlinev1.Cluster]))
		look := func(ctx context.Context, s *board[*towlinev1.Cluster]) error {
			s.take(eventSynced, nil, 0)
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case step := <-steps:
					step(s)
				}
			}
		}
		rows, known, token, rev := map[string]*towlinev1.Cluster{}, map[string]*towlinev1.Cluster{}, "", int64(0)
		watch := func(breakAfter int) {
			told := func(m told[*towlinev1.Cluster]) error {
				switch k := clusterKey(m.row); {
				case m.kind == eventDeleted && known[k] == nil, m.kind == eventModified && known[k] == nil, m.kind == eventAdded && known[k] != nil:
					t.Fatalf("%s %s, and it knows %v", m.kind, k, known[k])
				case m.kind == eventDeleted:
					delete(known, k)
				case m.kind != eventSynced:
					known[k] = m.row
				}
				token = cmp.Or(m.token, token)
				if breakAfter--; breakAfter == 0 || m.kind == eventSynced {
					return errBreak
				}
				return nil
			}
			from := &towlinev1.WatchClustersRequest{ResumeToken: token}
			if token == "" {
				clear(known)
			}
			err := a.clusterBoards.watch(ctx, watching[*towlinev1.Cluster]{question: fmt.Sprint(run), look: look, match: match, from: from, send: told})
			if !errors.Is(err, errBreak) {
				t.Fatalf("with token %q: %v", from.GetResumeToken(), err)
			}
		}
		watch(0)
		for range rapid.IntRange(1, 30).Draw(t, "rounds") {
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				name, env, goes := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"), rapid.SampledFrom([]string{"prod", "test"}).Draw(t, "env"), rapid.Bool().Draw(t, "goes")
				row := &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: name, Labels: map[string]string{"env": env}, Generation: rev}}
				rev++
				done := make(chan struct{})
				steps <- func(s *board[*towlinev1.Cluster]) {
					defer close(done)
					switch old := rows[name]; {
					case goes && old != nil:
						delete(rows, name)
						s.take(eventDeleted, old, rev)
					case goes:
					case old == nil:
						rows[name] = row
						s.take(eventAdded, row, rev)
					default:
						rows[name] = row
						s.take(eventModified, row, rev)
					}
					s.take(eventSynced, nil, rev)
				}
				<-done
			}
			watch(rapid.IntRange(0, 3).Draw(t, "breaks after"))
		}
		watch(0)
		want := map[string]*towlinev1.Cluster{}
		for k, row := range rows {
			if match(row) {
				want[k] = row
			}
		}
		if !maps.Equal(known, want) {
			t.Errorf("it knows %v, want %v", known, want)
		}
	})
}

// A board that nobody watches costs nothing: it is looked at when somebody watches again, who waits for that look.
func TestBoardThatNobodyWatchesIsNotLookedAt(t *testing.T) {
	a := newAPI(t, func(w store.Writer) { labelled(w, "c1", "v0") })
	s, leave := a.watchClustersFrom(t, &towlinev1.WatchClustersRequest{})
	s.expect(t, eventAdded, "c1", "v0")
	token := (<-s.ch).GetResumeToken()
	_ = leave()
	b := a.clusterBoards.asked[""]
	for i := range 20 {
		env := fmt.Sprint("v", i+1)
		rev := a.change(t, func(w store.Writer) { labelled(w, "c1", env) })
		b.awaitRest(t)
		if _, _, looked := b.all(); looked >= rev {
			t.Fatalf("it was looked at at revision %d, of %d", looked, rev)
		}
		s, leave := a.watchClustersFrom(t, &towlinev1.WatchClustersRequest{ResumeToken: token})
		s.expect(t, eventModified, "c1", env)
		token = (<-s.ch).GetResumeToken()
		_ = leave()
	}
}

// awaitRest waits until the board waits for a watch.
func (s *board[T]) awaitRest(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); runtime.Gosched() {
		s.mu.Lock()
		rests := s.woken != nil
		s.mu.Unlock()
		if rests {
			return
		}
	}
	t.Fatal("it is looked at on and on")
}

// Boards that nobody watches stay for a while, and no more of them than a few.
func TestBoardsThatNobodyWatchesAreFew(t *testing.T) {
	a := newAPI(t, func(w store.Writer) { labelled(w, "c1", "prod") })
	for i := range 3 * maxLingering {
		s, leave := a.watchClustersFrom(t, &towlinev1.WatchClustersRequest{Name: fmt.Sprint("x", i)})
		s.expect(t, eventSynced, "", "")
		_ = leave()
	}
	a.clusterBoards.mu.Lock()
	defer a.clusterBoards.mu.Unlock()
	if n := len(a.clusterBoards.asked); n != maxLingering || a.clusterBoards.asked[fmt.Sprint("x", 3*maxLingering-1)] == nil {
		t.Errorf("%d boards stay", n)
	}
}

// A watch that names a revision lists what a write of that revision has made, also when others watch already.
func TestWatchHasWhatWasWritten(t *testing.T) {
	a := newAPI(t, func(w store.Writer) { labelled(w, "c1", "a") })
	first, leaveFirst := a.watchClustersFrom(t, &towlinev1.WatchClustersRequest{})
	first.expect(t, eventAdded, "c1", "a")
	first.expect(t, eventSynced, "", "")
	for i := range 20 {
		env := fmt.Sprint("v", i)
		rev := a.change(t, func(w store.Writer) { labelled(w, "c1", env) })
		s, leave := a.watchClustersFrom(t, &towlinev1.WatchClustersRequest{MinRevision: rev})
		s.expect(t, eventAdded, "c1", env)
		if m := <-s.ch; m.GetType() != eventSynced || m.GetRevision() < rev {
			t.Errorf("%v, want SYNCED at %d or later", m, rev)
		}
		_ = leave()
	}
	_ = leaveFirst()
}

// A revision that the store has not come to is of another store: nobody waits for it.
func TestRevisionOfAnotherStoreIsRefused(t *testing.T) {
	a := newAPI(t, func(w store.Writer) { labelled(w, "c1", "a") })
	rev := a.change(t, func(w store.Writer) { labelled(w, "c1", "b") })
	got, err := a.GetCluster(t.Context(), &towlinev1.GetClusterRequest{Name: "c1", MinRevision: rev})
	if err != nil || got.GetCluster().GetMetadata().GetLabels()["env"] != "b" {
		t.Errorf("%v, %v", got, err)
	}
	_, err = a.GetCluster(t.Context(), &towlinev1.GetClusterRequest{Name: "c1", MinRevision: rev + 1000})
	if !errors.Is(err, fleet.ErrStale) {
		t.Errorf("a read: %v", err)
	}
	if err := a.refusal(t, &towlinev1.WatchClustersRequest{MinRevision: rev + 1000}); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("a watch: %v", err)
	}
}

// Whoever wrote reads what they wrote, by every read; and every watch goes on after a break.
func TestEveryReadTakesARevision(t *testing.T) {
	files := []protoreflect.FileDescriptor{towlinev1.File_towline_v1_module_service_proto, towlinev1.File_towline_v1_cluster_service_proto,
		towlinev1.File_towline_v1_rollout_service_proto, towlinev1.File_towline_v1_tracker_service_proto, towlinev1.File_towline_v1_identity_service_proto}
	reads := regexp.MustCompile(`^(Get|List|Explain|Watch)`)
	n := 0
	for _, f := range files {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				if !reads.MatchString(string(m.Name())) || m.Name() == "GetServerInfo" {
					continue
				}
				n++
				if m.Input().Fields().ByName("min_revision") == nil {
					t.Errorf("%s takes no min_revision", m.FullName())
				}
				if strings.HasPrefix(string(m.Name()), "Watch") && (m.Input().Fields().ByName("resume_token") == nil || m.Output().Fields().ByName("resume_token") == nil) {
					t.Errorf("%s takes no resume_token, or gives none", m.FullName())
				}
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d reads", n)
	}
}
