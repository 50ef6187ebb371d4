package watch

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
	"towline.dev/towline/pkg/plan"
)

// TestObjectThatSetsOffABug: what the API server shows may be anything. An object that cannot be read for a bug is unknown;
// the kind is watched on, and nothing is concluded from what was not read.
func TestObjectThatSetsOffABug(t *testing.T) {
	k := newKind()
	var log bytes.Buffer
	k.w.o.Log = slog.New(slog.NewTextHandler(&log, nil))
	bug := true
	record := &apply.Record{Record: plan.Record{UID: "u1", ResourceVersion: 3}, Paths: &apply.PathSet{}}
	k.w.o.Record = func(fleet.ObjectID) *apply.Record { return record }
	k.w.o.Rules = func(*apply.Record) *health.Rules {
		if bug {
			panic("a secret of the object")
		}
		return nil
	}
	for range 2 {
		f := decodeItem(t, k, live).print
		if f.Key() != (Key{"n", "a"}) || f.UID != "u1" || f.Version != 7 || f.Health != fleet.HealthUnknown || f.Reason != apply.ReasonBug {
			t.Errorf("%+v", f)
		}
		if f.Match(record, false) != plan.MatchUnknown {
			t.Error("it is taken for compared to what was written")
		}
		if !strings.Contains(f.Message, "a bug in the agent") || strings.Contains(f.Message, "secret") {
			t.Errorf("says %q", f.Message)
		}
	}
	if n := strings.Count(log.String(), "TestObjectThatSetsOffABug"); n == 0 || strings.Count(log.String(), "level=ERROR") != 1 {
		t.Errorf("the log does not say once where it was:\n%s", log.String())
	}
	bug = false
	if f := decodeItem(t, k, live).print; f.Health != fleet.HealthHealthy {
		t.Errorf("without the bug: %+v", f)
	}
}

// TestBugInAListBlindsOneKind: a kind that cannot be read for a bug is like one that cannot be read for another reason.
func TestBugInAListBlindsOneKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSighted(nil)
		bug := true
		s.lw = s.observed(&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				if bug {
					panic("a secret of the transport")
				}
				return &itemList{}, nil
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				if bug {
					panic("a secret of the transport")
				}
				return watch.NewFake(), nil
			},
		})
		read := func() (list, open error) {
			_, list = s.lw.ListWithContext(t.Context(), metav1.ListOptions{})
			_, open = s.lw.WatchWithContext(t.Context(), metav1.ListOptions{})
			return list, open
		}
		if list, open := read(); list == nil || open == nil {
			t.Fatalf("list: %v, watch: %v", list, open)
		}
		pass(BlindAfter + time.Second)
		if why := s.Blind(s.resource); why == nil || !strings.Contains(why.Error(), "a bug in the agent") || strings.Contains(why.Error(), "secret") {
			t.Errorf("it is blind because of: %v", why)
		}
		bug = false
		if list, open := read(); list != nil || open != nil {
			t.Errorf("without the bug: list: %v, watch: %v", list, open)
		}
		if why := s.Blind(s.resource); why != nil {
			t.Errorf("without the bug it is blind because of: %v", why)
		}
	})
}
