package worker

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"regexp"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
)

// otherTime is an API server whose clock is off: it changes every time that an answer says.
type otherTime struct {
	next http.RoundTripper
	off  time.Duration
}

var stamp = regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"`)

func (o otherTime) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := o.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		resp.Header.Set("Date", at.Add(o.off).UTC().Format(http.TimeFormat))
	}
	resp.Body = &otherTimes{body: resp.Body, lines: bufio.NewReader(resp.Body), off: o.off}
	return resp, nil
}

// otherTimes changes the times in a body, line by line: each is as long as it was.
type otherTimes struct {
	body  io.Closer
	lines *bufio.Reader
	off   time.Duration
	rest  []byte
}

func (o *otherTimes) Read(p []byte) (int, error) {
	if len(o.rest) == 0 {
		line, err := o.lines.ReadBytes('\n')
		if len(line) == 0 {
			return 0, err
		}
		o.rest = stamp.ReplaceAllFunc(line, func(b []byte) []byte {
			at, err := time.Parse(time.RFC3339, string(bytes.Trim(b, `"`)))
			if err != nil {
				return b
			}
			return []byte(at.Add(o.off).UTC().Format(`"` + time.RFC3339 + `"`))
		})
	}
	n := copy(p, o.rest)
	o.rest = o.rest[n:]
	return n, nil
}

func (o *otherTimes) Close() error { return o.body.Close() }

// TestClockOfTheMachineIsAhead: a controller has its time for a first status by the API server's clock, which wrote when the
// object was made, and not by the agent's.
func TestClockOfTheMachineIsAhead(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.options = append(r.options, func(o *Options) {
		o.Config = rest.CopyConfig(o.Config)
		o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return otherTime{next, -time.Hour} })
	})
	r.start()
	s := r.bundle("shop", nil, crd+"    subresources: {status: {}}\n", gadget)
	r.set([]fleet.Sync{s})
	got := r.wait("shop", "applied", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseApplied && (x.Ready || x.Reason == health.ReasonNoStatus)
	})
	if got.Ready {
		t.Errorf("counts as done before its controller said a word: %+v", got)
	}
	r.patch(r.ns+".example.com/v1", "gadgets", "g", "controller", `{"status":{"phase":"Running"}}`, "status")
	r.ready(s)
}
