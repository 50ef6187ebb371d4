package gate

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"towline.dev/towline/hub/internal/egress"
	"towline.dev/towline/pkg/rollout"
)

func hook(u string) rollout.Gate {
	none := 0
	return rollout.Gate{Name: "smoke", Webhook: &rollout.Webhook{URL: u, Retries: &none, Timeout: 5 * time.Second}}
}

func TestWebhookAnswers(t *testing.T) {
	for _, c := range []struct {
		code int
		body string
		want rollout.GateState
		says string
	}{
		{200, `{"state": "Successful", "message": "fine"}`, rollout.GateSuccessful, "fine"},
		{202, `{"state": "Running"}`, rollout.GateRunning, ""},
		{200, `{"state": "Failed", "message": "12 errors", "more": 1}`, rollout.GateFailed, "12 errors"},
		{200, `{"state": "Inconclusive"}`, rollout.GateInconclusive, ""},
		{200, `{"state": "Great"}`, rollout.GateError, `answers state "Great"; it must be one of Successful, Failed, Running, Inconclusive`},
		{200, `{"state": "Error"}`, rollout.GateError, `answers state "Error"`},
		{200, "OK", rollout.GateError, "answers no JSON {\"state\": \"Successful\", \"message\": \"\"}: OK"},
		{200, "", rollout.GateError, "answers no JSON"},
		{200, `{"state": "Successful"} {`, rollout.GateError, "answers no JSON"},
		{200, strings.Repeat(" ", maxWebhookBody) + `{"state": "Successful"}`, rollout.GateError, "answers more than 65536 bytes"},
		{404, "no\x1b[31m such\npage" + strings.Repeat("x", 300), rollout.GateError, "answers 404 Not Found: no [31m such pagexxx"},
		{503, "busy", rollout.GateError, "answers 503 Service Unavailable: busy"},
		{302, "", rollout.GateError, "redirects are not followed"},
	} {
		u := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if c.code == 302 {
				w.Header().Set("Location", "/elsewhere")
			}
			say(c.code, c.body)(w, r)
		})
		got := answer(t, gates(t, Options{}), hook(u+"/ask?token=s3cret"))
		if got.Outcome != c.want || !strings.Contains(got.Message, c.says) || strings.Contains(got.Message, "s3cret") || len(got.Message) > 400 {
			t.Errorf("%d %.40q: %+v", c.code, c.body, got)
		}
	}
}

// TestRetriesCarryOneKey: a server that recovers is asked again; it can tell that the question is the same.
func TestRetriesCarryOneKey(t *testing.T) {
	var mu sync.Mutex
	keys, bodies := map[string]int{}, map[string]int{}
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		keys[r.Header.Get("Idempotency-Key")]++
		bodies[string(body)]++
		switch keys[r.Header.Get("Idempotency-Key")] {
		case 1:
			say(500, "")(w, r)
		case 2:
			w.Header().Set("Content-Length", "100") // breaks off in the body
			say(200, `{"state"`)(w, r)
		default:
			say(200, `{"state": "Successful"}`)(w, r)
		}
	})
	three := 3
	g := gates(t, Options{HubID: "h1"})
	got := answer(t, g, rollout.Gate{Name: "smoke", Webhook: &rollout.Webhook{URL: u, Retries: &three}})
	if got.Outcome != rollout.GateSuccessful || len(keys) != 1 || len(bodies) != 1 {
		t.Fatalf("%+v, keys %v, bodies %v", got, keys, bodies)
	}
	for body := range bodies {
		var q question
		if err := json.Unmarshal([]byte(body), &q); err != nil || q.Rollout != "shop/1" || q.Module != "default/shop" || q.Revision != 7 ||
			q.Stage != "canary" || q.Position != "after" || q.Gate != "smoke" || q.Check != 1 || q.Time.IsZero() {
			t.Errorf("question: %s", body)
		}
	}
	other := question{Rollout: "shop/1", Stage: "canary", Position: "after", Gate: "smoke", Check: 2}
	if keys[other.idempotency("h1")] != 0 {
		t.Error("the next check has the same key")
	}
	before := question{Rollout: "shop/1", Stage: "canary", Position: "after", Gate: "smoke", Check: 1}
	if keys["4a56c9f6d98bb0380195b208ac5c2ed8"] != 3 || keys[before.idempotency("h1")] != 3 { // of a rollout that began before the module's UID was written, a hub of before may have asked
		t.Error("a question that was asked has another key")
	}
	if before.of = "u1"; keys[before.idempotency("h1")] != 0 {
		t.Error("that of another module of the name has the same key")
	}
	dead := serve(t, say(502, "bad gateway"))
	got = answer(t, gates(t, Options{}), rollout.Gate{Webhook: &rollout.Webhook{URL: dead, Retries: &three}})
	if got.Outcome != rollout.GateError || !strings.Contains(got.Message, "answers 502 Bad Gateway, 4 times: bad gateway") {
		t.Errorf("%+v", got)
	}
}

