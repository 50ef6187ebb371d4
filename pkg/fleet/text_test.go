package fleet

import "testing"

func TestMaskWords(t *testing.T) {
	const secret = "correct-horse-battery"
	for text, want := range map[string]string{
		"it says correct-horse-battery here":      "it says *** here",
		"correct-horse-batterycorrect-horse":      "***correct-horse",
		Clip("it says "+secret+" and more", 20):   "it says ***…",
		Clip("'"+secret+"', '"+secret+"' xx", 40): "'***', '***…",
		"it says corr…":                           "it says ***…",
		"it says cor… and …":                      "it says cor… and …",
		`"correct-h"… and "correct"…`:             `"***"… and "***"…`,
		"nothing":                                 "nothing",
		"long-correct-horse-battery-staple":       "long-***",
	} {
		if got := MaskWords(text, []string{secret, "abc", "", secret + "-staple"}, 4); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

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
