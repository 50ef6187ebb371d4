package hook

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
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

// TestOneTooManyIsTold: of more connections of one address than it may have, as of a proxy that all calls come through, those that come last are told
// so, and to come again, rather than closed without a word.
func TestOneTooManyIsTold(t *testing.T) {
	const most, told = 256, 64
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		server := Server(w, slog.New(slog.DiscardHandler))
		calls := make(callers)
		l := rpc.HookConnections().Listener(calls)
		codes := map[int]int{}
		for i := range most + told {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			go func() { calls <- ours }()
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			r := httptest.NewRequest(http.MethodPost, "/hooks/default/shop", strings.NewReader("{}"))
			r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", i%200) // the handler's own limit of an address is another one
			r.Header.Set("X-Gitlab-Token", key)
			out := httptest.NewRecorder()
			w.ServeHTTP(out, r.WithContext(server.ConnContext(t.Context(), tls.Server(c, nil))))
			if is := i >= most; (out.Code == http.StatusTooManyRequests) != is || (out.Header().Get("Retry-After") != "") != is {
				t.Fatalf("connection %d: %d %v", i, out.Code, out.Header())
			}
			codes[out.Code]++
		}
		ours, theirs := net.Pipe()
		go func() { calls <- ours }()
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
		if _, err := theirs.Write([]byte("x")); err == nil {
			t.Error("there is no end to them")
		}
		if codes[http.StatusAccepted] != most || codes[http.StatusTooManyRequests] != told {
			t.Errorf("%v", codes)
		}
	})
}

// callers is a listener whose connections all come from one address.
type callers chan net.Conn

// Accept implements net.Listener.
func (c callers) Accept() (net.Conn, error) { return <-c, nil }

// Close implements net.Listener.
func (c callers) Close() error { return nil }

// Addr implements net.Listener.
func (c callers) Addr() net.Addr { return &net.TCPAddr{} }
