package wire

import (
	"github.com/Masterminds/semver/v3"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// followed is how a source is followed; nil: it is not.
func followed(s *towlinev1.Source) (*follow.Plan, error) {
	f := s.GetFollow()
	if f == nil {
		return nil, nil
	}
	if field, why := Exact(s); field != "" {
		return nil, fleet.Invalidf("follow", "%s %s, so that there is nothing to follow: leave follow out", field, why)
	}
	d, err := Duration("follow.interval", f.GetInterval(), follow.DefaultInterval)
	if err == nil && (d < follow.MinInterval || d > follow.MaxInterval) {
		err = fleet.Invalidf("follow.interval", "%s is too short or too long: from %s to %s", fleet.Clip(f.GetInterval(), 40), follow.MinInterval, follow.MaxInterval)
	}
	if err != nil {
		return nil, err
	}
	p := &follow.Plan{Interval: d}
	switch name := f.GetSecretName(); {
	case f.GetWebhook() && name == "":
		p.Webhook = follow.DefaultWebhook
	case f.GetWebhook():
		p.Webhook, err = name, fleet.ValidateLabel(name)
	case name != "":
		return nil, fleet.Invalid("follow.secretName", "is for calls, and webhook is not true: set it, or leave secretName out")
	}
	if err != nil {
		return nil, fleet.Invalid("follow.secretName", err.Error())
	}
	return p, nil
}

// Exact says which field of a source makes it always the same files, and why; empty: it may come to others.
func Exact(s *towlinev1.Source) (field, why string) {
	switch {
	case s.GetInline() != nil:
		return "inline", "is all in the module"
	case s.GetUpload() != nil:
		return "upload", "is changed by a put alone"
	case s.GetGit().GetRef().GetCommit() != "":
		return "git.ref.commit", "is one commit for ever"
	case s.GetOci().GetRef().GetDigest() != "":
		return "oci.ref.digest", "is one artifact for ever"
	case s.GetHttp().GetSha256() != "":
		return "http.sha256", "is one file for ever"
	}
	if v := s.GetHelm().GetVersion(); v != "" {
		if _, err := semver.StrictNewVersion(v); err == nil {
			return "helm.version", "is one version for ever (4.x would be a range)"
		}
	}
	return "", ""
}
