package fleet

import "testing"

func TestSome(t *testing.T) {
	for _, tc := range []struct {
		list []ClusterName
		want string
	}{{nil, ""}, {[]ClusterName{"b"}, "b"}, {[]ClusterName{"b", "a"}, "b, a"}, {[]ClusterName{"b", "a", "c"}, "b, a and 1 more"}} {
		if got := Some(tc.list, 2); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.list, got, tc.want)
		}
	}
}
