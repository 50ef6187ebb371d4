package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

// unlucky has one request of an agent, or one write to its state, come to nothing or lose its answer. The agent lives on.
type unlucky struct {
	*memory // the state

	next http.RoundTripper
	how  fault

	mu   sync.Mutex
	at   int // which one, counted from 1; 0: none
	did  []string
	what string // it was
}

// fault is what becomes of a request.
type fault struct {
	name string
	// after: it is carried out before that, and its answer is lost.
	after bool
	err   error
	code  int
	body  string
	wait  string // Retry-After
}

func statusBody(code int, reason metav1.StatusReason, message string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":%q,"code":%d}`, message, reason, code)
}

// faults are what happens to a request between an agent and its API server.
func faults() []fault {
	return []fault{
		{name: "reset", err: syscall.ECONNRESET},
		{name: "lost", after: true, err: io.ErrUnexpectedEOF},
		{name: "500", code: 500, body: statusBody(500, metav1.StatusReasonInternalError, "etcdserver: leader changed")},
		{name: "a proxy's 503", code: 503, body: "upstream connect error or disconnect/reset before headers"},
		{name: "429", code: 429, wait: "1", body: statusBody(429, metav1.StatusReasonTooManyRequests, "too many requests, please try again later")},
		{name: "a page's 404", code: 404, body: "404 page not found\n"},
		{name: "403", code: 403, body: statusBody(403, metav1.StatusReasonForbidden, "forbidden: not yet ready to handle request")},
		{name: "401", code: 401, body: statusBody(401, metav1.StatusReasonUnauthorized, "Unauthorized")},
		{name: "504 after all", after: true, code: 504, body: statusBody(504, metav1.StatusReasonTimeout, "request did not complete within the allotted timeout")},
		{name: "an empty 200", code: 200, body: "{}"},
		{name: "an empty 200 after all", after: true, code: 200, body: ""},
		{name: "409", code: 409, body: statusBody(409, metav1.StatusReasonConflict, "Operation cannot be fulfilled: the object has been modified; please apply your changes to the latest version and try again")},
	}
}

func (u *unlucky) RoundTrip(r *http.Request) (*http.Response, error) {
	verb := r.Method
	if r.URL.Query().Get("watch") != "" {
		verb = "WATCH"
	}
	if !u.hit(verb + " " + r.URL.RequestURI()) {
		return u.next.RoundTrip(r)
	}
	if u.how.after {
		if answer, err := u.next.RoundTrip(r); err == nil && verb != "WATCH" {
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
	}
	if u.how.err != nil {
		return nil, u.how.err
	}
	kind := "application/json"
	if !strings.HasPrefix(u.how.body, "{") {
		kind = "text/plain"
	}
	answer := &http.Response{StatusCode: u.how.code, Status: fmt.Sprint(u.how.code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(bytes.NewReader([]byte(u.how.body))), ContentLength: int64(len(u.how.body)), Request: r}
	if u.how.wait != "" {
		answer.Header.Set("Retry-After", u.how.wait)
	}
	return answer, nil
}

// hit counts a request, and reports whether it is the one.
func (u *unlucky) hit(what string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.did = append(u.did, what)
	if len(u.did) != u.at {
		return false
	}
	u.what = what
	return true
}

var errDisk = errors.New("no space left on device")

func (u *unlucky) Write(ctx context.Context, name string, data []byte) error {
	hit := u.hit("write " + name)
	if hit && !u.how.after {
		return errDisk
	}
	if err := u.memory.Write(ctx, name, data); err != nil || !hit {
		return err
	}
	return errDisk
}

func (u *unlucky) Remove(ctx context.Context, name string) error {
	hit := u.hit("remove " + name)
	if hit && !u.how.after {
		return errDisk
	}
	if err := u.memory.Remove(ctx, name); err != nil || !hit {
		return err
	}
	return errDisk
}

// unluckyAt has the rig's agent meet a fault at one of its requests.
func (r *rig) unluckyAt(at int, how fault) *unlucky {
	r.t.Helper()
	r.stop()
	u := &unlucky{memory: r.store, at: at, how: how}
	r.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		u.next = next
		return u
	})
	r.options = append(r.options, func(o *Options) { o.State = u })
	r.truthful()
	r.start()
	return u
}

