package wire

import (
	"errors"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

func TestSourcesAreChecked(t *testing.T) {
	git := func(url string, edit func(*towlinev1.GitSource)) *towlinev1.Source {
		g := &towlinev1.GitSource{Url: url}
		if edit != nil {
			edit(g)
		}
		return &towlinev1.Source{Git: g}
	}
	ref := func(r *towlinev1.GitRef) func(*towlinev1.GitSource) {
		return func(g *towlinev1.GitSource) { g.Ref = r }
	}
	oci := func(url string, edit func(*towlinev1.OciSource)) *towlinev1.Source {
		o := &towlinev1.OciSource{Url: url}
		if edit != nil {
			edit(o)
		}
		return &towlinev1.Source{Oci: o}
	}
	helm := func(repo, chart, version string, edit func(*towlinev1.HelmSource)) *towlinev1.Source {
		h := &towlinev1.HelmSource{Repo: repo, Chart: chart, Version: version}
		if edit != nil {
			edit(h)
		}
		return &towlinev1.Source{Helm: h}
	}
	for _, tt := range []struct {
		source *towlinev1.Source
		want   string // empty: it is valid
	}{
		{helm("https://host/charts", "web", "4.x", nil), ""},
		{helm("https://host/charts", "web", "1.2.3+build.1", nil), ""},
		{helm("oci://host/charts/", "web", "", nil), ""},
		{helm("oci://host", "web", "", nil), ""},
		{helm("host/charts", "web", "", nil), "spec.source.helm.repo: is no URL"},
		{helm("git://host/charts", "web", "", nil), `spec.source.helm.repo: begins with "git"`},
		{helm("https://host/charts", "", "", nil), `spec.source.helm.chart: "" is no chart's name`},
		{helm("https://host/charts", "../web", "", nil), `spec.source.helm.chart: "../web" is no chart's name`},
		{helm("https://host/charts", "web", "latest", nil), `spec.source.helm.version: "latest" is no range of versions`},
		{helm("https://host/charts", "web", "", func(h *towlinev1.HelmSource) { h.Insecure = true }), "spec.source.helm.insecure: is for an oci:// repository"},
		{helm("http://host/charts", "web", "", func(h *towlinev1.HelmSource) { h.SecretName = "login" }), "spec.source.helm.secretName: the URL begins with http"},
		{helm("oci://host/charts", "web", "", func(h *towlinev1.HelmSource) { h.Insecure, h.SecretName = true, "login" }), "spec.source.helm.secretName: the URL begins with http"},
		{oci("oci://host/team/shop", nil), ""},
		{oci("oci://host:5000/shop", func(o *towlinev1.OciSource) { o.Ref = &towlinev1.OciRef{Digest: "sha256:" + strings.Repeat("a", 64)} }), ""},
		{oci("oci://[::1]:5000/shop", nil), ""},
		{oci("https://host/shop", nil), "spec.source.oci.url: does not begin with oci://"},
		{oci("oci://host/shop:1.0", nil), `spec.source.oci.url: "shop:1.0" has a tag or a digest: write it as ref`},
		{oci("oci://user:secret@host/shop", nil), "spec.source.oci.url: has credentials: name a secret in secretName"},
		{oci("oci://host", nil), `spec.source.oci.url: "" is no repository`},
		{oci("oci:///shop", nil), "spec.source.oci.url: has no host"},
		{oci("oci://host/Shop", nil), `spec.source.oci.url: "Shop" is no repository: write lower-case words`},
		{oci("oci://host/../x", nil), "is no repository"},
		{oci("oci://host/shop", func(o *towlinev1.OciSource) { o.Ref = &towlinev1.OciRef{} }), "spec.source.oci.ref: sets 0 of tag, digest and semver"},
		{oci("oci://host/shop", func(o *towlinev1.OciSource) { o.Ref = &towlinev1.OciRef{Tag: "a b"} }), `spec.source.oci.ref.tag: "a b" is no tag`},
		{oci("oci://host/shop", func(o *towlinev1.OciSource) { o.Ref = &towlinev1.OciRef{Digest: "sha256:ab"} }), "spec.source.oci.ref.digest:"},
		{oci("oci://host/shop", func(o *towlinev1.OciSource) { o.Ref = &towlinev1.OciRef{Semver: "x.y"} }), "spec.source.oci.ref.semver:"},
		{oci("oci://host/shop", func(o *towlinev1.OciSource) { o.Insecure, o.SecretName = true, "login" }), "spec.source.oci.secretName: the URL begins with http"},
		{oci("oci://host/shop", func(o *towlinev1.OciSource) { o.SecretName = "login" }), ""},
		{oci("oci://host/shop", func(o *towlinev1.OciSource) { o.Path = "../a" }), "spec.source.oci.path:"},
		{&towlinev1.Source{}, "it has none"},
		{&towlinev1.Source{Http: &towlinev1.HttpSource{}, Git: &towlinev1.GitSource{}}, "it has git and http"},
		{git("https://host/repo.git", nil), ""},
		{git("https://host:8443/a/b?x=1", nil), "spec.source.git.url: has a query or a fragment"},
		{git("git@host:a/b.git", nil), "spec.source.git.url: is no URL: write https://HOST/REPO"},
		{git("https:///repo", nil), "spec.source.git.url: is no URL"},
		{git("ext::sh -c x", nil), `spec.source.git.url: begins with "ext"`},
		{git("git://host/repo", nil), `spec.source.git.url: begins with "git"`},
		{git("file:///srv/repo", nil), ""},
		{git("ssh://git@host/repo", nil), "spec.source.git.secretName: is missing"},
		{git("ssh://git@host/repo", func(g *towlinev1.GitSource) { g.SecretName = "key" }), ""},
		{git("ssh://git:pass@host/repo", func(g *towlinev1.GitSource) { g.SecretName = "key" }), "spec.source.git.url: has a password"},
		{git("ssh://git@host/repo", func(g *towlinev1.GitSource) { g.SecretName = "No Name" }), "spec.source.git.secretName:"},
		{git("http://host/repo", func(g *towlinev1.GitSource) { g.SecretName = "key" }), "spec.source.git.secretName: the URL begins with http"},
		{git("https://u:p@host/repo", func(g *towlinev1.GitSource) { g.SecretName = "key" }), "spec.source.git.secretName: the URL has credentials, too"},
		{git("https://host/repo", func(g *towlinev1.GitSource) { g.SecretName = "key" }), ""},
		{git("file:///srv/repo", func(g *towlinev1.GitSource) { g.SecretName = "key" }), "spec.source.git.secretName: is for a server"},
		{git("file://host/repo", nil), "spec.source.git.url: is no folder: write file:///DIR"},
		{git("https://host/r", ref(&towlinev1.GitRef{})), "spec.source.git.ref: sets 0 of branch, tag, semver and commit"},
		{git("https://host/r", ref(&towlinev1.GitRef{Branch: "a", Tag: "b"})), "spec.source.git.ref: sets 2 of"},
		{git("https://host/r", ref(&towlinev1.GitRef{Branch: "refs/heads/a"})), "spec.source.git.ref.branch:"},
		{git("https://host/r", ref(&towlinev1.GitRef{Branch: "-x"})), "spec.source.git.ref.branch: \"-x\" is no name of a branch"},
		{git("https://host/r", ref(&towlinev1.GitRef{Tag: "a b"})), "spec.source.git.ref.tag: \"a b\" is no name of a branch"},
		{git("https://host/r", ref(&towlinev1.GitRef{Branch: "feature/a-1_b.c@2"})), ""},
		{git("https://host/r", ref(&towlinev1.GitRef{Semver: ">=1.2 <2"})), ""},
		{git("https://host/r", ref(&towlinev1.GitRef{Semver: "latest"})), `spec.source.git.ref.semver: "latest" is no range`},
		{git("https://host/r", ref(&towlinev1.GitRef{Commit: "abc123"})), `spec.source.git.ref.commit: "abc123" is no full commit`},
		{git("https://host/r", ref(&towlinev1.GitRef{Commit: strings.Repeat("a1", 20)})), ""},
		{git("https://host/r", func(g *towlinev1.GitSource) { g.Path = "deploy/prod" }), ""},
		{git("https://host/r", func(g *towlinev1.GitSource) { g.Path = "../x" }), `spec.source.git.path: "../x" leads outside`},
		{git("https://host/r", func(g *towlinev1.GitSource) { g.Path = "/x" }), `spec.source.git.path: "/x" begins with /`},
		{git("https://host/r", func(g *towlinev1.GitSource) { g.Timeout = "1h" }), "spec.source.git.timeout: 1h is too short or too long"},
		{git("https://host/r", func(g *towlinev1.GitSource) { g.Timeout = "soon" }), `spec.source.git.timeout: "soon" is no duration`},
		{verify(git("https://host/r", nil), &towlinev1.Verify{PgpKeys: []string{"k"}, SshKeys: []string{"k"}}), ""},
		{verify(git("https://host/r", nil), &towlinev1.Verify{}), "spec.source.verify: has no key"},
		{verify(git("https://host/r", nil), &towlinev1.Verify{SshKeys: []string{" "}}), "spec.source.verify.sshKeys: [0] is empty"},
		{verify(git("https://host/r", nil), &towlinev1.Verify{SshKeys: make([]string, 51)}), "spec.source.verify.sshKeys: has 51 keys; at most 50"},
		{verify(git("https://host/r", nil), &towlinev1.Verify{PgpKeys: []string{"-----BEGIN PGP PRIVATE KEY BLOCK-----"}}), "spec.source.verify.pgpKeys: [0] is a private key"},
		{verify(git("https://host/r", nil), &towlinev1.Verify{PgpKeys: []string{strings.Repeat("k", 65<<10)}}), "spec.source.verify.pgpKeys: [0] has 66560 bytes"},
		{verify(git("https://host/r", nil), &towlinev1.Verify{CosignKeys: []string{"k"}}), "spec.source.verify.cosignKeys: are for oci and helm"},
		{verify(git("https://host/r", nil), &towlinev1.Verify{PgpKeys: []string{"k"}, Mode: "Head"}), `spec.source.verify.mode: "Head" is none of HEAD, Tag, TagAndHEAD`},
		{verify(git("https://host/r", nil), &towlinev1.Verify{PgpKeys: []string{"k"}, Mode: "Tag"}), "spec.source.verify.mode: is Tag, and git.ref names no tag"},
		{verify(git("https://host/r", ref(&towlinev1.GitRef{Semver: "1.x"})), &towlinev1.Verify{PgpKeys: []string{"k"}, Mode: "TagAndHEAD"}), ""},
		{verify(oci("oci://host/shop", nil), &towlinev1.Verify{CosignKeys: []string{"k"}}), ""},
		{verify(oci("oci://host/shop", nil), &towlinev1.Verify{CosignKeys: []string{"k"}, Mode: "HEAD"}), "spec.source.verify: has mode, pgpKeys or sshKeys, which are for git"},
		{verify(oci("oci://host/shop", nil), &towlinev1.Verify{}), "spec.source.verify: has no key"},
		{verify(&towlinev1.Source{Http: &towlinev1.HttpSource{Url: "https://host/a"}}, &towlinev1.Verify{CosignKeys: []string{"k"}}), "spec.source.verify: is for git, oci, and helm whose repo is oci://"},
		{verify(&towlinev1.Source{Helm: &towlinev1.HelmSource{Repo: "https://host/a", Chart: "web"}}, &towlinev1.Verify{CosignKeys: []string{"k"}}), "spec.source.verify: is for git"},
		{verify(&towlinev1.Source{Helm: &towlinev1.HelmSource{Repo: "oci://host/a", Chart: "web"}}, &towlinev1.Verify{CosignKeys: []string{"k"}}), ""},
	} {
		err := fleet.Join("spec.source", validateSource(tt.source))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%v: %v\nwant %s", tt.source, err, tt.want)
		}
	}
}

