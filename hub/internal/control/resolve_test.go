package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// fullStore cannot take blobs.
type fullStore struct{ store.Store }

func (s fullStore) Blobs() store.Blobs { return fullBlobs{s.Store.Blobs()} }

type fullBlobs struct{ store.Blobs }

func (fullBlobs) Put(context.Context, ...[]byte) ([]fleet.Digest, error) {
	return nil, fleet.Errorf(fleet.ErrUnavailable, "store is away")
}

type oneFile struct{}

func (oneFile) Fetch(context.Context, string, *towlinev1.Source) (source.Artifact, error) {
	mustBeOutside()
	return source.Artifact{Files: map[string][]byte{"a.yaml": []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: web, namespace: default}}")}}, nil
}

// A store that is away for a moment fails no rollout; a source that is away does.
func TestOnlyTheSourceFailsARollout(t *testing.T) {
	l := newLeader(t)
	pending := rolloutRecord(1, string(rollout.Pending))
	pending.Rollout.Revision = 0
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(rolloutKey(shop, pending), pending)
	})
	state := func() (s string) {
		l.read(func(r store.Reader) {
			ro := rollouts.Get(r, shop, 1)
			s = ro.GetRollout().GetStatus().GetState()
		})
		return s
	}
	healthy := l.o.Store
	l.o.Store, l.o.Source = fullStore{healthy}, oneFile{}
	if err := l.resolve(t.Context(), shop); !errors.Is(err, fleet.ErrUnavailable) || state() != string(rollout.Pending) {
		t.Errorf("the store is away: %v, rollout %s", err, state())
	}
	l.o.Source = noSource{}
	l.o.Store = healthy
	if l.resolves(); state() != string(rollout.Failed) {
		t.Errorf("the source is away: rollout %s", state())
	}
}

// busy is a render worker that does not start until it is told to.
type busy struct{ starts bool }

func (b *busy) Build(context.Context, render.Job) (render.Built, error) {
	if !b.starts {
		return render.Built{}, fleet.Errorf(fleet.ErrUnavailable, "render worker: no process can be started")
	}
	return render.Built{Texts: map[string][]byte{"a": []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: web, namespace: default}}")}}, nil
}

// A render worker that does not start is the hub's own trouble: no put fails by it, what a queued put lists is not known, and a look says
// nothing of the source.
func TestRenderWorkerThatDoesNotStartIsNoFaultOfTheSource(t *testing.T) {
	l := newLeader(t)
	engine := &busy{}
	l.o.Engine = engine
	rec, pending := moduleRecord(), rolloutRecord(1, string(rollout.Pending))
	rec.Module.Spec.Source.Inline.Files = map[string]string{"kustomization.yaml": "resources: []"}
	rec.Module.Spec.Package = &towlinev1.Package{Kustomize: &towlinev1.KustomizePackage{}}
	pending.Rollout.Revision = 0
	l.o.Source = oneFile{}
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), rec)
		w.Put(rolloutKey(shop, pending), pending)
	})
	if err := l.resolve(t.Context(), shop); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("the put: %v", err)
	}
	m, err := wire.ModuleFromProto(rec.GetModule())
	l.must(err)
	if d := l.Draft(t.Context(), m, rec, 1); !d.Coming || d.Failed || d.Known {
		t.Errorf("what it lists: %+v", d)
	}
	looked := &verdict{s: &sight{ref: shop, rec: rec, m: m, memory: &storev1.FollowRecord{}}, next: &storev1.FollowRecord{}}
	if err := l.judge(t.Context(), looked); err == nil || errors.As(err, new(*lookError)) || looked.next.GetResolvedRef() != "" {
		t.Errorf("a look: %v, seen %q", err, looked.next.GetResolvedRef())
	}
	engine.starts = true
	l.resolves()
	if l.newestRevision() == nil {
		t.Error("it starts, and there is no revision")
	}
}

// standstill is a render worker that is stopped after half a minute in which it got no processor time, until the machine has some.
type standstill struct{ busy }

