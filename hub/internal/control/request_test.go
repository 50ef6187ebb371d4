package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/rpc"
)

var external = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}

// externalOf has another program assign the shop, of which there are two revisions, to clusters.
func (l *leader) externalOf(clusters ...string) {
	l.t.Helper()
	l.put(func(w store.Writer) {
		m := &storev1.ModuleRecord{Module: moduleRecord().GetModule()}
		m.Module.Metadata.Uid, m.Module.Spec.Rollout = "first", external
		w.Put(store.ModuleKey(shop), m)
		for n := int64(1); n <= 2; n++ {
			w.Put(store.RevisionKey(shop, n), l.revision(n))
			ro := rolloutRecord(n, string(rollout.Succeeded))
			ro.Rollout.Strategy = external
			w.Put(rolloutKey(shop, ro), ro)
		}
		for _, c := range clusters {
			w.Put(store.ClusterKey(fleet.ClusterName(c)), clusterRecord(c))
		}
	})
}

// asks records requests, one after the other, as the API does.
func (l *leader) asks(list ...*storev1.RequestRecord) {
	l.t.Helper()
	for _, q := range list {
		if q.ModuleUid == "" {
			q.ModuleUid = "first"
		}
		if q.Expires == nil {
			q.Expires = timestamppb.New(time.Now().Add(time.Minute))
		}
		l.put(func(w store.Writer) { w.Put(store.RequestKey(shop, q.GetRequestId()), q) })
	}
}

func give(id string, revision int64, clusters ...string) *storev1.RequestRecord {
	return &storev1.RequestRecord{RequestId: id, Revision: revision, Clusters: clusters, Said: []byte(id)}
}

func take(id string, clusters ...string) *storev1.RequestRecord {
	return &storev1.RequestRecord{RequestId: id, Leave: true, Clusters: clusters, Said: []byte(id)}
}

// answer is what came of a request, and whether that is known; it must not be there any more.
func (l *leader) answer(id string) (a *storev1.AnswerRecord, refused error) {
	l.t.Helper()
	l.read(func(r store.Reader) {
		if _, found := r.Get(store.RequestKey(shop, id)); found {
			l.t.Errorf("%s is still asked for", id)
		}
		a, _, _ = store.Get[*storev1.AnswerRecord](r, store.AnswerKey(shop, id))
	})
	if len(a.GetRefusal()) > 0 {
		return a, rpc.Unpack(a.GetRefusal())
	}
	return a, nil
}

// What is asked for is done in the order in which it was asked, whatever the requests are called, and each is done and answered at once.
func TestRequestsAreCarriedOutInTheirOrder(t *testing.T) {
	l := newLeader(t)
	l.externalOf("a", "b")
	l.asks(give("z", 1, "a", "b"), give("y", 2, "a"), take("x", "b"))
	l.must(l.reconcileModule(t.Context(), shop))
	first, err := l.answer("z")
	l.must(err)
	second, err := l.answer("y")
	l.must(err)
	if s := l.desired("a").GetSync(); s.GetRevision() != 2 || s.GetGeneration() != second.GetGeneration() || second.GetGeneration() <= first.GetGeneration() {
		t.Errorf("a has %v; answered %v, %v", s, first, second)
	}
	if b := l.desired("b"); b.GetTombstone().GetGeneration() <= second.GetGeneration() {
		t.Errorf("b: %v", b)
	}
	l.read(func(r store.Reader) {
		_, done, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey("a", shop))
		_, said, _ := store.Get[*storev1.AnswerRecord](r, store.AnswerKey(shop, "y"))
		if done.ModRevision != said.ModRevision {
			t.Errorf("done at %d, answered at %d", done.ModRevision, said.ModRevision)
		}
	})
}

