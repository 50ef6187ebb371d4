package source

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/egress"
	"towline.dev/towline/pkg/fleet"
)

const (
	retries       = 3
	maxRetryWait  = 10 * time.Second
	maxRedownload = 2 // more tries when the connection breaks in the body
)

func (f *Fetcher) fetchHTTP(ctx context.Context, project string, src *towlinev1.HttpSource) (Artifact, error) {
	r, err := readRequest(src)
	if err != nil {
		return Artifact{}, err
	}
	if err := r.furnish(ctx, f, project, src); err != nil {
		return Artifact{}, err
	}
	client, err := f.client(r.place)
	if err != nil {
		return Artifact{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	key := cacheKey("http", project, src.GetUrl(), r.secret.digest(), src.GetSha256())
	known, has := f.cache.get(key)
	r.again = &revalidation{}
	if has {
		r.again.known, known.Ref = readValidators(known.Ref), ""
	}
	body, err := f.download(ctx, client, r)
	if err != nil {
		return Artifact{}, err
	}
	if r.again.same {
		return known, nil
	}
	a, err := f.fileArtifact(ctx, r, body)
	if err != nil {
		return Artifact{}, err
	}
	kept := a
	kept.Ref = r.again.next.String()
	f.cache.put(key, kept)
	return a, nil
}

// fileArtifact makes an artifact of what was downloaded, if it is what is wanted.
func (f *Fetcher) fileArtifact(ctx context.Context, r request, body []byte) (Artifact, error) {
	if got := fleet.DigestOf(body); !r.want.IsZero() && got != r.want {
		return Artifact{}, fleet.Errorf(fleet.ErrCorrupt, "source %s: has SHA-256 %s, but %s is wanted: check the file, or change source.http.sha256", r.name, got, r.want)
	}
	a, err := f.unpackWith(ctx, func(ctx context.Context) (map[string][]byte, error) { return open(ctx, body, r.url, f.opts.TempDir) })
	if err != nil {
		return Artifact{}, r.explain(ctx, err)
	}
	return a, nil
}

// request is a checked HTTP source.
type request struct {
	place
	want    fleet.Digest
	most    int64 // bytes that are taken; 0: MaxDownloadBytes
	tooMuch error // what is wrong with more; nil: errTooLarge
	again   *revalidation
}

func readRequest(src *towlinev1.HttpSource) (request, error) {
	u, err := url.Parse(src.GetUrl())
	if err != nil || u.Host == "" || u.Hostname() == "" {
		return request{}, fleet.Invalid("source.http.url", "is no URL: write https://HOST/PATH")
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return request{}, fleet.Invalidf("source.http.url", "begins with %s: only http and https are allowed", clip(u.Scheme))
	}
	r := request{place: place{url: u, name: safeURL(u), field: "source.http", address: "source.http.url"}}
	if src.GetSecretName() != "" {
		if err := fleet.MaySendSecret(src.GetUrl()); err != nil {
			return request{}, fleet.Invalid("source.http.secretName", err.Error())
		}
	}
	if src.GetSha256() != "" {
		if r.want, err = fleet.ParseDigest(src.GetSha256()); err != nil {
			return request{}, fleet.Invalid("source.http.sha256", err.Error())
		}
		if r.want.IsZero() {
			return request{}, fleet.Invalid("source.http.sha256", "is all zeros, which is no file's digest; leave it out to check none")
		}
	}
	return r, nil
}

// readTimeout reads how long a fetch may take.
func readTimeout(field, text string) (time.Duration, error) {
	if text == "" {
		return DefaultTimeout, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > MaxTimeout {
		return 0, fleet.Invalidf(field, "%q is no duration up to %s: write, for example, 90s", clip(text), MaxTimeout)
	}
	return d, nil
}

// safeURL is a URL for logs and messages: credentials, query and fragment often are secrets.
func safeURL(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// download gets the body, again if the connection breaks while it comes.
func (f *Fetcher) download(ctx context.Context, client *retryablehttp.Client, r request) ([]byte, error) {
	for try := 0; ; try++ {
		body, again, err := f.get(ctx, client, r)
		if err == nil {
			return body, nil
		}
		if !again || try == maxRedownload || ctx.Err() != nil {
			return nil, r.explain(ctx, err)
		}
	}
}

// get makes one request with its retries. Again says that the body broke off and another request may bring all of it.
func (f *Fetcher) get(ctx context.Context, client *retryablehttp.Client, r request) (body []byte, again bool, err error) {
	req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, r.url.String(), nil)
	if err != nil {
		return nil, false, errors.New("is no URL that can be fetched")
	}
	req.Header.Set("User-Agent", "towline-hub")
	asked := r.again != nil && r.again.known.ask(req.Header, time.Now())
	resp, err := client.Do(req)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = resp.Body.Close() }()
	redirected := resp.Request.URL.String() != r.url.String()
	switch {
	case asked && resp.StatusCode == http.StatusNotModified:
		err := r.again.notModified(resp.Header, redirected)
		return nil, err != nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, false, newStatusError(resp)
	case r.again != nil:
		r.again.next = validatorsOf(resp.Header, redirected, time.Now())
	}
	most, tooMuch := cmp.Or(r.most, MaxDownloadBytes), cmp.Or(r.tooMuch, errTooLarge)
	if resp.ContentLength > most {
		return nil, false, tooMuch
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err != nil {
		return nil, true, err
	}
	switch {
	case int64(len(body)) > most:
		return nil, false, tooMuch
	case resp.Header.Get("Content-Range") != "" && r.want.IsZero():
		return nil, false, refused("is a part of it, by its Content-Range, though nobody asked for one: what the rest lists would be deleted; look at what caches it, or set the sha256")
	case endless(resp) && r.want.IsZero() && !gzipped(body):
		return nil, false, refused("may be cut off: the server says neither its length (Content-Length) nor where it ends (chunked): have it say that, serve a tar.gz, or set the sha256")
	}
	return body, false, nil
}

// endless reports that only the end of the connection says where the body ends: one that is cut off looks whole, and what it does not list any
// more would be deleted.
func endless(resp *http.Response) bool {
	return resp.ProtoMajor == 1 && resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && !resp.Uncompressed
}

// client makes a client for one fetch.
func (f *Fetcher) client(r place) (*retryablehttp.Client, error) {
	headers, err := r.secret.headers()
	if err != nil {
		return nil, err
	}
	return f.clientWith(r, headers)
}

// clientWith makes a client for one fetch that sends headers to where the place is.
func (f *Fetcher) clientWith(r place, headers http.Header) (*retryablehttp.Client, error) {
	roots, err := f.authorities(r.secret)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: f.guard().Control}
	transport := &http.Transport{
		Proxy:                  f.opts.Proxy,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // the digest is of the bytes as they are served
		DisableKeepAlives:      true,
		ForceAttemptHTTP2:      true,
	}
	return &retryablehttp.Client{
		HTTPClient:   &http.Client{CheckRedirect: f.checkRedirect, Transport: &credentials{origin: r.url, headers: headers, next: f.guard().Transport(transport)}},
		Logger:       egress.RetryLog{Log: f.opts.Log, What: "source", Cause: r.cause, URL: safeURL},
		RetryMax:     retries,
		RetryWaitMin: f.opts.RetryWait,
		RetryWaitMax: maxRetryWait,
		CheckRetry:   checkRetry,
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
		Backoff: func(least, most time.Duration, attempt int, resp *http.Response) time.Duration {
			return min(max(retryablehttp.DefaultBackoff(least, most, attempt, resp), least), most)
		},
	}, nil
}

// checkRetry retries what a server may recover from, and nothing that was refused here.
func checkRetry(ctx context.Context, resp *http.Response, err error) (bool, error) {
	var addr *egress.RefusedAddr
	var redirect *refusedRedirect
	if errors.As(err, &addr) || errors.As(err, &redirect) {
		return false, nil
	}
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return false, nil
	}
	return retryablehttp.DefaultRetryPolicy(ctx, resp, err)
}

// refusedRedirect says why a redirect is not followed.
type refusedRedirect struct{ why string }

func (e *refusedRedirect) Error() string { return e.why }

// checkRedirect keeps redirects few, encrypted once encrypted, and free of what the first URL's secrets are.
func (f *Fetcher) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > MaxRedirects {
		return &refusedRedirect{"is redirected more than 5 times: write the URL it ends at"}
	}
	first, last := via[0].URL, via[len(via)-1].URL
	if req.URL.Scheme != "https" && req.URL.Scheme != "http" {
		return &refusedRedirect{"redirects to " + clip(req.URL.Scheme) + ": only http and https are allowed"}
	}
	if last.Scheme == "https" && req.URL.Scheme != "https" {
		return &refusedRedirect{"redirects from https to http at " + clip(req.URL.Host) + ": write a URL that stays encrypted"}
	}
	req.Header.Del("Referer") // it would carry the query
	if req.URL.Scheme == first.Scheme && req.URL.Host == first.Host {
		req.URL.User = first.User
	} else {
		req.URL.User = nil
		req.Header.Del("Authorization")
	}
	return nil
}

func (f *Fetcher) guard() egress.Guard { return egress.Guard{DenyPrivate: f.opts.DenyPrivate} }
