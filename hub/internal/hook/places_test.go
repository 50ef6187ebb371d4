package hook

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestSlowCallsKeepNobodyOut: whoever sends slowly, before anybody knows who that is, may do so while there is room, and not for longer. A call
// that a server makes comes through at once: GitHub makes it once only.
func TestSlowCallsKeepNobodyOut(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			server := httptest.NewUnstartedServer(w)
			server.Config = Server(w, slog.New(slog.DiscardHandler))
			server.EnableHTTP2 = http2
			server.StartTLS()
			defer server.Close()
			client := server.Client()
			begun := make(chan struct{}, 2*maxCalls+1)
			w.o.Key, w.o.Ask = watched(w.o.Key, begun), func(fleet.ModuleRef) error { return nil }
			ended := make(chan int, 2*maxCalls)
			for range 2 * maxCalls {
				body, more := io.Pipe()
				defer more.Close()
				go func() { ended <- post(client, server.URL, body) }()
				_, _ = io.WriteString(more, "{")
				select {
				case <-begun:
				case <-time.After(time.Minute):
					t.Fatal("a call does not come in")
				}
			}
			for range maxCalls { // half of them have made room
				select {
				case code := <-ended:
					if code == http.StatusAccepted {
						t.Error("a call that has not ended was taken")
					}
				case <-time.After(20 * time.Second):
					t.Fatal("who sends slowly keeps a place that others want")
				}
			}
			if code := post(client, server.URL, strings.NewReader("{}")); code != http.StatusAccepted {
				t.Errorf("a call as servers make it: %d", code)
			}
		})
	}
}

// watched is a way to keys that tells of each question.
func watched(of func(context.Context, fleet.ModuleRef) []byte, asked chan<- struct{}) func(context.Context, fleet.ModuleRef) []byte {
	return func(ctx context.Context, ref fleet.ModuleRef) []byte {
		asked <- struct{}{}
		return of(ctx, ref)
	}
}

// post makes a call that is signed; 0: its connection was closed.
func post(client *http.Client, url string, body io.Reader) int {
	req, err := http.NewRequest(http.MethodPost, url+"/hooks/default/shop", body)
	if err != nil {
		return 0
	}
	req.Header.Set("X-Gitlab-Token", key)
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