// One request takes as many clusters as a call may name.
func TestRequestOfManyClusters(t *testing.T) {
	l := newLeader(t)
	var clusters []string
	for n := range 50 {
		clusters = append(clusters, string(clusterName(n)))
	}
	l.externalOf(clusters...)
	l.asks(give("all", 1, clusters...))
	l.must(l.reconcileModule(t.Context(), shop))
	if _, err := l.answer("all"); err != nil || l.desired("c49") == nil {
		t.Errorf("%v", err)
	}
	l.asks(take("none", clusters...))
	l.must(l.reconcileModule(t.Context(), shop))
	if _, err := l.answer("none"); err != nil || l.desired("c49").GetTombstone() == nil {
		t.Errorf("%v", err)
	}
}

// What cannot be done in one cluster is done in none, and said, with what it is about; the next request does not suffer from it.
func TestRequestIsDoneInAllClustersOrInNone(t *testing.T) {
	refusals := map[string]struct {
		asked     *storev1.RequestRecord
		meanwhile func(l *leader, w store.Writer)
		kind      error
		about     fleet.Object
		says      string
	}{
		"cordoned": {give("q", 2, "a", "b"), func(l *leader, w store.Writer) {
			c := clusterRecord("b")
			c.Cluster.Spec = &towlinev1.ClusterSpec{Cordoned: new(true)}
			w.Put(store.ClusterKey("b"), c)
		}, fleet.ErrPrecondition, fleet.ClusterName("b").Object(), "cluster b is cordoned"},
		"removing": {give("q", 2, "a", "b"), func(l *leader, w store.Writer) {
			c := clusterRecord("b")
			c.Removing = "keep"
			w.Put(store.ClusterKey("b"), c)
		}, fleet.ErrPrecondition, fleet.ClusterName("b").Object(), "cluster b is being removed"},
		"gone": {give("q", 2, "a", "b"), func(l *leader, w store.Writer) { w.Delete(store.ClusterKey("b")) },
			fleet.ErrPrecondition, fleet.ClusterName("b").Object(), "cluster b is not selected"},
		"elsewhere": {give("q", 2, "a", "b"), func(l *leader, w store.Writer) {
			m, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(shop))
			next := proto.CloneOf(m)
			next.Module.Spec.Placement = &towlinev1.Placement{Clusters: []string{"a"}}
			w.Put(store.ModuleKey(shop), next)
		}, fleet.ErrPrecondition, fleet.ClusterName("b").Object(), "cluster b is not selected"},
		"without the value": {give("q", 3, "a", "b"), func(l *leader, w store.Writer) {
			rev := l.revision(3)
			rev.Revision.Spec.Bindings = []*towlinev1.Binding{{Name: "REGION", ClusterLabel: "region"}}
			w.Put(store.RevisionKey(shop, 3), rev)
		}, fleet.ErrInvalid, fleet.Object{}, "REGION"},
		"no revision": {give("q", 9, "a", "b"), func(*leader, store.Writer) {},
			fleet.ErrNotFound, fleet.Object{Kind: "Revision", Name: "default/shop/9"}, "no revision r9"},
		"lost content": {give("q", 3, "a", "b"), func(l *leader, w store.Writer) {
			rev := l.revision(3)
			rev.Bundle = fleet.DigestOf([]byte("gone")).Bytes()
			w.Put(store.RevisionKey(shop, 3), rev)
		}, fleet.ErrNotFound, fleet.Object{}, "shop r3"},
	}
	for _, name := range slices.Sorted(maps.Keys(refusals)) {
		tc := refusals[name]
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.externalOf("a", "b")
			l.asks(tc.asked)
			l.put(func(w store.Writer) { tc.meanwhile(l, w) })
			l.asks(give("next", 1, "a"))
			l.must(l.reconcileModule(t.Context(), shop))
			_, err := l.answer("q")
			if !errors.Is(err, tc.kind) || fleet.HintOf(err).About != tc.about || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("refused: %v, about %v", err, fleet.HintOf(err).About)
			}
			if a := l.desired("a").GetSync(); a.GetRevision() != 1 || l.desired("b") != nil {
				t.Errorf("a %v, b %v", a, l.desired("b"))
			}
		})
	}
}

