package worker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// slowly has the create of one ConfigMap arrive later than anybody waits for it.
func (r *rig) slowly(name string) (sent <-chan struct{}, land func()) {
	sent, arrive := r.late(http.MethodPatch, name)
	return sent, func() { arrive() }
}

// late has a request to one ConfigMap arrive later than anybody waits for it, as where a webhook holds it: whoever sent it
// has no answer. It is sent when sent is closed; land lets it arrive, and comes back with its status when it was carried out.
func (r *rig) late(method, name string) (sent <-chan struct{}, land func() int) {
	return r.lateAnswered(method, name, errors.New("connection reset by a test"))
}

// lateAnswered is late with what is answered meanwhile.
func (r *rig) lateAnswered(method, name string, meanwhile error) (sent <-chan struct{}, land func() int) {
	held, release, landed := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	var once sync.Once
	r.count.upset(func(q *http.Request) error {
		if q.Method != method || !strings.HasSuffix(q.URL.Path, "/configmaps/"+name) {
			return nil
		}
		once.Do(func() {
			body, _ := io.ReadAll(q.Body)
			late := q.Clone(context.Background())
			late.Body = io.NopCloser(bytes.NewReader(body))
			close(held)
			go func() {
				<-release
				answer, err := r.count.next.RoundTrip(late)
				if err != nil {
					landed <- 0
					return
				}
				_ = answer.Body.Close()
				landed <- answer.StatusCode
			}()
		})
		return meanwhile
	})
	return held, func() int { close(release); return <-landed }
}

// A create that nobody heard the answer of may be carried out later than a look that does not find the object: its module is not
// gone before no write can arrive any more. The agent may have been killed meanwhile, or its machine.
func TestWriteThatArrivesLateLeavesNothingBehind(t *testing.T) {
	for name, tt := range map[string]struct{ killed, made, noted, dropped bool }{
		"the agent lives":                                    {},
		"another one takes over":                             {killed: true},
		"another one takes over, of a made one":              {killed: true, made: true},
		"another one takes over, once the removal had begun": {killed: true, made: true, noted: true},
		"another one takes over, once it was to be dropped":  {killed: true, made: true, noted: true, dropped: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.landing = time.Hour
			r.restart()
			one := r.bundle("shop", nil, configMap("a", "k: v"))
			if tt.made {
				one = r.bundle("shop", nil, configMap("a", "k: v"), configMap("late", "k: v"))
			}
			r.set([]fleet.Sync{one})
			r.ready(one)
			sent, land := r.slowly("late")
			if tt.made {
				r.delete("v1", "configmaps", "late")
			} else {
				r.set([]fleet.Sync{one, r.bundle("slow", nil, configMap("late", "k: v"))})
			}
			module := map[bool]string{true: "shop", false: "slow"}[tt.made]
			<-sent
			order := func() {
				if tt.dropped {
					r.set([]fleet.Sync{r.bundle("shop", nil, configMap("a", "k: v"))})
				} else {
					r.set(nil, r.tombstone("shop", fleet.DeleteDelete), r.tombstone("slow", fleet.DeleteDelete))
				}
			}
			waits := func() {
				over := false
				r.wait(module, "waiting", func(x fleet.SyncStatus) bool {
					over = x.Phase == fleet.PhaseRemoved || tt.dropped && x.Ready && len(x.States) == 1 && len(x.Extras) == 0
					return over || len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, lateText)
				})
				if over {
					t.Fatal("it is forgotten, and may come to be")
				}
			}
			if tt.noted {
				order()
				waits()
			}
			if tt.killed {
				r.stop()
				r.forget()
				r.start()
			}
			order()
			waits()
			land()
			if tt.dropped { // what came in the place of the one that was noted is known by its marks only, and a person is asked
				r.wait(module, "asked", func(x fleet.SyncStatus) bool { return len(x.Extras) == 1 && x.Extras[0].Held })
				return
			}
			r.eventually("what it made late is deleted", func() bool { return r.get("v1", "configmaps", "late") == nil })
			r.landing = time.Second
			r.landsAnew()
			r.wait(module, "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if r.get("v1", "configmaps", "late") != nil {
				t.Error("the module is called removed, and what it made late is there")
			}
		})
	}
}

// givenUp are answers that say no more than that nobody waits for a write any more: of a proxy before the API server, or of its store, which has
// the write.
func givenUp() map[string]inPlace {
	return map[string]inPlace{
		"a proxy":              {http.StatusBadGateway, "<html>502 Bad Gateway</html>"},
		"a proxy of a service": {http.StatusServiceUnavailable, "upstream connect error or disconnect/reset before headers. reset reason: connection termination"},
		"the store":            {http.StatusInternalServerError, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"etcdserver: request timed out","code":500}`},
	}
}

func TestWriteOfWhichOthersHaveGivenUpLeavesNothingBehind(t *testing.T) {
	for name, meanwhile := range givenUp() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.landing = time.Hour
			r.restart()
			sent, land := r.lateAnswered(http.MethodPatch, "late", meanwhile)
			r.set([]fleet.Sync{r.bundle("shop", nil, configMap("late", "k: v"))})
			<-sent
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			x := r.wait("shop", "waiting", func(x fleet.SyncStatus) bool {
				return x.Phase == fleet.PhaseRemoved || len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, lateText)
			})
			land()
			if x.Phase == fleet.PhaseRemoved {
				t.Fatal("the module is called removed, and what it made late is there")
			}
			r.eventually("what it made late is deleted", func() bool { return r.get("v1", "configmaps", "late") == nil })
		})
	}
}

func TestWhatMayLand(t *testing.T) {
	began := time.Now()
	l := late{landing: landing}
	a, b, going, unheard := &apply.Record{}, &apply.Record{}, &apply.Record{}, &apply.Record{}
	for name, r := range map[string]*apply.Record{"a": a, "b": b, "going": going, "unheard": unheard} {
		r.ID, r.Module = fleet.ObjectID{Kind: "ConfigMap", Name: name}, fleet.ModuleRef{Project: "default", Name: "shop"}
	}
	going.Deleting, unheard.Deleting, unheard.Unheard = fleet.Age{Generation: 3}, fleet.Age{Generation: 3}, true
	inventory, err := apply.Open(context.Background(), newMemory(), newVault(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l.inherit(inventory, began)
	if l.mayLand(a.ID, began) {
		t.Error("nothing was written")
	}
	l.unanswered(a.ID, began)
	if !l.unheard(a.ID, true, began) || l.unheard(a.ID, false, began.Add(landing)) || l.unheard(b.ID, false, began) {
		t.Error("of what goes")
	}
	if !l.mayLand(a.ID, began.Add(landing-1)) || l.mayLand(a.ID, began.Add(landing)) || l.mayLand(b.ID, began) {
		t.Error("of the write that had no answer")
	}
	inventory.Put(b)
	inventory.Put(going)
	inventory.Put(unheard)
	l.inherit(inventory, began)
	if !l.mayLand(b.ID, began.Add(landing-1)) || l.mayLand(b.ID, began.Add(landing)) || l.mayLand(going.ID, began) || !l.mayLand(unheard.ID, began) {
		t.Error("of a process before")
	}
	if !l.unheard(b.ID, false, began) || l.unheard(b.ID, true, began) || l.unheard(going.ID, false, began) || l.unheard(b.ID, false, began.Add(landing)) {
		t.Error("of a process before, of what goes")
	}
}
