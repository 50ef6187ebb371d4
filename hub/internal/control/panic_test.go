package control

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// brokenSource and brokenSessions have bugs.
type brokenSource struct{}

func (brokenSource) Fetch(context.Context, *towlinev1.Source) (source.Artifact, error) {
	panic("of the source")
}

type brokenSessions struct{ noSessions }

func (brokenSessions) Connected(fleet.ClusterName) bool { panic("of the sessions") }

// A bug that a module runs into is an error of that module: what sets it off is stored, so that a hub which ended with it
// would end at each start.
func TestPanicIsAnErrorOfOneKey(t *testing.T) {
	key := store.ModuleKey(shop)
	for name, tc := range map[string]struct {
		begin func(*leader)
		run   func(*leader) (again bool)
		where string
	}{
		"source": {
			begin: func(l *leader) {
				l.o.Source = brokenSource{}
				pending := rolloutRecord(1, string(rollout.Pending))
				pending.Rollout.Revision = 0
				l.put(func(w store.Writer) {
					w.Put(store.ModuleKey(shop), moduleRecord())
					w.Put(store.RolloutKey(shop, 1), pending)
				})
			},
			run:   func(l *leader) bool { return l.runResolve(l.t.Context(), key) > 0 },
			where: "brokenSource.Fetch",
		},
		"rollout": {
			begin: func(l *leader) {
				l.fleetOf("a")
				l.state(shop).reset()
				l.o.Sessions = brokenSessions{}
			},
			run:   func(l *leader) bool { return l.runModule(l.t.Context(), key) > 0 },
			where: "brokenSessions.Connected",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			var log bytes.Buffer
			l.o.Log = slog.New(slog.NewTextHandler(&log, nil))
			tc.begin(l)
			for range 2 {
				if !tc.run(l) {
					t.Error("it is not tried again")
				}
			}
			if !strings.Contains(log.String(), tc.where) {
				t.Errorf("the log does not say where it was:\n%s", log.String())
			}
			l.o.Source, l.o.Sessions = oneFile{}, noSessions{}
			if tc.run(l) || l.Trouble(shop) != nil {
				t.Errorf("without the bug it does not go on: %v", l.Trouble(shop))
			}
		})
	}
}