// A module that is not another program's any more, or not the one that was asked about, is left alone, and whoever asked is told.
func TestRequestOfAModuleThatChanged(t *testing.T) {
	own := func(w store.Writer, m *storev1.ModuleRecord) { m.Module.Spec.Rollout = nil }
	for name, tc := range map[string]struct {
		change func(w store.Writer, m *storev1.ModuleRecord)
		says   string
	}{
		"the hub's": {own, "module shop: its rollouts are made by the hub"},
		"deleted":   {func(_ store.Writer, m *storev1.ModuleRecord) { m.Deleting = fleet.DeleteDelete }, "module shop is being deleted"},
		"another":   {func(_ store.Writer, m *storev1.ModuleRecord) { m.Module.Metadata.Uid = "second" }, "is another one by now"},
		"to be made": {func(w store.Writer, m *storev1.ModuleRecord) {
			ro := rolloutRecord(2, string(rollout.Progressing)) // of the hub's own, until the put has a revision
			w.Put(rolloutKey(shop, ro), ro)
			ro = rolloutRecord(3, string(rollout.Pending))
			ro.Rollout.Revision = 0
			w.Put(rolloutKey(shop, ro), ro)
		}, "the hub goes on with rollout shop/2"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.externalOf("a", "b")
			l.put(func(w store.Writer) { w.Put(store.DesiredKey("b", shop), &storev1.DesiredRecord{Sync: l.sync(1)}) })
			l.asks(give("q", 2, "a"), take("p", "b"))
			l.put(func(w store.Writer) {
				m, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(shop))
				next := proto.CloneOf(m)
				tc.change(w, next)
				w.Put(store.ModuleKey(shop), next)
			})
			l.must(l.answerRequests(t.Context(), shop))
			for _, id := range []string{"q", "p"} {
				if _, err := l.answer(id); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("%s: %v", id, err)
				}
			}
			if l.desired("a") != nil || l.desired("b").GetSync() == nil {
				t.Errorf("a %v, b %v", l.desired("a"), l.desired("b"))
			}
		})
	}
}

// When its module is gone nothing is left of a request, nor of an answer.
func TestRequestOfAModuleThatIsGone(t *testing.T) {
	l := newLeader(t)
	l.externalOf("a")
	l.asks(give("done", 1, "a"))
	l.must(l.reconcileModule(t.Context(), shop))
	l.put(func(w store.Writer) {
		m, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(shop))
		next := proto.CloneOf(m)
		next.Deleting = fleet.DeleteDelete
		w.Put(store.ModuleKey(shop), next)
		w.Delete(store.DesiredKey("a", shop))
	})
	l.must(l.reconcileModule(t.Context(), shop))
	l.asks(give("late", 1, "a"))
	l.must(l.reconcileModule(t.Context(), shop))
	l.read(func(r store.Reader) {
		for _, prefix := range []string{store.ModulePrefix, store.RequestPrefix, store.AnswerPrefix, store.DesiredPrefix} {
			r.Scan(prefix, func(e store.Entry) bool {
				t.Errorf("%s is left", e.Key)
				return true
			})
		}
	})
}

// A request whose time is over was told to have come to nothing, and comes to nothing: when a leader comes late, or the store is put back.
func TestRequestThatIsOverIsNotCarriedOut(t *testing.T) {
	l := newLeader(t)
	l.externalOf("a")
	q := give("q", 1, "a")
	q.Expires = timestamppb.New(time.Now())
	l.asks(q)
	l.must(l.reconcileModule(t.Context(), shop))
	if a, _ := l.answer("q"); a != nil || l.desired("a") != nil {
		t.Errorf("answered %v, assigned %v", a, l.desired("a"))
	}
}

// A request that cannot be read is not carried out, and keeps nothing else back.
func TestDamagedRequestStopsNothingElse(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.externalOf("a")
	l.asks(give("q", 1, "a"), give("next", 2, "a"))
	l.damage(b, store.RequestKey(shop, "q"))
	l.must(l.reconcileModule(t.Context(), shop))
	if _, err := l.answer("next"); err != nil || l.desired("a").GetSync().GetRevision() != 2 {
		t.Errorf("the next: %v, %v", err, l.desired("a"))
	}
	if a, _ := l.answer("q"); a != nil {
		t.Errorf("what nobody can read is answered: %v", a)
	}
}

