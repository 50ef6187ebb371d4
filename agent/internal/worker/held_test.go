package worker

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
)

// ahead is an API server of which nothing is known but its clock, by how much it is ahead of the machine's.
type ahead time.Duration

func (a *ahead) RoundTrip(*http.Request) (*http.Response, error) {
	at := time.Now().Add(time.Duration(*a)).UTC()
	return &http.Response{Header: http.Header{"Date": {at.Format(http.TimeFormat)}}}, nil
}

// TestHoldThatEndsWhileTheMachineSleeps: timers stand still in that time, and the API server's clock goes on.
func TestHoldThatEndsWhileTheMachineSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, server := &apply.Clock{}, new(ahead)
		through := clock.Of(&rest.Config{}).WrapTransport(server)
		answer := func() {
			if _, err := through.RoundTrip(&http.Request{}); err != nil {
				t.Fatal(err)
			}
		}
		answer()
		w := &worker{m: &Manager{watcher: &watch.Watcher{}, clock: clock}, items: []*item{{}}}
		live := &unstructured.Unstructured{}
		live.SetAnnotations(map[string]string{fleet.HoldAnnotation: "", fleet.HoldUntilAnnotation: time.Now().Add(2 * time.Hour).Format(time.RFC3339)})
		if w.holdOn(live) == nil {
			t.Fatal("it does not hold")
		}
		wake := w.ends.wake(clock.Now())
		*server = ahead(3 * time.Hour) // the machine slept, and did not count that
		answer()
		began := time.Now()
		<-time.After(time.Until(wake))
		if w.endHolds(); time.Since(began) > clockStep || !w.items[0].look {
			t.Errorf("%s later what was held is looked at: %t", time.Since(began), w.items[0].look)
		}
	})
}
