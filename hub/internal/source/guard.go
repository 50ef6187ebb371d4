package source

import (
	"fmt"
	"net/netip"
	"syscall"
)

// refusedAddr says that an address must not be fetched from.
type refusedAddr struct {
	addr netip.Addr
	what string
}

func (e *refusedAddr) Error() string {
	return fmt.Sprintf("address %s is %s: the hub does not fetch from there", e.addr, e.what)
}

var (
	// never are link-local addresses and those where clouds serve machine credentials.
	never = prefixes("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "fd20:ce::254/128", "100.100.100.200/32",
		"168.63.129.16/32", "192.0.0.192/32")
	// hidden are those that only the hub's own network can reach.
	hidden = prefixes("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10",
		"fc00::/7", "192.0.0.0/24", "198.18.0.0/15")
	// embeds hold an IPv4 address in their last 4 bytes.
	embeds    = prefixes("64:ff9b::/96", "64:ff9b:1::/96", "::/96")
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

// checkAddr refuses addresses that a module's author must not reach through the hub.
func checkAddr(a netip.Addr, denyPrivate bool) error {
	a = a.Unmap().WithZone("")
	switch {
	case in(never, a) || a.IsLinkLocalUnicast():
		return &refusedAddr{a, "link-local or a metadata service"}
	case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return &refusedAddr{a, "no server's"}
	case denyPrivate && in(hidden, a):
		return &refusedAddr{a, "loopback or private"}
	}
	if v4, ok := embedded(a); ok {
		return checkAddr(v4, denyPrivate)
	}
	return nil
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

// control is a net.Dialer's Control: it sees the address that is really dialled, after DNS.
func (f *Fetcher) control(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address %s cannot be checked: %w", address, err)
	}
	return checkAddr(ap.Addr(), f.opts.DenyPrivate)
}