func verify(s *towlinev1.Source, v *towlinev1.Verify) *towlinev1.Source {
	s.Verify = v
	return s
}

// TestPathOfAPackageIsInThatOfItsSource: what a package names is below the folder that a Git source names.
func TestPathOfAPackageIsInThatOfItsSource(t *testing.T) {
	for _, tt := range []struct{ source, pkg, want string }{{"", "", ""}, {"deploy", "", "deploy"}, {"", "prod", "prod"}, {"deploy/", "prod", "deploy/prod"}} {
		m, err := ModuleFromProto(&towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "shop"}, Spec: &towlinev1.ModuleSpec{
			Source:    &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://host/r", Path: tt.source}},
			Package:   &towlinev1.Package{Plain: &towlinev1.PlainPackage{Path: tt.pkg}},
			Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}})
		if err != nil || m.Path != tt.want {
			t.Errorf("%q in %q: %q, %v", tt.pkg, tt.source, m.Path, err)
		}
	}
	m, err := ModuleFromProto(&towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "shop"}, Spec: &towlinev1.ModuleSpec{
		Source:    &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://host/r", Path: "deploy/prod"}},
		Package:   &towlinev1.Package{Kustomize: &towlinev1.KustomizePackage{Components: []string{"../tls"}}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}})
	if err != nil || m.Package.Kustomize.Path != "deploy/prod" {
		t.Errorf("a kustomization: %v, %v", m, err)
	}
}

// TestChartIsAHelmPackage: a chart is rendered as one, with a package that says more, or without.
func TestChartIsAHelmPackage(t *testing.T) {
	for _, pkg := range []*towlinev1.Package{nil, {Helm: &towlinev1.HelmPackage{ReleaseName: "other"}}} {
		m, err := ModuleFromProto(&towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "shop"}, Spec: &towlinev1.ModuleSpec{
			Source: &towlinev1.Source{Helm: &towlinev1.HelmSource{Repo: "https://host/charts", Chart: "web"}}, Package: pkg,
			Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}})
		want := "shop"
		if pkg != nil {
			want = "other"
		}
		if err != nil || m.Package.Helm == nil || m.Package.Helm.ReleaseName != want {
			t.Errorf("%v: %+v, %v", pkg, m, err)
		}
	}
}
