package wire

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestSecretNameOfASource: a put is refused that would send a secret where others can read it, or beside other credentials, and the error
// names the field and shows nothing of the address.
func TestSecretNameOfASource(t *testing.T) {
	for _, tt := range []struct{ url, name, want string }{
		{"https://example.test/a.tgz", "repo", ""},
		{"http://localhost:8080/a.tgz", "repo", ""},
		{"http://127.0.0.1/a.tgz", "repo", ""},
		{"http://[::1]:80/a.tgz", "repo", ""},
		{"http://u:p@example.test/a.tgz", "", ""},
		{"https://example.test/a.tgz", "Repo", `http.secretName: "Repo" is no DNS label`},
		{"http://example.test/canary.tgz", "repo", "http.secretName: the URL begins with http, so that everybody on the way can read what is sent"},
		{"http://127.0.0.1.example.test/a.tgz", "repo", "http.secretName: the URL begins with http"},
		{"https://u:canary@example.test/a.tgz", "repo", "http.secretName: the URL has credentials, too: keep one of them"},
		{"https://exa mple.test/canary", "repo", "http.secretName: the URL cannot be read"},
	} {
		err := validateSource(&towlinev1.Source{Http: &towlinev1.HttpSource{Url: tt.url, SecretName: tt.name}})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "canary")) {
			t.Errorf("%s with %q: %v, want %q", tt.url, tt.name, err, tt.want)
		}
	}
}
