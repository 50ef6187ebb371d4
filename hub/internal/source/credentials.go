package source

import (
	"crypto/x509"
	"net/http"
	"net/url"
	"strings"
)

// credentials add headers to requests to one origin, and to no other, wherever that redirects to.
type credentials struct {
	origin  *url.URL
	headers http.Header
	next    http.RoundTripper
}

// RoundTrip sends a request, with the headers if it goes to the origin.
func (c *credentials) RoundTrip(req *http.Request) (*http.Response, error) {
	if len(c.headers) == 0 || !sameOrigin(req.URL, c.origin) {
		return c.next.RoundTrip(req)
	}
	with := req.Clone(req.Context())
	for name, values := range c.headers {
		with.Header[name] = values
	}
	return c.next.RoundTrip(with)
}

// sameOrigin reports that two URLs are of one scheme, host and port.
func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && portOf(a) == portOf(b)
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "http":
		return "80"
	}
	return "443"
}

// authorities verify a server: those that every source has, and those of the secret.
func (f *Fetcher) authorities(s *secret) (*x509.CertPool, error) {
	if s == nil || s.values[keyCA] == nil {
		return f.opts.RootCAs, nil
	}
	pool, err := f.opts.RootCAs, error(nil)
	if pool != nil {
		pool = pool.Clone()
	} else if pool, err = x509.SystemCertPool(); err != nil {
		pool = x509.NewCertPool() // the machine has none
	}
	if !pool.AppendCertsFromPEM(s.values[keyCA]) {
		return nil, s.wants("%s has no certificate in PEM", keyCA)
	}
	return pool, nil
}
