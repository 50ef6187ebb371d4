package hub_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// A catalog is looked at by its put, by a push that changes a module, brings one and lets one go, and by its deletion with all it has; the hub is
// killed before or after any commit of that. In the end each module is there once, as the files say, or is gone, and nothing of another one went.
func TestCatalogWhereverTheHubIsKilled(t *testing.T) {
	for what, does := range map[string]func(w *catalogWorld){
		"put": func(w *catalogWorld) {
			w.push("a=1", "b=1")
			w.putCatalog(w.catalog())
			w.has("a/1 b/1 mine/1", "1")
		},
		"push": func(w *catalogWorld) {
			w.push("a=2", "c=1")
			_, _ = w.resyncs(false) // a kill may end it
			if w.modules() != "a c mine" {
				_, err := w.resyncs(false)
				must(w.t, err)
			}
			w.has("a/2 c/1 mine/1", "2")
		},
		"deletion": func(w *catalogWorld) {
			_, err := w.Catalogs.DeleteCatalog(w.ctx, &towlinev1.DeleteCatalogRequest{Name: "team", Cascade: true})
			if status.Code(err) != codes.NotFound { // a kill came after it
				must(w.t, err)
			}
			w.eventually(func() bool {
				_, err := w.Catalogs.GetCatalog(w.ctx, &towlinev1.GetCatalogRequest{Name: "team"})
				return status.Code(err) == codes.NotFound
			})
			w.has("mine/1", "")
		},
	} {
		for at, killed := 1, true; killed && at <= killsOfACatalog; at++ {
			t.Run(fmt.Sprintf("%s, commit %d", what, at), func(t *testing.T) {
				w := catalogWorldOn(newMortalWorld(t))
				w.put(module("mine", map[string]string{"a.yaml": strings.Replace(configMapText("1"), "web", "mine", 1)}))
				if what != "put" {
					w.push("a=1", "b=1")
					w.putCatalog(w.catalog())
					w.has("a/1 b/1 mine/1", "1")
				}
				l, next := w.mortal.now()
				revived := make(chan struct{})
				go func() {
					defer close(revived)
					select {
					case <-w.ctx.Done():
					case <-l.dead:
						w.stopHub()
						w.start()
						w.mortal.lives()
					}
				}()
				l.after(at, at%2 == 0)
				does(w)
				l.after(-1, false)
				if killed = l.isDead(); killed {
					<-next
					<-revived
				}
				got, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
				must(t, err)
				if len(got.GetHolds()) > 0 {
					t.Errorf("a person is asked: %v", got.GetHolds())
				}
			})
		}
	}
}

// killsOfACatalog is how many commits a look and what follows of it take at most.
const killsOfACatalog = 60

// has waits until there are these rollouts, of modules of which there is no other, all have succeeded, the agent has what they are of, and the first one
// this value.
func (w *catalogWorld) has(rollouts, value string) {
	w.t.Helper()
	w.eventually(func() bool {
		all, err := w.Modules.ListModules(w.ctx, &towlinev1.ListModulesRequest{})
		must(w.t, err)
		var names []string
		for _, m := range all.GetModules() {
			names = append(names, m.GetStatus().GetRollout())
			if m.GetStatus().GetHealthy() != 1 || m.GetStatus().GetRolloutState() != "Succeeded" {
				return false
			}
		}
		var holds []string
		for _, s := range w.agents["a"].Held().Syncs {
			holds = append(holds, fmt.Sprintf("%s/%d", s.Module.Name, s.Revision))
		}
		return strings.Join(names, " ") == rollouts && strings.Join(holds, " ") == rollouts && (value == "" || w.value("a") == value)
	})
}
