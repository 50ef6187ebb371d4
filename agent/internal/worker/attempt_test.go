package worker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// TestJobWhoseAnswerIsLostRunsOnce: the answer to the write that makes a Job with a TTL is lost, or the agent is killed before it comes,
// and the Job has run and is gone before anybody looks; the same where another content ran before.
func TestJobWhoseAnswerIsLostRunsOnce(t *testing.T) {
	for name, tc := range map[string]struct{ killed, again, blind, refused bool }{
		"the agent lives":                      {},
		"the agent is killed":                  {killed: true},
		"the agent lives, another content":     {again: true},
		"the agent is killed, another content": {killed: true, again: true},
		"Events cannot be read at first":       {blind: true},
		"the API server has just started":      {refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("shop", nil, configMap("a", "k: v"))
			if tc.again {
				s = r.bundle("shop", nil, configMap("a", "k: v"), strings.Replace(jobText("migrate", fleeting), "m:1", "m:0", 1))
			}
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.eventually("the first one is gone", func() bool { return r.jobUID("migrate") == "" })
			var once, asked atomic.Bool
			lost, killed := make(chan struct{}), make(chan struct{})
			r.count.upset(func(q *http.Request) error {
				if tc.blind && once.Load() && strings.HasSuffix(q.URL.Path, "/events") && !asked.Swap(true) {
					return errors.New("connection reset by a test")
				}
				if tc.refused && once.Load() && q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/events") && !asked.Swap(true) {
					q.Header.Set("Impersonate-User", "nobody-"+r.ns) // whom the API server refuses, as it does everybody until it has read the roles
				}
				if q.Method != http.MethodPatch || !strings.HasSuffix(q.URL.Path, "/jobs/migrate") {
					return nil
				}
				body, _ := io.ReadAll(q.Body)
				q.Body = io.NopCloser(bytes.NewReader(body))
				if tc.again && bytes.Contains(body, []byte(`"uid"`)) || once.Swap(true) {
					return nil // of the one that ran before
				}
				if answer, err := r.count.next.RoundTrip(q); err == nil {
					_ = answer.Body.Close()
				}
				r.eventually("it ran and is gone", func() bool { return r.jobUID("migrate") == "" })
				close(lost)
				if tc.killed {
					<-killed
				}
				return errors.New("connection reset by a test")
			})
			next := r.bundle("shop", nil, configMap("a", "k: v"), jobText("migrate", fleeting))
			r.set([]fleet.Sync{next})
			<-lost
			if tc.killed {
				files := r.store.copy()
				go close(killed)
				r.killed(files)
				r.start()
				r.set([]fleet.Sync{next})
			}
			status := r.ready(next)
			events, err := r.m.client.EventsOf(context.Background(), r.ns, "Job", "migrate")
			if err != nil {
				t.Fatal(err)
			}
			runs, want := map[string]bool{}, 1
			for _, e := range events {
				runs[e.UID] = true
			}
			if tc.again {
				want = 2
			}
			if len(runs) != want || reasons(status)[1] != "Completed" {
				t.Errorf("%d ran, not %d; status %+v", len(runs), want, status)
			}
		})
	}
}

// TestJobThatAnotherToolRanIsNoAttempt: the API server refuses to make a Job, for a tool has one of the same name. That one goes, and
// another one of the tool runs to its end, as a hook does. The module's has not run by that.
func TestJobThatAnotherToolRanIsNoAttempt(t *testing.T) {
	r := newRig(t)
	tools := func(spec string) types.UID {
		r.createAs("helm", "batch/v1", "jobs", r.ns, r.object(strings.Replace(jobText("migrate", spec), "m:1", "m:0", 1)))
		return r.jobUID("migrate")
	}
	theirs := map[string]bool{"": true, string(tools("suspend: true, ")): true}
	s := r.bundle("shop", nil, configMap("a", "k: v"), jobText("migrate", fleeting))
	r.set([]fleet.Sync{s})
	r.wait("shop", "refused", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "Conflict" })
	r.deleteJob("migrate")
	r.eventually("theirs is gone", func() bool { return r.jobUID("migrate") == "" })
	theirs[string(tools("ttlSecondsAfterFinished: 1, "))] = true
	r.eventually("the next one of theirs ran and is gone", func() bool { return r.jobUID("migrate") == "" })
	r.m.retry(s.Module, fleet.ObjectID{Group: "batch", Kind: "Job", Namespace: r.ns, Name: "migrate"})
	r.ready(s)
	events, err := r.m.client.EventsOf(context.Background(), r.ns, "Job", "migrate")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if !theirs[e.UID] {
			return
		}
	}
	t.Errorf("the module's did not run: %v", events)
}
