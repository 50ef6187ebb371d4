// Package egress says which addresses the hub connects to on behalf of people: what they write into a module must not
// reach a cloud's metadata service through it; and what may be logged of such a request. It must not know what is asked there.
package egress

import (
	"fmt"
	"net/netip"
	"syscall"
)

// Guard refuses addresses. The zero value refuses link-local ones and metadata services.
type Guard struct {
	// DenyPrivate refuses loopback and private addresses, too.
	DenyPrivate bool
}

// RefusedAddr says that the hub does not connect to an address.
type RefusedAddr struct {
	// Addr is the address, or the host of a URL.
	Addr string
	What string
}

func (e *RefusedAddr) Error() string {
	return fmt.Sprintf("address %s is %s: the hub does not connect to it", e.Addr, e.What)
}

var (
	// never are link-local addresses and those where clouds serve machine credentials.
	never = prefixes("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "fd20:ce::254/128", "100.100.100.200/32",
		"168.63.129.16/32", "192.0.0.192/32")
	// hidden are those that only the hub's own network can reach.
	hidden = prefixes("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10",
		"fc00::/7", "192.0.0.0/24", "198.18.0.0/15")
	// embeds hold an IPv4 address in their last 4 bytes.
	embeds    = prefixes("64:ff9b::/96", "64:ff9b:1::/96", "::/96", "::ffff:0:0:0/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

func in(list []netip.Prefix, a netip.Addr) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Check returns a *RefusedAddr, or nil.
func (g Guard) Check(a netip.Addr) error {
	a = a.Unmap().WithZone("")
	switch {
	case in(never, a) || a.IsLinkLocalUnicast():
		return &RefusedAddr{a.String(), "link-local or a metadata service"}
	case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return &RefusedAddr{a.String(), "no server's"}
	case g.DenyPrivate && in(hidden, a):
		return &RefusedAddr{a.String(), "loopback or private"}
	}
	if v4, ok := embedded(a); ok {
		return g.Check(v4)
	}
	return nil
}

// Control is that of a net.Dialer: it sees the address that is really dialled, after DNS.
func (g Guard) Control(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address %s cannot be checked: %w", address, err)
	}
	return g.Check(ap.Addr())
}

// embedded is the IPv4 address that a gateway would turn an IPv6 address into.
func embedded(a netip.Addr) (netip.Addr, bool) {
	b := a.As16()
	switch {
	case a.Is4() || a.IsLoopback():
		return netip.Addr{}, false
	case in(embeds, a):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return netip.Addr{}, false
}
