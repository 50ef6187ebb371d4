package egress

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/idna"

	"towline.dev/towline/pkg/fleet"
)

// metadataNames are the names under which clouds serve machine credentials to their machines.
var metadataNames = []string{"metadata", "metadata.goog", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"}

// CheckHost checks the host of a URL, for a proxy looks it up and dials it for us. An address has to be one that may be dialled. A name must
// not be one of a metadata service, nor anything that a resolver may read as an address: many read all that ends in a number as one. What a
// name means is checked when it is dialled, by whoever dials it.
func (g Guard) CheckHost(u *url.URL) error {
	host := u.Hostname()
	if a, err := netip.ParseAddr(host); err == nil {
		return g.Check(a)
	}
	name, err := idna.Lookup.ToASCII(host) // as net/http writes it; it maps other digits and dots to those of ASCII
	if isASCII(host) {
		name, err = host, nil
	}
	name = strings.ToLower(strings.TrimRight(name, "."))
	if a, bad := netip.ParseAddr(name); err == nil && bad == nil {
		return g.Check(a)
	}
	switch last := name[strings.LastIndexByte(name, '.')+1:]; {
	case err != nil || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "":
		return refuseHost(host, "no name of a host")
	case strings.HasPrefix(last, "0x") || strings.Trim(last, "0123456789") == "":
		return refuseHost(host, "no IP address as they are written, and some would read it as another one")
	case slices.Contains(metadataNames, name):
		return refuseHost(host, "a metadata service")
	}
	return nil
}

func isASCII(s string) bool { return !strings.ContainsFunc(s, func(r rune) bool { return r > 0x7f }) }

func refuseHost(host, what string) error { return &RefusedAddr{fleet.Clip(host, 100), what} }

// Transport sends only requests whose host may be asked, wherever a redirect or an answer has led a client.
func (g Guard) Transport(next http.RoundTripper) http.RoundTripper { return guarded{g, next} }

type guarded struct {
	guard Guard
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t guarded) RoundTrip(req *http.Request) (*http.Response, error) {
	err := t.guard.CheckHost(req.URL)
	if err == nil {
		return t.next.RoundTrip(req)
	}
	if req.Body != nil {
		_ = req.Body.Close()
	}
	return nil, err
}