// truthful has each report compared with what there is, if the test has it judged.
func (r *rig) truthful() {
	r.options = append(r.options, func(o *Options) {
		report := o.Report
		o.Report = func(s fleet.SyncStatus) {
			if lie := r.lie(s); lie != "" {
				r.t.Errorf("module %s: it is reported as %s %s (generation %d), and %s", s.Module.Name, s.Phase, map[bool]string{true: "Ready"}[s.Ready], s.Generation, lie)
			}
			report(s)
		}
	})
}

// lie is what a status says that is not so: of a module that is ready that all that it lists is there with its mark, of one that is removed that
// nothing has its mark but what another one lists; empty: it is true.
func (r *rig) lie(s fleet.SyncStatus) string {
	r.m.mu.Lock()
	d := r.m.desired
	r.m.mu.Unlock()
	if d == nil || !r.judges.Load() || !s.Ready && s.Phase != fleet.PhaseRemoved {
		return ""
	}
	there := map[string]string{} // the owner, by resource and name
	for resource, apiVersion := range map[string]string{"ConfigMap": "v1", "Job": "batch/v1"} {
		list, err := r.res(apiVersion, strings.ToLower(resource)+"s", r.ns).List(context.Background(), metav1.ListOptions{LabelSelector: fleet.HubLabel + "=" + r.hub})
		if err != nil {
			return ""
		}
		for _, u := range list.Items {
			if ref, _, ok := fleet.ParseOwnerMark(u.GetAnnotations()[fleet.OwnerAnnotation]); ok {
				there[resource+" "+u.GetName()] = ref.Name
			}
		}
	}
	listed := map[string]bool{}
	for _, sync := range d.assemblage.Syncs {
		bundle, err := r.store.Bundle(sync.Bundle)
		if err != nil {
			return ""
		}
		for _, e := range bundle.Entries {
			key := e.ID.Kind + " " + e.ID.Name
			if e.ID.Kind != "ConfigMap" && e.ID.Kind != "Job" || e.ID.Namespace != r.ns {
				continue
			}
			if listed[key] = true; sync.Module == s.Module && sync.Generation == s.Generation && s.Ready && there[key] != s.Module.Name {
				return fmt.Sprintf("%s is not there, or not its own: %v", key, there)
			}
		}
	}
	if s.Phase != fleet.PhaseRemoved {
		return ""
	}
	for key, of := range there {
		if of == s.Module.Name && !listed[key] {
			return key + " is still there"
		}
	}
	return ""
}

// Whatever becomes of any single request of an agent that lives on, and of any single write to its state: it ends with exactly what is wanted, and says
// at no time of a module that it is ready or removed when it is not. A soak goes through each request.
func TestEachRequestComesToNothing(t *testing.T) {
	config, every := labConfig(t), 8
	t.Parallel()
	if os.Getenv("TOWLINE_SOAK") != "" {
		every = 1
	}
	eachComesToNothing(t, config, every, everyLife)
}

// eachComesToNothing lives the lives of an agent, each time with another of its requests in so many that comes to nothing.
func eachComesToNothing(t *testing.T, config *rest.Config, every int, run func(r *rig, live living)) {
	var requests []string
	unlucky := func(t *testing.T, at int, how fault) {
		r := newRigOn(t, rest.CopyConfig(config))
		u := r.unluckyAt(at, how)
		run(r, func(lives []life, look func() map[string]string, then func(life)) {
			for _, l := range lives {
				l.do()
				r.comes(l, look, nil)
				then(l)
			}
		})
		u.mu.Lock()
		defer u.mu.Unlock()
		if at == 0 {
			requests = u.did
		}
		t.Logf("%s came to: %s", u.what, how.name)
	}
	t.Run("no request comes to nothing", func(t *testing.T) { unlucky(t, 0, fault{}) })
	all, shift := faults(), 0
	if os.Getenv("TOWLINE_SOAK") != "" {
		shift = int(time.Now().UnixNano() % 1000)
	}
	for at := 0; at < len(requests); at += every {
		how := all[(at/every+shift)%len(all)]
		t.Run(fmt.Sprintf("request %d comes to %s", at+1, how.name), func(t *testing.T) {
			t.Parallel()
			unlucky(t, at+1, how)
		})
	}
}
