package egress

import (
	"net/netip"
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
