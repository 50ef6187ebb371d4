package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// said is a Status as an API server writes it.
func said(code int, reason, message, details string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":%q,"details":%s,"code":%d}`, message, reason, details, code)
}

// TestJudge is the table of what was answered, by kube-apiserver, by API servers of others behind it, and by what stands before it, and what it means
// for a read and for a write.
func TestJudge(t *testing.T) {
	const page, none = "<html><body>something</body></html>", "{}"
	const its = `{"name":"a","kind":"secrets"}`
	for name, tc := range map[string]struct {
		code        int
		body        string
		read, write Answer
	}{
		// kube-apiserver
		"no such object":                {404, said(404, "NotFound", `secrets "a" not found`, its), Gone, Gone},
		"no such kind in its group":     {404, said(404, "NotFound", "the server could not find the requested resource", none), Unserved, Unserved},
		"no such group":                 {404, "404 page not found\n", Unserved, Unserved},
		"another version":               {409, said(409, "Conflict", `Operation cannot be fulfilled on secrets "a": the object has been modified`, its), Conflict, Conflict},
		"it exists":                     {409, said(409, "AlreadyExists", `secrets "a" already exists`, its), Exists, Exists},
		"no right":                      {403, said(403, "Forbidden", `secrets "a" is forbidden: User "u" cannot get resource "secrets"`, its), Forbidden, Forbidden},
		"unknown who asks":              {401, said(401, "Unauthorized", "Unauthorized", none), Unauthorized, Unauthorized},
		"a field is wrong":              {422, said(422, "Invalid", `Secret "a" is invalid: data: Invalid value`, its), Invalid, Invalid},
		"a field is unknown":            {400, said(400, "BadRequest", `strict decoding error: unknown field "x"`, none), BadRequest, BadRequest},
		"no such verb":                  {405, said(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", none), Unsupported, Unsupported},
		"another media type":            {415, said(415, "UnsupportedMediaType", "the body of the request was in an unknown format", none), Refused, Refused},
		"too large":                     {413, said(413, "RequestEntityTooLarge", "limit is 3145728", none), Refused, Refused},
		"an old version":                {410, said(410, "Expired", "too old resource version", none), Refused, Refused},
		"too many requests":             {429, "Too many requests, please try again later.", Busy, Busy},
		"too many for a priority":       {429, said(429, "TooManyRequests", "too many requests", none), Busy, Busy},
		"it starts":                     {503, said(503, "ServiceUnavailable", "the request has been made before all known HTTP paths have been installed, please try again", none), Failed, Failed},
		"it ran out of time":            {504, said(504, "Timeout", "Timeout: request did not complete within requested timeout - context deadline exceeded", none), Unknown, Unknown},
		"it waits for its cache":        {504, said(504, "Timeout", "Timeout: Too large resource version: 9, current: 8", none), Unknown, Unknown},
		"it ran into a bug":             {500, "This request caused apiserver to panic. Look in the logs for details.", Unknown, Unknown},
		"its store timed out":           {500, said(500, "", "etcdserver: request timed out", none), Unknown, Unknown},
		"its store has no leader":       {500, said(500, "", "etcdserver: leader changed", none), Unknown, Unknown},
		"its store broke":               {500, said(500, "", "rpc error: code = Unavailable desc = error reading from server: EOF", none), Unknown, Unknown},
		"its store is full":             {500, said(500, "", "etcdserver: mvcc: database space exceeded", none), Unknown, Unknown},
		"a webhook is away":             {500, said(500, "InternalError", `Internal error occurred: failed calling webhook "w.example.com": failed to call webhook: Post "https://w.a.svc:443/": context deadline exceeded`, none), Failed, Failed},
		"a conversion is away":          {500, said(500, "InternalError", `conversion webhook for example.com/v1, Kind=A failed: Post "https://w.a.svc:443/": EOF`, none), Failed, Failed},
		"a webhook denies as not found": {404, said(404, "NotFound", `admission webhook "w.example.com" denied the request: tenants "a" not found`, its), Forbidden, Forbidden},
		"a webhook denies as conflict":  {409, said(409, "Conflict", `admission webhook "w.example.com" denied the request: no`, its), Forbidden, Forbidden},
		// an API server of others
		"its server is away":       {503, "service unavailable\n", Unknown, Unknown},
		"its server broke":         {503, "error trying to reach service: dial tcp 10.0.0.1:443: connect: connection refused", Unknown, Unknown},
		"not found, in no words":   {404, "", Unserved, Unserved},
		"not found, in its JSON":   {404, `{"error":"not found"}`, Unserved, Unserved},
		"no code":                  {404, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no"}`, Unknown, Unknown},
		"no code, and a reason":    {404, said(0, "NotFound", `secrets "a" not found`, its), Gone, Gone},
		"another code":             {200, said(404, "NotFound", `secrets "a" not found`, its), Gone, Done}, // the API server said so, whoever has passed it on
		"a Status of success":      {200, `{"kind":"Status","apiVersion":"v1","status":"Success"}`, Unknown, Unknown},
		"a Status of success, 404": {404, `{"kind":"Status","apiVersion":"v1","status":"Success","code":200}`, Unserved, Unserved},
		// what stands before it
		"a page, 200":   {200, page, Unknown, Unknown},
		"half, 200":     {200, `{"kind":"Secret","apiVersion":"v1","metadata":{"na`, Unknown, Unknown},
		"a page, 202":   {202, page, Unknown, Unknown},
		"moved":         {301, page, Stranger, Stranger},
		"found":         {302, page, Stranger, Stranger},
		"not modified":  {304, "", Stranger, Stranger},
		"go there":      {307, page, Stranger, Stranger},
		"a page, 400":   {400, page, Stranger, Stranger},
		"a page, 401":   {401, page, Stranger, Stranger},
		"a page, 403":   {403, page, Stranger, Stranger},
		"a page, 404":   {404, page, Unserved, Unserved},
		"a page, 405":   {405, page, Stranger, Stranger},
		"a page, 407":   {407, page, Stranger, Stranger},
		"a page, 408":   {408, page, Unknown, Unknown},
		"a page, 409":   {409, page, Stranger, Stranger},
		"a page, 410":   {410, page, Stranger, Stranger},
		"a page, 413":   {413, page, Stranger, Stranger},
		"a page, 418":   {418, page, Stranger, Stranger},
		"a page, 422":   {422, page, Stranger, Stranger},
		"a page, 429":   {429, page, Busy, Busy},
		"a page, 500":   {500, page, Unknown, Unknown},
		"a page, 502":   {502, page, Unknown, Unknown},
		"a page, 503":   {503, page, Unknown, Unknown},
		"a page, 504":   {504, page, Unknown, Unknown},
		"a page, 520":   {520, page, Unknown, Unknown},
		"its JSON, 403": {403, `{"message":"access denied by policy"}`, Stranger, Stranger},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				if strings.HasPrefix(tc.body, "{") {
					w.Header().Set("Content-Type", "application/json")
				}
				w.WriteHeader(tc.code)
				_, _ = io.WriteString(w, tc.body)
			}))
			t.Cleanup(server.Close)
			c, err := New(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			secrets := c.Secrets("n")
			_, err = secrets.Get(t.Context(), "a", metav1.GetOptions{})
			if got := Judge(err); got != tc.read {
				t.Errorf("read: %d, want %d: %v", got, tc.read, err)
			}
			err = Denied(secrets.rest.Patch("application/apply-patch+yaml").AbsPath("/api/v1/namespaces/n/secrets/a").Body([]byte("{}")).MaxRetries(0).Do(t.Context()).Into(&metav1.PartialObjectMetadata{}))
			if tc.code >= 300 && Judge(err) != tc.write {
				t.Errorf("write: %d, want %d: %v", Judge(err), tc.write, err)
			}
		})
	}
}