func (s *standstill) Build(ctx context.Context, job render.Job) (render.Built, error) {
	if s.starts {
		return s.busy.Build(ctx, job)
	}
	<-time.After(30 * time.Second)
	return render.Built{}, fleet.Errorf(fleet.ErrStopped, "package: rendering was stopped")
}

// TestRenderThatIsStopped: what is stopped in the middle each time is tried a few times, the rollout fails and says why, and the next one is tried anew. A
// look at the source says it at once, for the next look tries it again.
func TestRenderThatIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeader(t)
		engine := &standstill{}
		l.o.Engine, l.o.Source = engine, oneFile{}
		rec := moduleRecord()
		rec.Module.Spec.Package = &towlinev1.Package{Kustomize: &towlinev1.KustomizePackage{}}
		begins := func(n int64) {
			pending := rolloutRecord(n, string(rollout.Pending))
			pending.Rollout.Revision = 0
			l.put(func(w store.Writer) {
				w.Put(store.ModuleKey(shop), rec)
				w.Put(rolloutKey(shop, pending), pending)
			})
		}
		begins(1)
		began, builds := time.Now(), 0
		for again := time.Nanosecond; again > 0; {
			<-time.After(again)
			again = l.runResolve(t.Context(), store.ModuleKey(shop))
			if builds++; builds > 20 {
				t.Fatalf("tried %d times in %s", builds, time.Since(began))
			}
		}
		l.must(l.cutResolved(t.Context(), shop, l.state(shop)))
		l.read(func(r store.Reader) {
			ro := rollouts.Get(r, shop, 1).GetRollout().GetStatus()
			if ro.GetState() != string(rollout.Failed) || !strings.Contains(ro.GetFacts().GetDetail(), "rendering was stopped; it was tried 5 times") || builds != 5 || time.Since(began) > 10*time.Minute {
				t.Errorf("%s: %s, after %d tries in %s", ro.GetState(), ro.GetFacts().GetDetail(), builds, time.Since(began))
			}
		})
		m, err := wire.ModuleFromProto(rec.GetModule())
		l.must(err)
		s := &sight{ref: shop, rec: rec, m: m, memory: &storev1.FollowRecord{}}
		if _, err := l.look(t.Context(), s, nil); !errors.As(err, new(*lookError)) {
			t.Errorf("a look: %v", err)
		}
		begins(2)
		if again := l.runResolve(t.Context(), store.ModuleKey(shop)); again != lastRetry {
			t.Errorf("the next one is tried again after %s", again)
		}
		engine.starts = true
		l.resolves()
		if l.newestRevision() == nil {
			t.Error("it is not stopped any more, and there is no revision")
		}
	})
}

// A put that is bound to a plan cuts a revision only while its source comes to that.
func TestAPutComesToItsPlanOrToNothing(t *testing.T) {
	for _, c := range []struct {
		bound string
		state rollout.RunState
	}{{"", rollout.Succeeded}, {"plan", rollout.Succeeded}, {"another", rollout.Failed}} {
		t.Run(c.bound, func(t *testing.T) {
			l := newLeader(t)
			l.o.Source = oneFile{}
			rec := moduleRecord()
			m, err := wire.ModuleFromProto(rec.GetModule())
			if err != nil {
				t.Fatal(err)
			}
			spec, err := wire.SpecDigest(rec.GetModule().GetSpec())
			if err != nil {
				t.Fatal(err)
			}
			proposal, err := l.Propose(t.Context(), m, spec)
			if err != nil {
				t.Fatal(err)
			}
			pending := rolloutRecord(1, string(rollout.Pending))
			pending.Rollout.Revision = 0
			if pending.Rollout.Plan = c.bound; c.bound == "plan" {
				pending.Rollout.Plan = proposal.Plan.String()
			}
			l.put(func(w store.Writer) {
				w.Put(store.ModuleKey(shop), rec)
				w.Put(rolloutKey(shop, pending), pending)
			})
			l.resolves()
			l.read(func(r store.Reader) {
				if ro := rollouts.Get(r, shop, 1); rollouts.StateOf(ro) != c.state {
					t.Errorf("the rollout is %s, want %s: %v", rollouts.StateOf(ro), c.state, ro.GetRollout().GetStatus())
				}
			})
		})
	}
}
