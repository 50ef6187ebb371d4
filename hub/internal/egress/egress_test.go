package egress

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	for addr, want := range map[string]string{ // "", private (refused with DenyPrivate) or always
		"93.184.216.34": "", "2606:2800:220:1::1": "", "172.32.0.1": "",
		"127.0.0.1": "private", "::1": "private", "::ffff:127.0.0.1": "private", "10.1.2.3": "private", "192.168.0.1": "private",
		"fd12::1": "private", "100.64.0.1": "private", "64:ff9b::7f00:1": "private", "2002:7f00:1::": "private",
		"169.254.169.254": "always", "::ffff:169.254.169.254": "always", "fe80::1%eth0": "always", "fd00:ec2::254": "always",
		"100.100.100.200": "always", "64:ff9b::a9fe:a9fe": "always", "2002:a9fe:a9fe::1": "always", "::169.254.169.254": "always",
		"0.0.0.0": "always", "::": "always", "224.0.0.1": "always", "255.255.255.255": "always",
	} {
		a := netip.MustParseAddr(addr)
		if got := (Guard{}).Check(a) != nil; got != (want == "always") {
			t.Errorf("%s: refused by default: %t", addr, got)
		}
		if got := (Guard{DenyPrivate: true}).Check(a) != nil; got != (want != "") {
			t.Errorf("%s: refused with DenyPrivate: %t", addr, got)
		}
	}
}

// A proxy looks up the host of a URL as it likes, so that only what is a name, or an address as netip writes it, is asked for.
func TestHostsThatAreNoNames(t *testing.T) {
	for host, refused := range map[string]bool{
		"example.com": false, "example.com.": false, "EXAMPLE.com": false, "a_b.example.com": false, "bücher.example": false, "xn--bcher-kva.example": false,
		"1.example.com": false, "0xa.example.com": false, "registry": false, "a1": false, "93.184.216.34": false, "[2606:2800:220:1::1]": false, "metadata.example.com": false,
		"2852039166": true, "0xa9fea9fe": true, "0XA9FEA9FE": true, "025177524776": true, "169.254.43518": true, "169.16689662": true,
		"0251.0376.0251.0376": true, "0xa9.0xfe.0xa9.0xfe": true, "169.254.169.0xfe": true, "0x": true, "169.254.169.254.": true, "169.254.169.254..": true,
		"2852039166.": true, "169.254.169.0254": true, "example.1": true, "example.0x7f.": true,
		"１６９.254.169.254": true, "169。254。169。254": true, "%EF%BC%91%EF%BC%96%EF%BC%99.254.169.254": true, "169.254.169.254%25x": true, "169.254.169.254;x": true,
		"[::ffff:169.254.169.254]": true, "[::ffff:a9fe:a9fe%251]": true, "[::ffff:0:169.254.169.254]": true, "[fe80::1%25eth0]": true, "[fd00:ec2::254]": true,
		"example.com@169.254.169.254": true, "example.com:80@2852039166:80": true,
		"metadata.google.internal": true, "Metadata.Google.Internal.": true, "metadata": true, "metadata.goog": true, "instance-data": true, "instance-data.ec2.internal": true,
		"metadata.google.inter\u00adnal": true, "metadata。google。internal": true,
	} {
		u, err := url.Parse("http://" + host + "/latest")
		if err != nil {
			t.Errorf("%s: %v", host, err)
			continue
		}
		err = Guard{}.CheckHost(u)
		if (err != nil) != refused || err != nil && !errors.As(err, new(*RefusedAddr)) {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// Each request of a client is looked at: also one to where a redirect or an answer leads.
func TestTransportRefuses(t *testing.T) {
	sent := ""
	client := &http.Client{Transport: Guard{}.Transport(roundTrip(func(req *http.Request) (*http.Response, error) {
		sent += req.URL.Host + " "
		return &http.Response{StatusCode: 302, Header: http.Header{"Location": {"http://2852039166/"}}, Body: http.NoBody, Request: req}, nil
	}))}
	resp, err := client.Post("http://example.com/", "", strings.NewReader("body"))
	if err == nil {
		_ = resp.Body.Close()
	}
	if !errors.As(err, new(*RefusedAddr)) || sent != "example.com " {
		t.Errorf("sent to %q: %v", sent, err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
