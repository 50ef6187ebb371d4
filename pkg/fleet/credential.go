package fleet

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"
)

// MaySendSecret refuses to send a secret to an address where others on the way can read it, or that has credentials of its own. The
// error does not show the address.
func MaySendSecret(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return errors.New("the URL cannot be read")
	case u.User != nil:
		return errors.New("the URL has credentials, too: keep one of them")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return errors.New("the URL begins with http, so that everybody on the way can read what is sent: write https, or leave secretName out")
	}
	return nil
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}
