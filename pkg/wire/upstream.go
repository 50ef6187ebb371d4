package wire

import (
	"net/url"
	"strings"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// SameUpstream reports that two sources take their files from the same, which moves for both.
func SameUpstream(a, b *towlinev1.Source) bool {
	of := Upstream(a)
	return of != "" && of == Upstream(b)
}

// SameFiles reports that two sources of the same upstream come to the same files. What a server answers over http may depend on who asks.
func SameFiles(a, b *towlinev1.Source) bool {
	return SameUpstream(a, b) && a.GetHttp().GetUrl() == b.GetHttp().GetUrl() && a.GetHttp().GetSecretName() == b.GetHttp().GetSecretName()
}

// Upstream names what a source takes its files from, whichever folder of it is used and with whatever credentials: when it moves, it does so
// for all sources of the same name. Empty: nothing moves that could be followed.
func Upstream(src *towlinev1.Source) string {
	switch {
	case src.GetGit() != nil:
		ref := src.GetGit().GetRef()
		address := strings.TrimSuffix(strings.TrimSuffix(bare(src.GetGit().GetUrl()), "/"), ".git")
		return upstream("git", address, ref.GetBranch(), ref.GetTag(), ref.GetSemver(), ref.GetCommit())
	case src.GetOci() != nil:
		ref := src.GetOci().GetRef()
		return upstream("oci", bare(src.GetOci().GetUrl()), ref.GetTag(), ref.GetDigest(), ref.GetSemver())
	case src.GetHelm() != nil:
		return upstream("helm", bare(src.GetHelm().GetRepo()), src.GetHelm().GetChart(), src.GetHelm().GetVersion())
	case src.GetHttp() != nil:
		return upstream("http", bare(src.GetHttp().GetUrl()), src.GetHttp().GetSha256())
	}
	return ""
}

func upstream(parts ...string) string { return strings.Join(parts, "\x00") }

// bare is an address without its credentials.
func bare(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.User == nil {
		return address
	}
	u.User = nil
	return u.String()
}
