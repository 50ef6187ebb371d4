package wire

import (
	"strings"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// What may come to something else can be followed; what cannot is refused by its name.
func TestFollow(t *testing.T) {
	git := func(ref *towlinev1.GitRef) *towlinev1.Source {
		return &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.example.com/shop.git", Ref: ref}}
	}
	oci := func(ref *towlinev1.OciRef) *towlinev1.Source {
		return &towlinev1.Source{Oci: &towlinev1.OciSource{Url: "oci://registry.example.com/shop", Ref: ref}}
	}
	helm := func(version string) *towlinev1.Source {
		return &towlinev1.Source{Helm: &towlinev1.HelmSource{Repo: "https://charts.example.com", Chart: "web", Version: version}}
	}
	http := func(sum string) *towlinev1.Source {
		return &towlinev1.Source{Http: &towlinev1.HttpSource{Url: "https://files.example.com/shop.yaml", Sha256: sum}}
	}
	for name, c := range map[string]struct {
		source   *towlinev1.Source
		interval string
		want     time.Duration
		refused  string // what the error says
	}{
		"default branch":  {source: git(nil), want: 5 * time.Minute},
		"branch":          {source: git(&towlinev1.GitRef{Branch: "main"}), interval: "30s", want: 30 * time.Second},
		"tag":             {source: git(&towlinev1.GitRef{Tag: "stable"}), interval: "24h", want: 24 * time.Hour},
		"versions":        {source: git(&towlinev1.GitRef{Semver: "1.x"}), want: 5 * time.Minute},
		"commit":          {source: git(&towlinev1.GitRef{Commit: strings.Repeat("a", 40)}), refused: "spec.source.follow: git.ref.commit is one commit"},
		"artifact":        {source: oci(nil), want: 5 * time.Minute},
		"tag of oci":      {source: oci(&towlinev1.OciRef{Tag: "prod"}), want: 5 * time.Minute},
		"digest":          {source: oci(&towlinev1.OciRef{Digest: "sha256:" + strings.Repeat("a", 64)}), refused: "oci.ref.digest"},
		"chart":           {source: helm(""), want: 5 * time.Minute},
		"chart in range":  {source: helm("4.x"), want: 5 * time.Minute},
		"chart by prefix": {source: helm("4.1"), want: 5 * time.Minute},
		"one chart":       {source: helm("4.1.2"), refused: "helm.version is one version"},
		"file":            {source: http(""), want: 5 * time.Minute},
		"one file":        {source: http(strings.Repeat("a", 64)), refused: "http.sha256"},
		"inline":          {source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": "a"}}}, refused: "inline is all in the module"},
		"upload":          {source: &towlinev1.Source{Upload: &towlinev1.UploadSource{}}, refused: "upload is changed by a put"},
		"too often":       {source: git(nil), interval: "29s", refused: "spec.source.follow.interval: 29s is too short or too long: from 30s to 24h0m0s"},
		"too rarely":      {source: git(nil), interval: "25h", refused: "follow.interval"},
		"no time":         {source: git(nil), interval: "often", refused: "is no duration"},
		"nothing":         {source: &towlinev1.Source{}, refused: "set exactly one of inline, http, git, oci, helm, upload; it has none"},
	} {
		c.source.Follow = &towlinev1.Follow{Interval: c.interval}
		m, err := ModuleFromProto(&towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "shop"}, Spec: &towlinev1.ModuleSpec{Source: c.source,
			Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}})
		switch {
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: %v, want: %s", name, err, c.refused)
		case c.refused == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.refused == "" && m.Follow.Interval != c.want:
			t.Errorf("%s: every %s, want %s", name, m.Follow.Interval, c.want)
		}
	}
}

// Calls are signed with the secret that is named, or the one of the name webhook.
func TestFollowByWebhook(t *testing.T) {
	for _, c := range []struct {
		f       *towlinev1.Follow
		secret  string
		refused string
	}{
		{f: &towlinev1.Follow{}},
		{f: &towlinev1.Follow{Webhook: true}, secret: "webhook"},
		{f: &towlinev1.Follow{Webhook: true, SecretName: "hooks"}, secret: "hooks"},
		{f: &towlinev1.Follow{SecretName: "hooks"}, refused: "webhook is not true"},
		{f: &towlinev1.Follow{Webhook: true, SecretName: "No/Name"}, refused: "follow.secretName"},
	} {
		p, err := followed(&towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.example.com/shop.git"}, Follow: c.f})
		switch {
		case c.refused != "":
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%v: %v", c.f, err)
			}
		case err != nil || p.Webhook != c.secret:
			t.Errorf("%v: %+v, %v", c.f, p, err)
		}
	}
}
