package follow

import "testing"

func TestLower(t *testing.T) {
	for _, tc := range []struct {
		next, before string
		want         bool
	}{
		{"1.4.2@sha256:a", "1.5.0@sha256:b", true}, {"v1.4.2@sha1:a", "v1.10.0@sha1:b", true}, {"1.5.0-rc.1@sha256:a", "1.5.0@sha256:b", true},
		{"1.5.0@sha256:a", "1.5.0@sha256:b", false}, {"1.6.0@sha256:a", "1.5.0@sha256:b", false}, {"main@sha1:a", "1.5.0@sha256:b", false},
		{"1.4@sha256:a", "1.5.0@sha256:b", false}, {"sha256:a", "sha256:b", false}, {"", "1.5.0@sha256:b", false},
	} {
		if got := Lower(tc.next, tc.before, false); got != tc.want {
			t.Errorf("%q after %q: %v", tc.next, tc.before, got)
		}
	}
	for _, tc := range []struct {
		next, before string
		want         bool
	}{{"1.4@sha256:a", "1.5@sha256:b", true}, {"v1.9@sha1:a", "v1.10@sha1:b", true}, {"1.4.0_b1@sha256:a", "1.5.0_b1@sha256:b", true}, {"1.6@sha256:a", "1.5@sha256:b", false},
		{"1.4@sha256:a", "main@sha1:b", false}, {"sha256:a", "1.5@sha256:b", false}} {
		if got := Lower(tc.next, tc.before, true); got != tc.want {
			t.Errorf("%q after %q in a range: %v", tc.next, tc.before, got)
		}
	}
	for _, tc := range []struct {
		next, before string
		want         bool
	}{{"4.2.9", "4.3.0", true}, {"4.9", "4.10", true}, {"v4.2.9", "4.3.0+b1", true}, {"4.3.0", "4.2.9", false}, {"4.3.0+b1", "4.3.0+b2", false}, {"latest", "4.3.0", false}} {
		if got := LowerVersion(tc.next, tc.before); got != tc.want {
			t.Errorf("version %q after %q: %v", tc.next, tc.before, got)
		}
	}
}