// TestJudgeWithoutAnAnswer: whatever ends a request before its answer, it may have been sent.
func TestJudgeWithoutAnAnswer(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx   context.Context
		serve func(net.Conn)
	}{
		"nobody waits any more": {canceled, func(net.Conn) {}},
		"closed at once":        {t.Context(), func(net.Conn) {}},
		"closed in the answer":  {t.Context(), func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Le") }},
		"closed in the object":  {t.Context(), func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"kind\":") }},
		"no HTTP":               {t.Context(), func(c net.Conn) { _, _ = io.WriteString(c, "220 mail.example.com ESMTP\r\n") }},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = c.Read(make([]byte, 4096))
					tc.serve(c)
					_ = c.Close()
				}
			}()
			c, err := New(&rest.Config{Host: "http://" + l.Addr().String()})
			if err != nil {
				t.Fatal(err)
			}
			err = c.Secrets("n").Delete(tc.ctx, "a", metav1.DeleteOptions{})
			if err == nil || Judge(err) != Unknown {
				t.Errorf("%d: %v", Judge(err), err)
			}
		})
	}
	if err := error(nil); Judge(err) != Done || Judge(errors.New("http2: server sent GOAWAY and closed the connection")) != Unknown || Judge(fmt.Errorf("wrapped: %w", context.DeadlineExceeded)) != Unknown {
		t.Error("no error, or one of the connection")
	}
}
