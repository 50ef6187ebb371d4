package hook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/pkg/fleet"
)

const key = "the secret of shop"

func signed(body string) string {
	m := hmac.New(sha256.New, []byte(key))
	_, _ = m.Write([]byte(body))
	return hex.EncodeToString(m.Sum(nil))
}

type world struct {
	*Handler
	asked []string
	err   error // what asking comes to
}

func newWorld() *world {
	w := &world{}
	w.Handler = New(Options{Log: slog.New(slog.DiscardHandler), Ask: func(ref fleet.ModuleRef) error {
		w.asked = append(w.asked, ref.String())
		return w.err
	},
		Key: func(_ context.Context, ref fleet.ModuleRef) []byte {
			if ref.Name == "shop" {
				return []byte(key)
			}
			return nil
		}})
	return w
}

func (w *world) call(method, path, body, from string, header ...string) (*httptest.ResponseRecorder, time.Duration) {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.RemoteAddr = from
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	out, began := httptest.NewRecorder(), time.Now()
	w.ServeHTTP(out, r)
	return out, time.Since(began)
}

// Who knows the secret may ask, in the way of each server; nobody else may.
func TestSignatures(t *testing.T) {
	const body = `{"ref":"refs/heads/main"}`
	long := hmac.New(sha512.New, []byte(key))
	_, _ = long.Write([]byte(body))
	for _, c := range []struct {
		name, header, value string
		taken               bool
	}{
		{"GitHub", "X-Hub-Signature-256", "sha256=" + signed(body), true},
		{"Bitbucket", "X-Hub-Signature", "sha256=" + signed(body), true},
		{"Gitea", "X-Gitea-Signature", signed(body), true},
		{"GitLab", "X-Gitlab-Token", key, true},
		{"anybody", "X-Signature", "sha256=" + signed(body), true},
		{"anybody, longer", "X-Signature", "sha512=" + hex.EncodeToString(long.Sum(nil)), true},
		{"another body", "X-Hub-Signature-256", "sha256=" + signed(body+" "), false},
		{"SHA-1", "X-Hub-Signature", "sha1=" + signed(body)[:40], false},
		{"half of it", "X-Hub-Signature-256", "sha256=" + signed(body)[:32], false},
		{"no hex", "X-Hub-Signature-256", "sha256=zz", false},
		{"nothing behind it", "X-Hub-Signature-256", "sha256=", false},
		{"another token", "X-Gitlab-Token", key + "x", false},
		{"no signature", "X-Other", "x", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			got, _ := w.call(http.MethodPost, "/hooks/default/shop", body, "192.0.2.1:1", c.header, c.value)
			if taken := got.Code == http.StatusAccepted; taken != c.taken || len(w.asked) == 1 != c.taken {
				t.Errorf("%s: %d, asked %v", c.name, got.Code, w.asked)
			}
		})
	}
}

// A call that the hub that leads has not heard is not said to be taken, nor recorded as one.
func TestCallThatIsNotHeard(t *testing.T) {
	w, log := newWorld(), &bytes.Buffer{}
	w.o.Log = slog.New(slog.NewTextHandler(log, nil))
	w.err = fleet.Errorf(fleet.ErrUnavailable, "this hub does not lead now")
	got, _ := w.call(http.MethodPost, "/hooks/default/shop", "{}", "192.0.2.1:1", "X-Gitlab-Token", key)
	if got.Code != http.StatusServiceUnavailable || got.Header().Get("Retry-After") == "" || !strings.Contains(log.String(), "result=Unavailable") {
		t.Errorf("%d %v, recorded as %s", got.Code, got.Header(), log)
	}
}

// A module that is not there is told from a wrong signature neither by the answer nor by the time.
func TestRefusalsAreAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		slow := w.o.Key
		w.o.Key = func(ctx context.Context, ref fleet.ModuleRef) []byte {
			if ref.Name == "shop" { // it takes longer to find
				<-time.After(3 * time.Millisecond)
			}
			return slow(ctx, ref)
		}
		wrong, took := w.call(http.MethodPost, "/hooks/default/shop", "{}", "192.0.2.1:1", "X-Gitlab-Token", "x")
		for path, header := range map[string]string{"/hooks/default/none": "X-Gitlab-Token", "/hooks/other/shop2": "X-Hub-Signature-256", "/hooks/default/gone": "X-None"} {
			got, also := w.call(http.MethodPost, path, "{}", "192.0.2.1:1", header, "sha256="+signed("{}"))
			if got.Code != wrong.Code || got.Body.String() != wrong.Body.String() || fmt.Sprint(got.Header()) != fmt.Sprint(wrong.Header()) || also != took {
				t.Errorf("%s: %d %q after %s; a wrong signature: %d %q after %s", path, got.Code, got.Body, also, wrong.Code, wrong.Body, took)
			}
		}
		if wrong.Code != http.StatusForbidden || took != refuseStep {
			t.Errorf("%d after %s", wrong.Code, took)
		}
	})
}

func TestCallsThatAreNone(t *testing.T) {
	w := newWorld()
	for path, code := range map[string]int{"/": 404, "/hooks/default": 404, "/hooks/default/shop/more": 404, "/hooks/../shop": 404, "/hooks/Default/shop": 404} {
		if got, _ := w.call(http.MethodPost, path, "", "192.0.2.1:1"); got.Code != code {
			t.Errorf("%s: %d", path, got.Code)
		}
	}
	if got, _ := w.call(http.MethodGet, "/hooks/default/shop", "", "192.0.2.1:1"); got.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", got.Code)
	}
	big := string(bytes.Repeat([]byte{' '}, MaxBody+1))
	if got, _ := w.call(http.MethodPost, "/hooks/default/shop", big, "192.0.2.1:1", "X-Gitlab-Token", key); got.Code != http.StatusRequestEntityTooLarge || len(w.asked) > 0 {
		t.Errorf("too large: %d", got.Code)
	}
}

// One address that calls too often keeps no other from calling, and may again later.
func TestCallsAreLimited(t *testing.T) {
	var l limiter
	now := time.Now()
	n := 0
	for range 1000 {
		if l.allow("a", now) {
			n++
		}
	}
	if n != callsAtOnce || !l.allow("b", now) || l.allow("a", now) || !l.allow("a", now.Add(time.Second)) {
		t.Errorf("%d calls at once", n)
	}
	for i := range 3 * maxCallers {
		l.allow(fmt.Sprint("x", i), now)
	}
	if len(l.of) > maxCallers {
		t.Errorf("%d callers are kept", len(l.of))
	}
	if l.allow("y", now.Add(time.Hour)); len(l.of) != 1 {
		t.Errorf("%d callers are kept of an hour ago", len(l.of))
	}
	a := httptest.NewRequest(http.MethodPost, "/", nil)
	a.RemoteAddr = "[2001:db8::1]:5"
	b := httptest.NewRequest(http.MethodPost, "/", nil)
	b.RemoteAddr = "[2001:db8::2]:6"
	if callerOf(a) != callerOf(b) {
		t.Error("two addresses of one network are two callers")
	}
}
