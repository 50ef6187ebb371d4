package wire

import (
	"strings"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// What of a Git source must be signed.
const (
	VerifyHead       = "HEAD"
	VerifyTag        = "Tag"
	VerifyTagAndHead = "TagAndHEAD"
)

// Limits of the keys of a source.
const (
	maxVerifyKeys     = 50
	maxVerifyKeyBytes = 64 << 10
)

// validateVerify checks which keys a source has. What is in a key is read by the hub, which alone has what reads all kinds of them.
func validateVerify(s *towlinev1.Source) error {
	v := s.GetVerify()
	if v == nil {
		return nil
	}
	git := len(v.GetPgpKeys()) + len(v.GetSshKeys())
	switch {
	case s.GetGit() == nil && s.GetOci() == nil && !strings.HasPrefix(s.GetHelm().GetRepo(), "oci://"):
		return fleet.Invalid("verify", "is for git, oci, and helm whose repo is oci://: nothing else has signatures that are read; leave it out")
	case s.GetGit() == nil && (git > 0 || v.GetMode() != ""):
		return fleet.Invalid("verify", "has mode, pgpKeys or sshKeys, which are for git: list cosignKeys")
	case s.GetGit() != nil && len(v.GetCosignKeys()) > 0:
		return fleet.Invalid("verify.cosignKeys", "are for oci and helm: list pgpKeys or sshKeys")
	case git+len(v.GetCosignKeys()) == 0:
		return fleet.Invalid("verify", "has no key: list those that may sign, or leave it out")
	}
	if err := validateVerifyMode(v.GetMode(), s.GetGit().GetRef()); err != nil {
		return err
	}
	for field, keys := range map[string][]string{"verify.pgpKeys": v.GetPgpKeys(), "verify.sshKeys": v.GetSshKeys(), "verify.cosignKeys": v.GetCosignKeys()} {
		if err := validateVerifyKeys(field, keys); err != nil {
			return err
		}
	}
	return nil
}

func validateVerifyMode(mode string, ref *towlinev1.GitRef) error {
	switch mode {
	case "", VerifyHead:
		return nil
	case VerifyTag, VerifyTagAndHead:
		if ref.GetTag() == "" && ref.GetSemver() == "" {
			return fleet.Invalidf("verify.mode", "is %s, and git.ref names no tag: set ref.tag or ref.semver, or mode: %s", mode, VerifyHead)
		}
		return nil
	}
	return fleet.Invalidf("verify.mode", "%q is none of %s, %s, %s", fleet.Clip(mode, 40), VerifyHead, VerifyTag, VerifyTagAndHead)
}

func validateVerifyKeys(field string, keys []string) error {
	if len(keys) > maxVerifyKeys {
		return fleet.Invalidf(field, "has %d keys; at most %d", len(keys), maxVerifyKeys)
	}
	for i, key := range keys {
		switch {
		case strings.TrimSpace(key) == "":
			return fleet.Invalidf(field, "[%d] is empty", i)
		case len(key) > maxVerifyKeyBytes:
			return fleet.Invalidf(field, "[%d] has %d bytes; at most %d: export the key alone, with gpg --export-options export-minimal", i, len(key), maxVerifyKeyBytes)
		case strings.Contains(key, "PRIVATE KEY"):
			return fleet.Invalidf(field, "[%d] is a private key: keep it where it signs, and list the public one here", i)
		}
	}
	return nil
}
