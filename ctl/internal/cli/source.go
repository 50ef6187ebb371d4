package cli

import (
	"fmt"
	"net/url"
	"strings"

	v1 "towline.dev/towline/gen/towline/v1"
)

// sourceText says in a line where a module comes from.
func sourceText(s *v1.Source) string {
	switch {
	case s.GetHttp() != nil:
		return shownURL(s.GetHttp().GetUrl())
	case s.GetGit() != nil:
		g := s.GetGit()
		return words(shownURL(g.GetUrl()), gitRefText(g.GetRef()), g.GetPath())
	case s.GetOci() != nil:
		o := s.GetOci()
		return words(shownURL(o.GetUrl()), ociRefText(o.GetRef()), o.GetPath())
	case s.GetHelm() != nil:
		h := s.GetHelm()
		return words(shownURL(h.GetRepo()), h.GetChart(), h.GetVersion())
	case s.GetInline() != nil:
		return "inline"
	case s.GetUpload() != nil:
		return words("upload", fmt.Sprintf("%.12s", s.GetUpload().GetDigest()))
	}
	return "-"
}

func gitRefText(r *v1.GitRef) string {
	switch {
	case r.GetBranch() != "":
		return r.GetBranch()
	case r.GetTag() != "":
		return r.GetTag()
	case r.GetSemver() != "":
		return "semver " + r.GetSemver()
	}
	return r.GetCommit()
}

func ociRefText(r *v1.OciRef) string {
	switch {
	case r.GetTag() != "":
		return r.GetTag()
	case r.GetSemver() != "":
		return "semver " + r.GetSemver()
	}
	return r.GetDigest()
}

// shownURL is an address without what may be a secret in it.
func shownURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "-"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

func words(list ...string) string {
	var set []string
	for _, w := range list {
		if w != "" {
			set = append(set, w)
		}
	}
	return strings.Join(set, " ")
}
