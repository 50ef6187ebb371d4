package source

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// vault gives secrets of the project team.
type vault map[string]map[string]string

func (v vault) values(_ context.Context, project, name string) (map[string][]byte, error) {
	found, ok := v[name]
	if !ok || project != "team" {
		return nil, fleet.Errorf(fleet.ErrNotFound, "secret %s/%s is not there", project, name)
	}
	out := map[string][]byte{}
	for key, value := range found {
		out[key] = []byte(value)
	}
	return out, nil
}

// fetchWith fetches a URL with a secret of these values.
func fetchWith(t *testing.T, opts Options, address string, values map[string]string) error {
	t.Helper()
	opts.Secrets = vault{"repo": values}.values
	_, err := fetcher(t, opts).Fetch(t.Context(), "team", &towlinev1.Source{Http: &towlinev1.HttpSource{Url: address, SecretName: "repo", Timeout: "20s"}})
	return err
}

// TestSecretIsSent: each key becomes what it stands for.
func TestSecretIsSent(t *testing.T) {
	var got http.Header
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		_, _ = w.Write([]byte(manifestText))
	})
	for name, tc := range map[string]struct {
		values map[string]string
		want   map[string]string
	}{
		"basic":          {map[string]string{"username": "ci", "password": "p:w"}, map[string]string{"Authorization": "Basic Y2k6cDp3"}},
		"empty password": {map[string]string{"username": "ci", "password": ""}, map[string]string{"Authorization": "Basic Y2k6"}},
		"token":          {map[string]string{"token": "abc"}, map[string]string{"Authorization": "Bearer abc"}},
		"header":         {map[string]string{"header.x-api-key": "abc", "header.User-Agent": "me"}, map[string]string{"X-Api-Key": "abc", "User-Agent": "me", "Authorization": ""}},
		"other kinds'":   {map[string]string{"token": "abc", "identity": "-----BEGIN", "known_hosts": "h"}, map[string]string{"Authorization": "Bearer abc"}},
	} {
		if err := fetchWith(t, Options{}, base+"/a.yaml", tc.values); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for header, want := range tc.want {
			if got.Get(header) != want {
				t.Errorf("%s: %s is %q, want %q", name, header, got.Get(header), want)
			}
		}
	}
}

// TestSecretStaysWithItsHost: a redirect to another host or port gets nothing of it, one within the host does, and so does the way back.
func TestSecretStaysWithItsHost(t *testing.T) {
	var mu sync.Mutex
	sent := map[string][]string{}
	note := func(who string, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		with := ""
		for _, h := range []string{"Authorization", "X-Key", "Cookie"} {
			with += r.Header.Get(h)
		}
		sent[who] = append(sent[who], r.URL.Path+" "+with)
	}
	var home string
	away := serve(t, func(w http.ResponseWriter, r *http.Request) {
		note("away", r)
		if r.URL.Path == "/back" {
			http.Redirect(w, r, home+"/end", http.StatusFound)
			return
		}
		_, _ = w.Write([]byte(manifestText))
	})
	home = serve(t, func(w http.ResponseWriter, r *http.Request) {
		note("home", r)
		switch r.URL.Path {
		case "/within":
			http.Redirect(w, r, "/end", http.StatusFound)
		case "/away", "/back":
			http.Redirect(w, r, away+r.URL.Path, http.StatusFound)
		case "/name": // the same server by another name
			http.Redirect(w, r, strings.Replace(home, "127.0.0.1", "localhost", 1)+"/end", http.StatusFound)
		default:
			_, _ = w.Write([]byte(manifestText))
		}
	})
	values := map[string]string{"token": "abc", "header.X-Key": "def", "header.Cookie": "ghi"}
	const all = "Bearer abcdefghi"
	for path, want := range map[string]map[string][]string{
		"/within": {"home": {"/within " + all, "/end " + all}},
		"/away":   {"home": {"/away " + all}, "away": {"/away "}},
		"/back":   {"home": {"/back " + all, "/end " + all}, "away": {"/back "}},
		"/name":   {"home": {"/name " + all, "/end "}},
	} {
		clear(sent)
		if err := fetchWith(t, Options{}, home+path, values); err != nil {
			t.Fatal(err)
		}
		for _, who := range []string{"home", "away"} {
			if !slices.Equal(sent[who], want[who]) {
				t.Errorf("%s: %s was sent %q, want %q", path, who, sent[who], want[who])
			}
		}
	}
}

// TestSecretLacks: what is missing or cannot be is said with the field and the key, before any server is asked, and waits for a person.
func TestSecretLacks(t *testing.T) {
	asked := false
	base := serve(t, func(w http.ResponseWriter, _ *http.Request) { asked = true; w.WriteHeader(http.StatusTeapot) })
	for name, tc := range map[string]struct {
		values map[string]string
		want   string
	}{
		"no password":       {map[string]string{"username": "canary"}, "has username and no password: towline secret set repo password=-"},
		"no username":       {map[string]string{"password": "canary"}, "has password and no username"},
		"two logins":        {map[string]string{"username": "canary", "password": "canary", "token": "canary"}, "has both username and token"},
		"nothing of use":    {map[string]string{"identity": "canary"}, "has none of the keys that are sent over http: username and password, token, header.NAME, caFile"},
		"line break":        {map[string]string{"token": "canary\n"}, "token has a line break"},
		"break in header":   {map[string]string{"header.X": "canary\r\nHost: x"}, "header.X has a line break"},
		"colon":             {map[string]string{"username": "canary:x", "password": "canary"}, "username has a colon"},
		"no header":         {map[string]string{"header.": "canary"}, "header. names no header that can be set"},
		"host":              {map[string]string{"header.host": "canary"}, "header.host names no header that can be set"},
		"proxy":             {map[string]string{"header.Proxy-Authorization": "canary"}, "names no header that can be set"},
		"header twice":      {map[string]string{"header.Authorization": "canary", "token": "canary"}, "header.Authorization says again"},
		"header twice, too": {map[string]string{"header.X-A": "canary", "header.x-a": "canary"}, "says again what"},
		"no certificate":    {map[string]string{"caFile": "canary"}, "caFile has no certificate in PEM"},
	} {
		err := fetchWith(t, Options{}, base, tc.values)
		var waits *SecretError
		if !errors.As(err, &waits) || !strings.HasPrefix(err.Error(), "source.http.secretName: secret repo: ") || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	src := &towlinev1.Source{Http: &towlinev1.HttpSource{Url: base, SecretName: "none"}}
	_, err := fetcher(t, Options{Secrets: vault{}.values}).Fetch(t.Context(), "team", src)
	if want := "source.http.secretName: secret team/none is not there"; !errors.As(err, new(*SecretError)) || err.Error() != want || !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := fetcher(t, Options{}).Fetch(t.Context(), "team", src); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("without secrets: %v", err)
	}
	if asked {
		t.Error("a server was asked")
	}
}