func TestWhatWouldComeAgainIsNotRetried(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{"client error": say(400, ""), "too large": say(200, strings.Repeat(" ", maxWebhookBody+1))} {
		var asked atomic.Int32
		u := serve(t, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); h(w, r) })
		three := 3
		got := answer(t, gates(t, Options{}), rollout.Gate{Webhook: &rollout.Webhook{URL: u, Retries: &three}})
		if asked.Load() != 1 || got.Outcome != rollout.GateError {
			t.Errorf("%s: asked %d times: %+v", name, asked.Load(), got)
		}
	}
}

// verify is what a receiver does: the signature is over timestamp and body, and the timestamp is recent.
func verify(r *http.Request, key string, now time.Time) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	at, err := strconv.ParseInt(r.Header.Get(TimestampHeader), 10, 64)
	if err != nil || now.Sub(time.Unix(at, 0)).Abs() > 5*time.Minute {
		return fmt.Errorf("timestamp %q is not recent", r.Header.Get(TimestampHeader))
	}
	mac := hmac.New(sha256.New, []byte(key))
	_, _ = fmt.Fprintf(mac, "%d.%s", at, body)
	want := "sha256=" + hex.EncodeToString(mac.Sum(nil))
	if !hmac.Equal([]byte(want), []byte(r.Header.Get(SignatureHeader))) {
		return fmt.Errorf("wrong signature")
	}
	return nil
}

func TestSignedWebhook(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, key string
		env       map[string]string
		late      time.Duration
		want      rollout.GateState
		says      string
	}{
		{"right key", "k1", map[string]string{"HOOK_KEY": "k1"}, 0, rollout.GateSuccessful, ""},
		{"wrong key", "k1", map[string]string{"HOOK_KEY": "k2"}, 0, rollout.GateError, "answers 401 Unauthorized: wrong signature"},
		{"replayed", "k1", map[string]string{"HOOK_KEY": "k1"}, time.Hour, rollout.GateError, "is not recent"},
		{"no key", "k1", nil, 0, rollout.GateError, "environment variable HOOK_KEY of the hub is not set"},
		{"empty key", "", map[string]string{"HOOK_KEY": ""}, 0, rollout.GateError, "environment variable HOOK_KEY of the hub is not set"},
	} {
		u := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if err := verify(r, c.key, now.Add(c.late)); err != nil {
				http.Error(w, err.Error(), http.StatusUnauthorized)
				return
			}
			say(200, `{"state": "Successful"}`)(w, r)
		})
		spec := hook(u)
		spec.Webhook.HMACKeyEnv = "HOOK_KEY"
		got := answer(t, gates(t, Options{Now: func() time.Time { return now }, Env: func(k string) (string, bool) { v, ok := c.env[k]; return v, ok }}), spec)
		if got.Outcome != c.want || !strings.Contains(got.Message, c.says) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// TestHostileServers: whatever a server does, there is an answer soon, and it says what happened.
