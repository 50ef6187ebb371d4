package egress

import (
	"net/url"
	"testing"
)

// TestHush: what is secret in an address is masked in what a server says, in the forms that it has there.
func TestHush(t *testing.T) {
	u, err := url.Parse("https://deployer:pa55%2Fw@host/a/path?query=up-and-running&token=t0ken%20value&ref=main")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"no pa55/w or pa55%2Fw of deployer":          "no *** or *** of ***",
		"Basic ZGVwbG95ZXI6cGE1NS93 is none":         "Basic *** is none",
		"t0ken value, t0ken+value and t0ken%20value": "***, *** and ***",
		"up-and-running in the domain main":          "up-and-running in the domain main",
		"/a/path and /services/T0KEN":                "/a/path and ***",
	} {
		if got := Hush(text, u, "query", "/services/T0KEN"); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	if got := Hush("pa55/w", nil, ""); got != "pa55/w" {
		t.Errorf("of no address: %q", got)
	}
}
