package apply

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestClockIsTheServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		date := ""
		base := &rest.Config{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Date": {date}}, Body: http.NoBody}, nil
		})}
		var clock Clock
		server, err := rest.TransportFor(clock.Of(base))
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			name, date string
			ahead      time.Duration
		}{
			{"no date", "", 0},
			{"behind", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), -time.Hour},
			{"no date after one", "nonsense", -time.Hour},
			{"ahead", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), time.Hour},
		} {
			date = step.date
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server", nil)
			resp, err := server.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			before := clock.Now()
			if got := time.Until(before); got != step.ahead {
				t.Errorf("%s: %s ahead, want %s", step.name, got, step.ahead)
			}
		}
		before := clock.Now()
		<-time.After(time.Minute)
		if got := clock.Now().Sub(before); got != time.Minute {
			t.Errorf("%s went by in a minute", got)
		}
	})
}
