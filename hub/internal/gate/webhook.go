package gate

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/rollout/expr"
)

// Headers of a signed webhook. The signature is "sha256=" and the hexadecimal HMAC-SHA256 of the timestamp, a dot and
// the body; the timestamp is in seconds since 1970 and made anew for each try.
const (
	SignatureHeader = "X-Towline-Signature"
	TimestampHeader = "X-Towline-Timestamp"
	maxWebhookBody  = 64 << 10
)

// question is the body of a webhook.
type question struct {
	Rollout  string    `json:"rollout"`
	Module   string    `json:"module"`
	Revision int64     `json:"revision"`
	Stage    string    `json:"stage"`
	Position string    `json:"position"`
	Gate     string    `json:"gate"`
	Check    int       `json:"check"`
	Time     time.Time `json:"time"`

	// of is the UID of the module: another one of the name has rollouts of the same numbers. Empty: the rollout began before that was written, and may
	// have been asked about without it.
	of string
}

// idempotency is equal for all tries of one check.
func (q question) idempotency(hub string) string {
	key := fmt.Appendf(nil, "%q %q %q %q %q %d", hub, q.Rollout, q.Stage, q.Position, q.Gate, q.Check)
	if q.of != "" {
		key = fmt.Appendf(key, " %q", q.of)
	}
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:16])
}

// verdict is the answer of a webhook.
type verdict struct {
	State   string `json:"state"`
	Message string `json:"message"`
}

var states = []rollout.GateState{rollout.GateSuccessful, rollout.GateFailed, rollout.GateRunning, rollout.GateInconclusive}

func (g *Gates) webhook(ctx context.Context, spec *rollout.Webhook, q question) expr.Answer {
	u, err := url.Parse(spec.URL)
	if err != nil {
		return failure("the webhook's url is no URL")
	}
	q.Time = g.o.Now().UTC()
	body, err := json.Marshal(q)
	if err != nil {
		return failure("the question cannot be written: %s", err)
	}
	r := &request{method: http.MethodPost, url: u, body: body, timeout: spec.Timeout, limit: maxWebhookBody, hidePath: true,
		header: http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {q.idempotency(g.o.HubID)}}}
	if spec.Retries != nil {
		r.retries = *spec.Retries
	}
	if spec.HMACKeyEnv != "" {
		secret, ok := g.o.Env(spec.HMACKeyEnv)
		if !ok || secret == "" {
			return failure("environment variable %s of the hub is not set: it holds the key that signs this webhook", spec.HMACKeyEnv)
		}
		r.sign = func(h http.Header) { sign(h, []byte(secret), g.o.Now(), body) }
	}
	out, err := g.do(ctx, r)
	if err != nil {
		return failure("%s", err)
	}
	return r.verdict(out)
}

func sign(h http.Header, secret []byte, now time.Time, body []byte) {
	at := strconv.FormatInt(now.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(at + "."))
	mac.Write(body)
	h.Set(TimestampHeader, at)
	h.Set(SignatureHeader, "sha256="+hex.EncodeToString(mac.Sum(nil)))
}

func (r *request) verdict(out reply) expr.Answer {
	if out.code < 200 || out.code > 299 {
		return failure("%s", r.status(out))
	}
	var v verdict
	if err := json.Unmarshal(out.body, &v); err != nil || v.State == "" {
		return failure(`%s: answers no JSON {"state": "Successful", "message": ""}%s`, r.name(), colon(r.said(out.body)))
	}
	for _, s := range states {
		if v.State == string(s) {
			return expr.Answer{Outcome: s, Message: r.said([]byte(v.Message))}
		}
	}
	words := make([]string, len(states))
	for i, s := range states {
		words[i] = string(s)
	}
	return failure("%s: answers state %q; it must be one of %s", r.name(), r.said([]byte(v.State)), strings.Join(words, ", "))
}