func TestHostileServers(t *testing.T) {
	slow, _, _ := hang(t)
	endless := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(bytes.Repeat([]byte("x"), 32<<10)); err != nil {
				return
			}
		}
	})
	trickle := serve(t, func(w http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-r.Context().Done():
				return
			case <-tick.C:
				_, _ = w.Write([]byte(" "))
				_ = http.NewResponseController(w).Flush()
			}
		}
	})
	failing := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		for {
			if _, err := w.Write(bytes.Repeat([]byte("y"), 32<<10)); err != nil {
				return
			}
		}
	})
	closed := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	for u, want := range map[string]string{slow: "no answer in 100ms", trickle: "no answer in 100ms", failing: "answers 500 Internal Server Error: yyy",
		endless: "answers more than 65536 bytes", closed: "cannot be asked: EOF", "http://169.254.169.254/latest": "metadata service",
		"http://[64:ff9b::a9fe:a9fe]/": "metadata service", "http://[fe80::1]/": "the hub does not connect to it", "http://name.invalid/": "cannot be asked"} {
		spec := hook(u)
		spec.Webhook.Timeout = 100 * time.Millisecond
		if u == endless || u == failing {
			spec.Webhook.Timeout = 5 * time.Second
		}
		if u == "http://name.invalid/" {
			spec.Webhook.Timeout = 10 * time.Second
		}
		got := answer(t, gates(t, Options{}), spec)
		if got.Outcome != rollout.GateError || !strings.Contains(got.Message, want) || len(got.Message) > 400 {
			t.Errorf("%s: %+v", u, got)
		}
	}
}

