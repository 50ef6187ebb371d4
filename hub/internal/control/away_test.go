package control

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// awayUntil is a server that is away until a time.
type awayUntil struct {
	back  time.Time
	tries int
}

// Fetch implements Source.
func (s *awayUntil) Fetch(ctx context.Context, project string, src *towlinev1.Source) (source.Artifact, error) {
	s.tries++
	if time.Now().Before(s.back) {
		return source.Artifact{}, &source.AwayError{Host: "charts.example.com", Err: fleet.Errorf(fleet.ErrUnavailable, "source https://charts.example.com: cannot be reached")}
	}
	return oneFile{}.Fetch(ctx, project, src)
}

// TestServerThatIsAway: the rollout waits, says for whom and since when, goes on by itself when the server is back, and fails after a
// day. There is no revision before.
func TestServerThatIsAway(t *testing.T) {
	for _, away := range []time.Duration{90 * time.Minute, 48 * time.Hour} {
		t.Run(away.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLeader(t)
				begun := time.Now()
				server := &awayUntil{back: begun.Add(away)}
				l.o.Source = server
				rec, pending := moduleRecord(), rolloutRecord(1, string(rollout.Pending))
				rec.Module.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: "https://charts.example.com/a.yaml"}}
				pending.Rollout.Revision = 0
				l.put(func(w store.Writer) {
					w.Put(store.ModuleKey(shop), rec)
					w.Put(rolloutKey(shop, pending), pending)
				})
				look := func() (state, reason string, revised bool) {
					l.read(func(r store.Reader) {
						ro := rollouts.Get(r, shop, 1).GetRollout()
						_, revised = r.Get(store.RevisionKey(shop, 1))
						state, reason = ro.GetStatus().GetState(), ro.GetStatus().GetReason()
					})
					return state, reason, revised
				}
				for again := time.Nanosecond; again > 0; {
					<-time.After(again)
					if again = l.runFetch(t.Context(), store.ModuleKey(shop)); again == 0 {
						break
					}
					trouble, ok := l.Trouble(shop).(*source.AwayError)
					if state, _, revised := look(); state != string(rollout.Pending) || revised || !ok || trouble.Host != "charts.example.com" || trouble.Since.Sub(begun) > time.Minute {
						t.Fatalf("after %s: %s, a revision: %v, trouble %v", time.Since(begun), state, revised, l.Trouble(shop))
					}
				}
				passed := time.Since(begun)
				l.must(l.cutResolved(t.Context(), shop, l.state(shop)))
				state, reason, revised := look()
				if away < maxAway && (passed < away || passed > away+time.Minute || state == string(rollout.Failed) || !revised || l.Trouble(shop) != nil || server.tries > 500) {
					t.Errorf("after %s and %d tries: %s, a revision: %v", passed, server.tries, state, revised)
				}
				if away > maxAway && (passed > maxAway+time.Minute || state != string(rollout.Failed) || !strings.Contains(reason, "SourceFailed") || revised) {
					t.Errorf("after %s: %s %s, a revision: %v", passed, state, reason, revised)
				}
			})
		})
	}
}
