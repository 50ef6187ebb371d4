package hub_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/hub"
)

// TestSilentConnectionsKeepNoWebhookOut: who opens connections to the port of webhooks, and says nothing on them, before the handshake or behind
// it, keeps no call of another address waiting, and one of the same address for a moment.
func TestSilentConnectionsKeepNoWebhookOut(t *testing.T) {
	hooks, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w := newWorldWith(t, func(o *hub.Options) { o.Memory, o.Hooks = true, hooks })
	address, insecure := hooks.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}
	silence := func(shakesHands bool) {
		conn, err := net.Dial("tcp", address)
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		if shakesHands {
			must(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
			must(t, tls.Client(conn, insecure).Handshake())
		}
	}
	for i := range 600 {
		silence(i < 100)
	}
	call := func(from string) error {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: dialer.DialContext, DisableKeepAlives: true},
			Timeout: 20 * time.Second}
		req, err := http.NewRequestWithContext(w.ctx, http.MethodPost, "https://"+address+"/hooks/default/shop", strings.NewReader("{}"))
		must(t, err)
		req.Header.Set("X-Gitlab-Token", "x")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusForbidden {
			t.Error(resp.Status)
		}
		return resp.Body.Close()
	}
	began := time.Now()
	must(t, call("127.0.0.2"))
	for call("127.0.0.1") != nil && time.Since(began) < 4*time.Second { // as it may be while none of them has been silent for long
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("answered after %s", took)
	}
}