// brokenBlobs have a bug.
type brokenBlobs struct{ store.Blobs }

func (brokenBlobs) Get(context.Context, fleet.Digest) ([]byte, error) { panic("of the blobs") }

// A bug that a request runs into is that request's, which is refused: it would come again with each start of the hub.
func TestRequestThatPanicsIsRefused(t *testing.T) {
	l := newLeader(t)
	l.externalOf("a")
	l.put(func(w store.Writer) { w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(1)}) })
	l.o.Bundles = bundle.New(brokenBlobs{l.o.Store.Blobs()})
	l.asks(give("q", 2, "a"), take("next", "other"))
	l.must(l.answerRequests(t.Context(), shop))
	if _, err := l.answer("q"); err == nil || !strings.Contains(err.Error(), "bug in the hub") {
		t.Errorf("refused: %v", err)
	}
	if _, err := l.answer("next"); err != nil {
		t.Errorf("the next: %v", err)
	}
}

// A leader that is none any more carries nothing out; the next one does, once.
func TestNextLeaderCarriesOutTheRequest(t *testing.T) {
	l := newLeader(t)
	l.externalOf("a")
	l.asks(give("q", 1, "a"))
	l.must(l.lead.Resign(t.Context()))
	if err := l.answerRequests(t.Context(), shop); !errors.Is(err, fleet.ErrStale) || l.desired("a") != nil {
		t.Errorf("by a leader of before: %v, %v", err, l.desired("a"))
	}
	lead, err := l.o.Campaign(t.Context())
	l.must(err)
	l.lead = lead
	l.must(l.reconcileModule(t.Context(), shop))
	_, err = l.answer("q")
	l.must(err)
	before := l.desired("a")
	l.must(l.reconcileModule(t.Context(), shop))
	if now := l.desired("a"); now.GetSync().GetRevision() != 1 || !proto.Equal(before, now) {
		t.Errorf("once %v, then %v", before, now)
	}
}

// awayBlobs are contents that cannot be read in this moment.
type awayBlobs struct{ store.Blobs }

func (awayBlobs) Get(context.Context, fleet.Digest) ([]byte, error) {
	return nil, fleet.Errorf(fleet.ErrUnavailable, "the store is away")
}

// What the hub cannot do in this moment is no answer, and what was asked for later is not done first.
func TestRequestWaitsForTheStore(t *testing.T) {
	l := newLeader(t)
	l.externalOf("a")
	sound := l.o.Bundles
	l.o.Bundles = bundle.New(awayBlobs{l.o.Store.Blobs()})
	l.asks(give("q", 1, "a"), take("next", "a"))
	if err := l.answerRequests(t.Context(), shop); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	l.read(func(r store.Reader) {
		for _, id := range []string{"q", "next"} {
			if _, found := r.Get(store.RequestKey(shop, id)); !found {
				t.Errorf("%s is not asked for any more", id)
			}
		}
	})
	l.o.Bundles = sound
	l.must(l.answerRequests(t.Context(), shop))
	if a := l.desired("a"); a.GetTombstone() == nil {
		t.Errorf("a: %v", a)
	}
}

// fillable is a backend that may be full.
type fillable struct {
	backend.Backend
	full bool
}

func (f *fillable) Full() error {
	if f.full {
		return fleet.Errorf(fleet.ErrExhausted, "the store is full")
	}
	return nil
}

