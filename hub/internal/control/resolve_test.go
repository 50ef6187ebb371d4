package control

import (
	"context"
	"errors"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
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