func TestSecretsOfAURLAreNotLogged(t *testing.T) {
	var log bytes.Buffer
	g := gates(t, Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	two := 2
	u := strings.Replace(serve(t, say(500, "")), "http://", "http://me:pa55@", 1)
	got := answer(t, g, rollout.Gate{Webhook: &rollout.Webhook{URL: u + "/x?token=s3cret", Retries: &two}})
	if all := log.String() + got.Message; strings.Contains(all, "s3cret") || strings.Contains(all, "pa55") || !strings.Contains(all, "retrying") {
		t.Errorf("logged: %s", all)
	}
}

func TestMetricAnswers(t *testing.T) {
	vector := func(values ...string) string {
		var s []string
		for _, v := range values {
			s = append(s, fmt.Sprintf(`{"metric": {"job": "x"}, "value": [1435781451.781, %q]}`, v))
		}
		return `{"status": "success", "data": {"resultType": "vector", "result": [` + strings.Join(s, ",") + `]}}`
	}
	data := func(kind, result string) string {
		return fmt.Sprintf(`{"status": "success", "data": {"resultType": %q, "result": %s}}`, kind, result)
	}
	warns := func(answer, more string) string {
		return strings.Replace(answer, `{"status": "success",`, `{"status": "success", `+more+",", 1)
	}
	for _, c := range []struct {
		code int
		body string
		want rollout.GateState
		says string
	}{
		{200, warns(vector("0.01"), `"warnings": ["store eu-1 is away", "no data"]`), rollout.GateInconclusive, "successCondition holds for [0.01], but the server warns: store eu-1 is away; no data"},
		{200, warns(vector("0.01"), `"isPartial": true`), rollout.GateInconclusive, "but the server warns: the answer is partial"},
		{200, warns(vector("0.5"), `"warnings": ["store eu-1 is away"]`), rollout.GateFailed, "failureCondition holds for [0.5], but the server warns: store eu-1 is away"},
		{200, warns(vector(), `"warnings": ["store eu-1 is away"]`), rollout.GateInconclusive, "the query has no result, but the server warns: store eu-1 is away"},
		{200, warns(vector("0.01"), `"warnings": ["PromQL info: metric might not be a counter"], "infos": ["x"], "isPartial": false`), rollout.GateSuccessful, "successCondition holds for [0.01]"},
		{200, warns(vector("0.01"), `"warnings": null`), rollout.GateSuccessful, ""},
		{200, vector("0.01"), rollout.GateSuccessful, "successCondition holds for [0.01]"},
		{200, vector("0.01", "0.5"), rollout.GateFailed, "failureCondition holds for [0.01 0.5]"},
		{200, vector("0.1"), rollout.GateInconclusive, "no condition holds"},
		{200, vector(), rollout.GateInconclusive, "the query has no result"},
		{200, vector("NaN"), rollout.GateInconclusive, "[NaN]"},
		{200, vector("+Inf"), rollout.GateFailed, "[+Inf]"},
		{200, data("scalar", `[1435781451.781, "0.01"]`), rollout.GateSuccessful, ""},
		{200, data("matrix", `[]`), rollout.GateError, "gives a range"},
		{200, data("string", `[1, "x"]`), rollout.GateError, `gives a "string"`},
		{200, data("vector", `[{"histogram": [1, {}]}]`), rollout.GateError, "gives a histogram"},
		{200, data("vector", `[{"value": [1]}]`), rollout.GateError, "malformed"},
		{200, data("vector", `{}`), rollout.GateError, "malformed"},
		{200, vector("many"), rollout.GateError, `no number: "many"`},
		{200, vector(strings.Split(strings.Repeat("1,", maxSeries)+"1", ",")...), rollout.GateError, "gives 1001 series; at most 1000"},
		{400, `{"status": "error", "errorType": "bad_data", "error": "parse error at char 3"}`, rollout.GateError, "bad_data: parse error at char 3"},
		{200, "<html>login", rollout.GateError, "does not answer as Prometheus does: <html>login"},
		{404, "", rollout.GateError, "answers 404 Not Found"},
		{500, "down", rollout.GateError, "answers 500 Internal Server Error, 3 times: down"},
		{200, strings.Repeat(" ", maxMetricBody+1), rollout.GateError, "answers more than"},
	} {
		var query string
		u := serve(t, func(w http.ResponseWriter, r *http.Request) {
			query = r.Method + " " + r.URL.Path + " " + r.URL.Query().Get("tenant") + " " + r.URL.Query().Get("query")
			say(c.code, c.body)(w, r)
		})
		got := answer(t, gates(t, Options{}), rollout.Gate{Metric: &rollout.Metric{Address: u + "/prom/?tenant=t1", Query: `sum(rate(x{a="b"}[5m]))`,
			SuccessCondition: "result.all(x, x < 0.05)", FailureCondition: "result.exists(x, x > 0.2)"}})
		if got.Outcome != c.want || !strings.Contains(got.Message, c.says) {
			t.Errorf("%d %.60q: %+v", c.code, c.body, got)
		}
		if want := `GET /prom/api/v1/query t1 sum(rate(x{a="b"}[5m]))`; query != want {
			t.Errorf("asked %s", query)
		}
		if c.want == rollout.GateSuccessful && got.Value != "[0.01]" {
			t.Errorf("value %q", got.Value)
		}
		if _, warning, warned := strings.Cut(c.says, ", but "); warned && !strings.HasSuffix(got.Value, ", but "+warning) { // which a person is shown
			t.Errorf("value %q, and not %q", got.Value, warning)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no log, no error")
	}
}

// A gate is asked at no private address where the hub's setting says so, by address or by name.
func TestGatesDenyPrivateAddresses(t *testing.T) {
	asked := false
	server := serve(t, func(http.ResponseWriter, *http.Request) { asked = true })
	port := server[strings.LastIndex(server, ":"):]
	for _, u := range []string{server, "http://localhost" + port, "http://10.1.2.3/", "http://[fd00::1]/"} {
		got := answer(t, gates(t, Options{HTTP: HTTP{Guard: egress.Guard{DenyPrivate: true}}}), hook(u))
		if got.Outcome != rollout.GateError || !strings.Contains(got.Message, "loopback or private") {
			t.Errorf("%s: %+v", u, got)
		}
	}
	if asked {
		t.Error("the server was asked")
	}
}

// A proxy is asked for no metadata service, in whatever way a gate writes its address.
func TestGatesBehindAProxy(t *testing.T) {
	var asked atomic.Int32
	at, err := url.Parse(serve(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	if err != nil {
		t.Fatal(err)
	}
	proxy := http.ProxyURL(at)
	for _, u := range []string{"http://2852039166/", "http://0xa9fea9fe/", "http://169.254.169.254./", "http://metadata.google.internal/"} {
		got := answer(t, gates(t, Options{HTTP: HTTP{Proxy: proxy}}), hook(u))
		if got.Outcome != rollout.GateError || !strings.Contains(got.Message, "the hub does not connect to it") || asked.Load() != 0 {
			t.Errorf("%s: asked %d times: %+v", u, asked.Load(), got)
		}
	}
}

// A bug that a gate sets off is the answer of that gate, and ends nothing else.
func TestPanicInAGateIsItsAnswer(t *testing.T) {
	server := serve(t, func(http.ResponseWriter, *http.Request) {})
	got := answer(t, gates(t, Options{HTTP: HTTP{Proxy: func(*http.Request) (*url.URL, error) { panic("a secret detail") }}}), hook(server))
	if got.Outcome != rollout.GateError || !strings.Contains(got.Message, "bug in the hub") || strings.Contains(got.Message, "secret") {
		t.Errorf("%+v", got)
	}
}

// TestServersThatRepeatWhatTheyWereAskedAsNoAnswer: what is no answer is not shown with the secrets in it either.
func TestServersThatRepeatWhatTheyWereAskedAsNoAnswer(t *testing.T) {
	raw := func(reply string) string {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					_, _ = fmt.Fprintf(c, reply, req.URL.RequestURI())
				}
				_ = c.Close()
			}
		}()
		return "http://" + ln.Addr().String()
	}
	none := 0
	for _, reply := range []string{"HTTP/1.1 %s\r\n\r\n", "HTTP/1.1 302 Found\r\nLocation: http://[%s\r\nContent-Length: 0\r\n\r\n", "%s\r\n\r\n"} {
		hook := answer(t, gates(t, Options{}), rollout.Gate{Webhook: &rollout.Webhook{URL: raw(reply) + "/services/T0KEN0T0KEN0/x?key=qu3ry-value", Retries: &none}})
		if strings.Contains(hook.Message, "T0KEN0") || strings.Contains(hook.Message, "qu3ry") || hook.Message == "" {
			t.Errorf("%q: %s", reply, hook.Message)
		}
	}
	for _, result := range []string{`"resultType": "%s"`, `"resultType": "scalar", "result": [1, "%s"]`} {
		u := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, `{"status": "success", "data": {`+result+`}}`, r.URL.Query().Get("key"))
		})
		metric := answer(t, gates(t, Options{}), rollout.Gate{Metric: &rollout.Metric{Address: u + "/?key=qu3ry-value", Query: "up-and-running", SuccessCondition: "true"}})
		if strings.Contains(metric.Message, "qu3ry") || metric.Message == "" {
			t.Errorf("%s: %s", result, metric.Message)
		}
	}
}

