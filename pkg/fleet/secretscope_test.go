package fleet

import (
	"errors"
	"strings"
	"testing"
)

func TestPickSecretScope(t *testing.T) {
	scope := func(cluster, selector string) SecretScope {
		t.Helper()
		s, err := NewSecretScope(cluster, selector)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	all, eu1, prod, web := SecretScope{}, scope("eu-1", ""), scope("", "env=prod"), scope("", "tier in (web, api)")
	c := Cluster{Name: "eu-1", Labels: map[string]string{"env": "prod", "tier": "web"}}
	for name, tc := range map[string]struct {
		scopes []SecretScope
		want   int
		err    string
	}{
		"its own wins":                  {[]SecretScope{all, prod, eu1}, 2, ""},
		"its own ends what is doubtful": {[]SecretScope{prod, web, eu1}, 2, ""},
		"its labels win over all":       {[]SecretScope{prod, all}, 0, ""},
		"what is for all":               {[]SecretScope{scope("", "env=dev"), scope("eu-2", ""), all}, 2, ""},
		"none":                          {[]SecretScope{scope("", "env=dev"), scope("eu-2", "")}, -1, ""},
		"two by labels": {[]SecretScope{all, prod, web}, -1,
			"cluster eu-1 has the labels of both -l env=prod and -l 'tier in (api,web)', which have values of their own: give the cluster values of its own (--cluster eu-1)"},
	} {
		got, err := PickSecretScope(tc.scopes, &c)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && (!strings.Contains(err.Error(), tc.err) || !errors.Is(err, ErrPrecondition)) {
			t.Errorf("%s: %d %v, want %d %s", name, got, err, tc.want, tc.err)
		}
	}
}

func TestNewSecretScope(t *testing.T) {
	one, err := NewSecretScope("", "tier=web, env == prod")
	if err != nil {
		t.Fatal(err)
	}
	if other, err := NewSecretScope("", "env=prod,tier=web"); err != nil || one != other {
		t.Errorf("%v: %q is not %q", err, one.Labels, other.Labels)
	}
	for name, tc := range map[string]struct{ cluster, selector, want string }{
		"both":             {"a", "env=prod", "give one of them"},
		"neither":          {"", "", "selects every cluster"},
		"no cluster":       {"A B", "", "scope.cluster"},
		"a broken one":     {"", "env in prod", "scope.label_selector"},
		"only separations": {"", " ", "selects every cluster"},
	} {
		if _, err := NewSecretScope(tc.cluster, tc.selector); tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
