package watch

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
	"towline.dev/towline/pkg/plan"
)

// custom is a custom resource without a status, created and written by us at these times.
func custom(version string, created, written time.Time, status string) string {
	return fmt.Sprintf(`{"apiVersion":"shop.example/v1","kind":"Till","metadata":{"name":"a","namespace":"n","uid":"u1","resourceVersion":%q,
		"creationTimestamp":%q,"managedFields":[{"manager":%q,"operation":"Apply","time":%q,"fieldsV1":{}}]}%s}`,
		version, created.UTC().Format(time.RFC3339), fleet.FieldManager, written.UTC().Format(time.RFC3339), status)
}

func graceful(changes *atomic.Int64) *kind {
	k := newKind()
	k.w.o.HasStatus = func(apply.Resource) bool { return true }
	k.w.o.Changed = func(fleet.ObjectID, string) { changes.Add(1) }
	k.resource.Kind = "Till"
	return k
}

// held is the fingerprint that the kind has of the object.
func held(k *kind) *Fingerprint {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.prints[Key{"n", "a"}]
}

// pass lets virtual time go by, and what is due happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestGraceEndsWithoutAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int64
		k := graceful(&changes)
		k.w.ctx = t.Context()
		born := time.Now()
		pass(20 * time.Second)
		if err := k.Update(decodeItem(t, k, custom("7", born, born.Add(10*time.Second), ""))); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			wait    time.Duration
			health  fleet.Health
			changes int64
		}{{0, fleet.HealthProgressing, 1}, {49 * time.Second, fleet.HealthProgressing, 1}, {2 * time.Second, fleet.HealthHealthy, 2}, {time.Hour, fleet.HealthHealthy, 2}} {
			pass(step.wait)
			f := held(k)
			if f.Health != step.health || f.Reason != health.ReasonNoStatus || changes.Load() != step.changes || f.Version != 7 {
				t.Errorf("after %s: %+v, %d changes", step.wait, f, changes.Load())
			}
		}
	})
}

// The grace is counted by the clock that wrote the times: the machine's own may be an hour ahead of it or behind.
func TestGraceIsByTheServersClock(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var changes atomic.Int64
				k := graceful(&changes)
				k.w.ctx = t.Context()
				k.w.o.Now = func() time.Time { return time.Now().Add(-ahead) }
				born := k.w.now()
				if err := k.Update(decodeItem(t, k, custom("7", born, born, ""))); err != nil {
					t.Fatal(err)
				}
				pass(59 * time.Second)
				if f := held(k); f.Health != fleet.HealthProgressing {
					t.Errorf("before the grace is over: %+v", f)
				}
				pass(2 * time.Second)
				if f := held(k); f.Health != fleet.HealthHealthy {
					t.Errorf("after it: %+v", f)
				}
			})
		})
	}
}

func TestGraceOfAnOlderStateCountsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int64
		k := graceful(&changes)
		k.w.ctx = t.Context()
		born := time.Now()
		if err := k.Update(decodeItem(t, k, custom("7", born, born, ""))); err != nil {
			t.Fatal(err)
		}
		failed := custom("8", born, born, `,"status":{"phase":"Failed"}`)
		if err := k.Update(decodeItem(t, k, failed)); err != nil {
			t.Fatal(err)
		}
		pass(time.Hour)
		if f := held(k); f.Health != fleet.HealthDegraded || changes.Load() != 2 {
			t.Errorf("%+v, %d changes", f, changes.Load())
		}
	})
}

// till is a custom object that says no generation, with when it was made, when we wrote it, and when its operator wrote its status.
func till(version string, generation int, born, written, said time.Time) string {
	times := func(at time.Time) string { return at.UTC().Format(time.RFC3339) }
	return fmt.Sprintf(`{"apiVersion":"shop.example/v1","kind":"Till","metadata":{"name":"a","namespace":"n","uid":"u1","resourceVersion":%q,"generation":%d,
		"creationTimestamp":%q,"managedFields":[{"manager":%q,"operation":"Apply","time":%q,"fieldsV1":{}},
		{"manager":"operator","operation":"Update","subresource":"status","time":%q,"fieldsV1":{}}]},"status":{"phase":"Ready"}}`,
		version, generation, times(born), fleet.FieldManager, times(written), times(said))
}

// TestWordOnOurChangeIsAwaited: what we change may be through when its status says so anew, or nobody says a word of it; a change that leaves the
// generation, as of a label, waits for nobody.
func TestWordOnOurChangeIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int64
		k := graceful(&changes)
		k.w.ctx = t.Context()
		born := time.Now()
		is := func(version string, generation int, written, said time.Time) {
			t.Helper()
			if err := k.Update(decodeItem(t, k, till(version, generation, born, written, said))); err != nil {
				t.Fatal(err)
			}
		}
		want := func(what string, health fleet.Health) {
			t.Helper()
			if f := held(k); f.Health != health {
				t.Errorf("%s: %+v, want %s", what, f, health)
			}
		}
		said := born.Add(time.Second)
		pass(time.Hour)
		is("7", 2, born, said)
		want("as it stood", fleet.HealthHealthy)

		is("8", 2, time.Now(), said)
		want("with another label", fleet.HealthHealthy)

		pass(time.Minute)
		changed := time.Now()
		is("9", 3, changed, said)
		want("changed", fleet.HealthProgressing)
		pass(time.Second)
		is("10", 3, changed, said) // somebody else's label
		want("changed, and nothing said", fleet.HealthProgressing)
		pass(10 * time.Second)
		want("changed, and nothing said for long", fleet.HealthHealthy)

		changed = time.Now()
		is("11", 4, changed, said)
		want("changed again", fleet.HealthProgressing)
		pass(2 * time.Second)
		is("12", 4, changed, time.Now())
		want("changed, and said to be through", fleet.HealthHealthy)

		pass(time.Minute)
		changed = time.Now()
		k.w.o.Record = func(fleet.ObjectID) *apply.Record {
			return &apply.Record{Record: plan.Record{UID: "u1", ResourceVersion: 13}}
		}
		is("13", 5, changed, changed)
		want("changed in the second in which its operator had spoken", fleet.HealthProgressing)
		is("14", 5, changed, changed)
		want("changed, and said to be through in that second", fleet.HealthHealthy)
	})
}

func TestRulesOfTheRecordJudge(t *testing.T) {
	rules, err := health.Compile([]health.Rule{{Group: "shop.example", Kind: "Till", Degraded: "object.status.phase == 'Odd'"}})
	if err != nil {
		t.Fatal(err)
	}
	k := newKind()
	k.resource = apply.Resource{GroupVersionResource: schema.GroupVersionResource{Group: "shop.example", Version: "v1", Resource: "tills"}, Kind: "Till", Namespaced: true}
	record := &apply.Record{}
	k.w.o.Record = func(fleet.ObjectID) *apply.Record { return record }
	k.w.o.Rules = func(r *apply.Record) *health.Rules {
		if r != record {
			t.Errorf("asked for the rules of %v", r)
		}
		return rules
	}
	i := decodeItem(t, k, custom("7", time.Now(), time.Now(), `,"status":{"phase":"Odd"}`))
	if i.print.Health != fleet.HealthDegraded || i.print.Reason != health.ReasonRule {
		t.Errorf("%+v", i.print)
	}
}