// TestServersThatRepeatWhatTheyWereAsked: what of an address is secret is not shown either when the server says it, also behind the first words.
func TestServersThatRepeatWhatTheyWereAsked(t *testing.T) {
	repeats := func(state string, code int) string {
		u := serve(t, func(w http.ResponseWriter, r *http.Request) {
			all := fmt.Sprint("no: ", r.URL.Path, " ", r.URL.RawQuery, " ", r.Header, " v1")
			w.WriteHeader(code)
			if state == "" {
				_, _ = io.WriteString(w, all)
				return
			}
			_ = json.NewEncoder(w).Encode(map[string]string{"state": state, "message": all, "status": "error", "error": all})
		})
		return strings.Replace(u, "http://", "http://deployer:pa55%2Fword@", 1)
	}
	none := 0
	for _, state := range []string{"", "Failed", "none"} {
		for _, code := range []int{200, 403} {
			hook := answer(t, gates(t, Options{}), rollout.Gate{Webhook: &rollout.Webhook{URL: repeats(state, code) + "/services/T0KEN0/x?key=qu3ry-value", Retries: &none}})
			metric := answer(t, gates(t, Options{}), rollout.Gate{Metric: &rollout.Metric{Address: repeats(state, code) + "/?key=qu3ry-value", Query: "up-and-running", SuccessCondition: "true"}})
			for _, secret := range []string{"pa55", "T0KEN0", "qu3ry", "deployer", base64.StdEncoding.EncodeToString([]byte("deployer:pa55/word"))} {
				if strings.Contains(hook.Message, secret) || secret != "T0KEN0" && strings.Contains(metric.Message, secret) {
					t.Errorf("state %q, %d: shows %s: %s; %s", state, code, secret, hook.Message, metric.Message)
				}
			}
			if state != "none" && !strings.Contains(hook.Message, "no: ***") {
				t.Errorf("state %q, %d: does not say what it was answered: %s", state, code, hook.Message)
			}
		}
	}
}
