package watch

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/pkg/fleet"
)

// answeredWith has reads of the object of a kind be answered with what this says; nothing is what the watch has told.
func (k *kind) answeredWith(t *testing.T, read func() (object string, err error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.live = func(ctx context.Context, at Key) (*unstructured.Unstructured, error) {
		object, err := read()
		if err != nil {
			return nil, err
		}
		if object == "" {
			return k.asWatched(ctx, at)
		}
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(object), &u.Object); err != nil {
			t.Error(err)
		}
		return u, nil
	}
}

// TestNobodySpokeIsReadOnce: a watch may be open and tell of nothing. That nobody said a word of our change is therefore read once more before the
// object is called healthy for it.
func TestNobodySpokeIsReadOnce(t *testing.T) {
	for name, alone := range map[string]bool{"of the module": false, "that is read only": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, changes := unheardTill(t)
				defer s.end()
				one := Single{Resource: s.resource, Key: Key{"n", "a"}}
				now := time.Now()
				failed := func() string {
					return strings.Replace(till("10", 3, now.Add(-time.Hour), now, now.Add(5*time.Second)), `"phase":"Ready"`, `"phase":"Failed"`, 1)
				}
				said := failed()
				var answers atomic.Bool
				s.answeredWith(t, func() (string, error) {
					if !answers.Load() {
						return "", errors.New("timed out")
					}
					return said, nil
				})
				health := func() fleet.Health { return held(s.kind).Health }
				if alone {
					s.only, s.singles = &one.Key, map[Single]*kind{one: s.kind}
					if err := s.Update(decodeItem(t, s.kind, till("9", 4, now.Add(-time.Hour), now, now.Add(-time.Hour)))); err != nil {
						t.Fatal(err)
					}
					health = func() fleet.Health {
						f, _ := s.JudgeOne(one, nil)
						synctest.Wait()
						return f.Health
					}
				}
				is := func(after time.Duration, want fleet.Health) {
					t.Helper()
					pass(after)
					if got := health(); got != want {
						t.Errorf("%s after the change: %s, want %s", time.Since(now), got, want)
					}
				}
				is(11*time.Second, fleet.HealthProgressing)
				is(20*time.Second, fleet.HealthProgressing)
				told := changes.Load()
				answers.Store(true)
				health()
				is(2*confirmAgain, fleet.HealthDegraded)
				if changes.Load() == told {
					t.Error("nobody was told")
				}
			})
		})
	}
}

// TestNobodySpokeAndNobodyMayRead: who may watch a kind and not read it has nothing better than the watch.
func TestNobodySpokeAndNobodyMayRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := unheardTill(t)
		defer s.end()
		var reads atomic.Int64
		s.answeredWith(t, func() (string, error) {
			reads.Add(1)
			return "", apierrors.NewForbidden(schema.GroupResource{Resource: "tills"}, "a", errors.New("no"))
		})
		pass(11 * time.Second)
		if f := held(s.kind); f.Health != fleet.HealthProgressing {
			t.Errorf("%s by one refusal, as of an API server that starts", f.Health)
		}
		pass(10 * time.Second)
		if f := held(s.kind); f.Health != fleet.HealthHealthy || reads.Load() != 3 {
			t.Errorf("%s after %d reads", f.Health, reads.Load())
		}
	})
}