// A store that is full takes no assignment, and says so; what makes room is done.
func TestRequestsOfAFullStore(t *testing.T) {
	b := &fillable{Backend: memory.New()}
	l := newLeaderOn(t, b)
	l.externalOf("a", "b")
	l.put(func(w store.Writer) { w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(1)}) })
	l.asks(give("more", 2, "b"), take("less", "a"))
	b.full = true
	l.must(l.answerRequests(t.Context(), shop))
	if _, err := l.answer("more"); !errors.Is(err, fleet.ErrExhausted) || l.desired("b") != nil {
		t.Errorf("more: %v, %v", err, l.desired("b"))
	}
	if _, err := l.answer("less"); err != nil || l.desired("a").GetTombstone() == nil {
		t.Errorf("less: %v, %v", err, l.desired("a"))
	}
}

// Whoever takes a request back in the moment in which it is carried out finds the answer, or it is not carried out.
func TestRequestIsTakenBackOrCarriedOut(t *testing.T) {
	l := newLeader(t)
	l.externalOf("a")
	l.asks(give("q", 1, "a"))
	var open store.Entry
	l.read(func(r store.Reader) { open, _ = r.Get(store.RequestKey(shop, "q")) })
	l.put(func(w store.Writer) { w.Delete(open.Key) })
	l.must(l.answerRequest(t.Context(), shop, open))
	l.asks(give("q", 2, "a")) // asked anew
	l.must(l.answerRequest(t.Context(), shop, open))
	over := proto.CloneOf(open.Value.(*storev1.RequestRecord))
	over.Expires = timestamppb.New(time.Now())
	open.Value = over
	l.must(l.answerRequest(t.Context(), shop, open))
	l.read(func(r store.Reader) {
		if _, found := r.Get(open.Key); !found || l.desired("a") != nil {
			t.Errorf("asked anew: %t; assigned: %v", found, l.desired("a"))
		}
	})
}

// What another program assigns does not get around a freeze, and takes nothing from a cluster of which the labels are lost: nobody knows
// who is to have what would be let go.
func TestRequestsRespectFreezesAndDamage(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.externalOf("a", "b")
	l.put(func(w store.Writer) {
		w.Put(store.HoldPrefix+"freeze-1", &storev1.HoldRecord{Hold: &towlinev1.Hold{Kind: record.HoldFreeze, Cluster: "a"}})
		w.Put(store.DesiredKey("b", shop), &storev1.DesiredRecord{Sync: l.sync(1)})
	})
	l.damage(b, store.ClusterKey("b"))
	l.asks(give("frozen", 1, "a"), take("damaged", "b"), give("to damaged", 2, "b"), take("sound", "a"))
	l.must(l.answerRequests(t.Context(), shop))
	if _, err := l.answer("frozen"); err != nil {
		t.Errorf("%v", err)
	}
	if a := l.desired("a"); !a.GetTombstone().GetHold() {
		t.Errorf("without its hold: %v", a)
	}
	for _, id := range []string{"damaged", "to damaged"} {
		if _, err := l.answer(id); !errors.Is(err, fleet.ErrCorrupt) {
			t.Errorf("%s: %v", id, err)
		}
	}
	if d := l.desired("b"); d.GetSync().GetRevision() != 1 {
		t.Errorf("it is taken away: %v", d)
	}
}

// An answer is kept as long as somebody may ask for it again.
func TestAnswersAreTrimmed(t *testing.T) {
	l := newLeader(t)
	l.externalOf("a")
	now := time.Now()
	l.put(func(w store.Writer) {
		for i, age := range []time.Duration{time.Minute, 2 * time.Hour, 8 * 24 * time.Hour} {
			for _, id := range []string{"", "x"} {
				w.Put(store.AnswerKey(shop, fmt.Sprintf("%d%s", i, id)), &storev1.AnswerRecord{RequestId: id, At: timestamppb.New(now.Add(-age))})
			}
		}
	})
	l.must(l.trim(t.Context()))
	var left []string
	l.read(func(r store.Reader) {
		r.Scan(store.AnswerPrefix, func(e store.Entry) bool {
			left = append(left, strings.TrimPrefix(e.Key, store.AnswersOf(shop)))
			return true
		})
	})
	if !slices.Equal(left, []string{"0", "0x", "1x"}) {
		t.Errorf("left %q", left)
	}
}
