package manifest

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestWhatWasReadWithoutValuesIsNoManifest: what `towline render` or `get` wrote with its Secrets masked is refused from any source, Git and uploads too:
// the mask would take the place of the value in every cluster.
func TestWhatWasReadWithoutValuesIsNoManifest(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"a value":        {"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {password: '" + fleet.Masked + "'}\n", "the value of password is ***"},
		"in base64":      {"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {password: '" + fleet.Masked + "'}\n", "the value of password is not base64"},
		"a hidden text":  {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a.yaml: '" + hiddenText + "'}\n", "without the values"},
		"stars of old":   {"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {password: '****'}\n", ""},
		"of another one": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {separator: '" + fleet.Masked + "'}\n", ""},
	} {
		_, err := ParseSet(map[string][]byte{"a.yaml": []byte(tc.file)}, Options{Namespace: "shop"})
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