// TestSecretIsNotSentInTheOpen: over http only to the hub's own machine, and not beside other credentials.
func TestSecretIsNotSentInTheOpen(t *testing.T) {
	for address, want := range map[string]string{
		"http://example.test/a.yaml":                   "the URL begins with http",
		"http://127.0.0.1.example.test/a.yaml":         "the URL begins with http",
		"https://canary:canary@example.test/a.yaml":    "has credentials",
		"http://canary:canary@127.0.0.1:1/a.yaml?x=no": "has credentials",
	} {
		err := fetchWith(t, Options{}, address, map[string]string{"token": "canary"})
		if !errors.Is(err, fleet.ErrInvalid) || !strings.HasPrefix(err.Error(), "source.http.secretName: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v, want %s", address, err, want)
		}
	}
}

// TestSecretHasAnAuthority: a server that only the secret vouches for is trusted, and by no other source.
func TestSecretHasAnAuthority(t *testing.T) {
	s := httptest.NewTLSServer(body([]byte(manifestText)))
	t.Cleanup(s.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	if err := fetchWith(t, Options{}, s.URL+"/a.yaml", map[string]string{"caFile": ca}); err != nil {
		t.Error(err)
	}
	if err := fetchWith(t, Options{}, s.URL+"/a.yaml", map[string]string{"token": "abc"}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("without it: %v", err)
	}
}

// TestSecretIsNotSaid: whatever a server does with what it is sent, no error and no log shows it.
func TestSecretIsNotSaid(t *testing.T) {
	values := map[string]string{"username": "canary-user", "password": "canary-password", "header.X-Key": "canary-header"}
	shown := []string{"canary", "Y2FuYXJ5"}
	hostile := map[string]http.HandlerFunc{
		"says it in the status": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, r.Header)
		},
		"is broken": func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, r.Header.Get("X-Key"), http.StatusBadGateway)
		},
		"redirects to it": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "https://"+r.Header.Get("X-Key")+".test/")
			w.WriteHeader(302)
		},
		"redirects to its scheme": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", r.Header.Get("X-Key")+"://x/")
			w.WriteHeader(302)
		},
		"redirects to a scheme that is clipped in the middle of it": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", strings.Repeat("x", 188)+r.Header.Get("X-Key")+"://x/")
			w.WriteHeader(302)
		},
		"redirects to no URL of it": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "://"+r.Header.Get("X-Key"))
			w.WriteHeader(302)
		},
		"redirects to its login": func(w http.ResponseWriter, r *http.Request) {
			u, p, _ := r.BasicAuth()
			w.Header().Set("Location", "http://"+url.UserPassword(u, p).String()+"@x.test:1/")
			w.WriteHeader(302)
		},
		"speaks no HTTP": func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				fmt.Fprintf(conn, "%s %s\r\n\r\n", r.Header.Get("X-Key"), r.Header.Get("Authorization"))
				_ = conn.Close()
			}
		},
		"has it as a header": func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\n%s\r\n\r\n", r.Header.Get("X-Key"))
				_ = conn.Close()
			}
		},
	}
	for name, handle := range hostile {
		var log bytes.Buffer
		err := fetchWith(t, Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}, serve(t, handle), values)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, word := range shown {
			if strings.Contains(err.Error()+log.String(), word) {
				t.Errorf("%s: %v\n%s", name, err, &log)
			}
		}
	}
}

// TestPartsOfASecretAreNotSaid: a server may say again only what stands behind the scheme of a header, what is packed in it, or a value as it stands in
// an address.
func TestPartsOfASecretAreNotSaid(t *testing.T) {
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("ci:canary-password"))
	for _, c := range []struct{ key, value, says string }{
		{"header.Authorization", "Bearer canary-token", "canary-token"},
		{"header.Authorization", basic, "canary-password"},
		{"header.Authorization", basic, strings.TrimPrefix(basic, "Basic ")},
		{"header.Authorization", "Token token=\"canary-token\", x", "canary-token"},
		{"header.X-Auth", "user:canary", "canary"},
		{"header.Authorization", "Token canary1", "canary1"},
		{"header.Private-Token", "canary/token+of a person", "canary%2Ftoken%2Bof+a+person"},
		{"token", "canary/token+of", "canary%2Ftoken+of"},
	} {
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nnot for %s\r\n\r\n", c.says)
				_ = conn.Close()
			}
		})
		err := fetchWith(t, Options{}, server, map[string]string{c.key: c.value})
		if err == nil || !strings.Contains(err.Error(), fleet.Masked) || strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %s of which the server says %s: %v", c.key, c.value, c.says, err)
		}
	}
}
