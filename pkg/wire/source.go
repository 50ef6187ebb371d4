package wire

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/Masterminds/semver/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// isKind tells the kinds of a source from what is said beside it.
func isKind(field string) bool { return field != "follow" && field != "verify" }

// SourceKinds are the kinds that a source sets; a source is valid with exactly one.
func SourceKinds(s *towlinev1.Source) []string {
	var kinds []string
	s.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if isKind(fd.JSONName()) {
			kinds = append(kinds, fd.JSONName())
		}
		return true
	})
	slices.Sort(kinds)
	return kinds
}

// OneSource says which kinds of source there are, of one that has none or several.
func OneSource(kinds []string) error {
	fields := (&towlinev1.Source{}).ProtoReflect().Descriptor().Fields()
	var all []string
	for i := range fields.Len() {
		if name := fields.Get(i).JSONName(); isKind(name) {
			all = append(all, name)
		}
	}
	has := "has none"
	if len(kinds) > 0 {
		has = "has " + strings.Join(kinds, " and ")
	}
	return fleet.Invalidf("", "set exactly one of %s; it %s", strings.Join(all, ", "), has)
}

func validateSource(s *towlinev1.Source) error {
	kinds := SourceKinds(s)
	if len(kinds) != 1 {
		return OneSource(kinds)
	}
	if err := validateVerify(s); err != nil {
		return err
	}
	switch {
	case s.GetInline() != nil:
		return validateInline(s.GetInline().GetFiles())
	case s.GetGit() != nil:
		_, err := GitURL(s.GetGit())
		return err
	case s.GetOci() != nil:
		_, err := OciReference(s.GetOci())
		return err
	case s.GetUpload() != nil:
		return validateUpload(s.GetUpload())
	case s.GetHelm() != nil:
		_, err := HelmRepository(s.GetHelm())
		return err
	}
	return validateHTTP(s.GetHttp())
}

// Contained reports that a source is always the same files: they are in the module, or named by their digest.
func Contained(s *towlinev1.Source) bool { return s.GetInline() != nil || s.GetUpload() != nil }

// validateUpload takes an upload without a digest: the hub puts in the one that the module has.
func validateUpload(u *towlinev1.UploadSource) error {
	if u.GetDigest() == "" {
		return nil
	}
	d, err := fleet.ParseDigest(u.GetDigest())
	if err != nil {
		return fleet.Invalid("upload.digest", err.Error())
	}
	if d.IsZero() {
		return fleet.Invalid("upload.digest", "is all zeros, which is no files' digest")
	}
	return nil
}

func validateInline(files map[string]string) error {
	if len(files) == 0 {
		return fleet.Invalid("inline.files", "has no file")
	}
	total := 0
	for name, content := range files {
		if name == "" || strings.HasPrefix(name, "/") || slices.Contains(strings.Split(name, "/"), "..") {
			return fleet.Invalidf("inline.files", "%q is no file name", name)
		}
		total += len(content)
	}
	if total > maxInlineBytes {
		return fleet.Invalidf("inline.files", "has %d bytes; at most %d; for more write upload: {} and apply with --from DIR, or use another source", total, maxInlineBytes)
	}
	return nil
}

func validateHTTP(h *towlinev1.HttpSource) error {
	if !strings.HasPrefix(h.GetUrl(), "http://") && !strings.HasPrefix(h.GetUrl(), "https://") {
		return fleet.Invalid("http.url", "is no http or https address")
	}
	if h.GetSha256() != "" {
		d, err := fleet.ParseDigest(h.GetSha256())
		if err != nil {
			return fleet.Invalid("http.sha256", err.Error())
		}
		if d.IsZero() {
			return fleet.Invalid("http.sha256", "is all zeros, which is no file's digest; leave it out to check none")
		}
	}
	if err := validateSecretName("http.secretName", h.GetSecretName(), h.GetUrl()); err != nil {
		return err
	}
	_, err := Duration("http.timeout", h.GetTimeout(), time.Minute)
	return err
}

var fullCommit = regexp.MustCompile(`^[0-9a-f]{40}$`)

// GitURL checks a Git source, and returns where its repository is.
func GitURL(g *towlinev1.GitSource) (*url.URL, error) {
	u, err := gitURL(g.GetUrl())
	if err != nil {
		return nil, err
	}
	if err := validateGitRef(g.GetRef()); err != nil {
		return nil, err
	}
	if err := validateFolder("git.path", g.GetPath()); err != nil {
		return nil, err
	}
	if err := validateGitSecret(u, g); err != nil {
		return nil, err
	}
	_, err = fetchTimeout("git.timeout", g.GetTimeout())
	return u, err
}

func validateGitSecret(u *url.URL, g *towlinev1.GitSource) error {
	_, password := u.User.Password()
	switch {
	case u.Scheme == "ssh" && g.GetSecretName() == "":
		return fleet.Invalid("git.secretName", "is missing: over ssh a secret with the keys identity and known_hosts is needed")
	case u.Scheme == "ssh" && password:
		return fleet.Invalid("git.url", "has a password: over ssh a key is used, identity of the secret")
	case u.Scheme == "file" && g.GetSecretName() != "":
		return fleet.Invalid("git.secretName", "is for a server: leave it out of a folder")
	case u.Scheme == "ssh":
		if err := fleet.ValidateLabel(g.GetSecretName()); err != nil {
			return fleet.Invalid("git.secretName", err.Error())
		}
		return nil
	}
	return validateSecretName("git.secretName", g.GetSecretName(), g.GetUrl())
}

// validateSecretName checks the secret that is sent to an address; empty is none.
func validateSecretName(field, name, address string) error {
	if name == "" {
		return nil
	}
	if err := fleet.ValidateLabel(name); err != nil {
		return fleet.Invalid(field, err.Error())
	}
	if err := fleet.MaySendSecret(address); err != nil {
		return fleet.Invalid(field, err.Error())
	}
	return nil
}

func gitURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" {
		return nil, fleet.Invalid("git.url", "is no URL: write https://HOST/REPO, or ssh://git@HOST/REPO")
	}
	switch {
	case u.Scheme == "file":
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") {
			return nil, fleet.Invalid("git.url", "is no folder: write file:///DIR")
		}
	case u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ssh":
		return nil, fleet.Invalidf("git.url", "begins with %q: only https, http, ssh and file are allowed", fleet.Clip(u.Scheme, 40))
	case u.Hostname() == "":
		return nil, fleet.Invalid("git.url", "is no URL: write https://HOST/REPO")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fleet.Invalid("git.url", "has a query or a fragment: say with ref what to take")
	}
	return u, nil
}

// noRefName matches what git check-ref-format refuses of a branch or a tag.
var noRefName = regexp.MustCompile(`^-|^/|/$|^\.|/\.|\.$|\.lock(/|$)|\.\.|//|@\{|^@$|[\x00-\x20\x7f~^:?*\[\\]`)

// validateGitRef checks that one thing is named, and that it can be one.
func validateGitRef(ref *towlinev1.GitRef) error {
	if ref == nil {
		return nil
	}
	if n := countSet(ref.GetBranch(), ref.GetTag(), ref.GetSemver(), ref.GetCommit()); n != 1 {
		return fleet.Invalidf("git.ref", "sets %d of branch, tag, semver and commit: set one, or leave ref out for the default branch", n)
	}
	if c := ref.GetCommit(); c != "" && !fullCommit.MatchString(c) {
		return fleet.Invalidf("git.ref.commit", "%q is no full commit: write all 40 digits, as git rev-parse prints them", fleet.Clip(c, 80))
	}
	for field, name := range map[string]string{"git.ref.branch": ref.GetBranch(), "git.ref.tag": ref.GetTag()} {
		if strings.HasPrefix(name, "refs/") {
			return fleet.Invalidf(field, "%q: write the name alone, without refs/heads/ or refs/tags/", fleet.Clip(name, 80))
		}
		if noRefName.MatchString(name) {
			return fleet.Invalidf(field, "%q is no name of a branch or tag: git takes none that begins so, or holds such a thing", fleet.Clip(name, 80))
		}
	}
	return validateRange("git.ref.semver", ref.GetSemver())
}

var (
	ociHost   = regexp.MustCompile(`^[A-Za-z0-9.-]+(:[0-9]{1,5})?$|^\[[0-9a-fA-F:]+\](:[0-9]{1,5})?$`)
	ociName   = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	ociTag    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	ociDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// Repository is where artifacts are in a registry.
type Repository struct{ Host, Name string }

// OciReference checks an OCI source, and returns where its repository is.
func OciReference(o *towlinev1.OciSource) (Repository, error) {
	r, err := ociRepository("oci.url", o.GetUrl())
	if err != nil {
		return r, err
	}
	if err := validateOciRef(o.GetRef()); err != nil {
		return r, err
	}
	if err := validateFolder("oci.path", o.GetPath()); err != nil {
		return r, err
	}
	if err := validateSecretName("oci.secretName", o.GetSecretName(), r.Address(o.GetInsecure())); err != nil {
		return r, err
	}
	_, err = fetchTimeout("oci.timeout", o.GetTimeout())
	return r, err
}

// Address is the URL of the registry.
func (r Repository) Address(insecure bool) string {
	if insecure {
		return "http://" + r.Host
	}
	return "https://" + r.Host
}

func ociRepository(field, address string) (Repository, error) {
	rest, is := strings.CutPrefix(address, "oci://")
	host, name, _ := strings.Cut(rest, "/")
	switch {
	case !is:
		return Repository{}, fleet.Invalidf(field, "does not begin with oci://: write oci://HOST/REPOSITORY")
	case strings.Contains(host, "@"):
		return Repository{}, fleet.Invalid(field, "has credentials: name a secret in secretName")
	case !ociHost.MatchString(host):
		return Repository{}, fleet.Invalid(field, "has no host: write oci://HOST/REPOSITORY")
	case strings.ContainsAny(name, ":@"):
		return Repository{}, fleet.Invalidf(field, "%q has a tag or a digest: write it as ref", fleet.Clip(name, 80))
	case !ociName.MatchString(name) || len(name) > 255:
		return Repository{}, fleet.Invalidf(field, "%q is no repository: write lower-case words between slashes, as in oci://HOST/team/shop", fleet.Clip(name, 80))
	}
	return Repository{host, name}, nil
}

var chartName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,199}$`)

// HelmRepository checks a Helm source, and returns where its repository is.
func HelmRepository(h *towlinev1.HelmSource) (*url.URL, error) {
	u, err := url.Parse(h.GetRepo())
	if err != nil || u.Host == "" {
		return nil, fleet.Invalid("helm.repo", "is no URL: write https://HOST/PATH or oci://HOST/PATH")
	}
	if !chartName.MatchString(h.GetChart()) {
		return nil, fleet.Invalidf("helm.chart", "%q is no chart's name", fleet.Clip(h.GetChart(), 80))
	}
	if err := validateRange("helm.version", h.GetVersion()); err != nil {
		return nil, err
	}
	address := h.GetRepo()
	switch u.Scheme {
	case "oci":
		r, err := ociRepository("helm.repo", strings.TrimSuffix(h.GetRepo(), "/")+"/"+h.GetChart())
		if err != nil {
			return nil, err
		}
		address = r.Address(h.GetInsecure())
	case "https", "http":
		if h.GetInsecure() {
			return nil, fleet.Invalid("helm.insecure", "is for an oci:// repository: leave it out")
		}
	default:
		return nil, fleet.Invalidf("helm.repo", "begins with %q: only https, http and oci are allowed", fleet.Clip(u.Scheme, 40))
	}
	if err := validateSecretName("helm.secretName", h.GetSecretName(), address); err != nil {
		return nil, err
	}
	_, err = fetchTimeout("helm.timeout", h.GetTimeout())
	return u, err
}

func validateOciRef(ref *towlinev1.OciRef) error {
	if ref == nil {
		return nil
	}
	if n := countSet(ref.GetTag(), ref.GetDigest(), ref.GetSemver()); n != 1 {
		return fleet.Invalidf("oci.ref", "sets %d of tag, digest and semver: set one, or leave ref out for the tag latest", n)
	}
	if t := ref.GetTag(); t != "" && !ociTag.MatchString(t) {
		return fleet.Invalidf("oci.ref.tag", "%q is no tag", fleet.Clip(t, 80))
	}
	if d := ref.GetDigest(); d != "" && !ociDigest.MatchString(d) {
		return fleet.Invalidf("oci.ref.digest", "%q is no digest: write sha256: and 64 digits", fleet.Clip(d, 80))
	}
	return validateRange("oci.ref.semver", ref.GetSemver())
}

// validateRange checks a range of versions; empty is none.
func validateRange(field, text string) error {
	if text == "" {
		return nil
	}
	if _, err := semver.NewConstraint(text); err != nil {
		return fleet.Invalidf(field, "%q is no range of versions: write, for example, \">=1.2 <2\" or \"1.x\"", fleet.Clip(text, 80))
	}
	return nil
}

func countSet(values ...string) int {
	n := 0
	for _, v := range values {
		if v != "" {
			n++
		}
	}
	return n
}

// validateFolder checks a folder in a source; empty is all of it.
func validateFolder(field, name string) error {
	switch {
	case name == "":
		return nil
	case strings.HasPrefix(name, "/"):
		return fleet.Invalidf(field, "%q begins with /: write a folder in the source, such as deploy/prod", fleet.Clip(name, 80))
	case slices.Contains(strings.Split(name, "/"), ".."):
		return fleet.Invalidf(field, "%q leads outside of the source", fleet.Clip(name, 80))
	case strings.ContainsFunc(name, unicode.IsControl) || strings.Contains(name, `\`):
		return fleet.Invalidf(field, "%q is no folder's name: separate folders by /", fleet.Clip(name, 80))
	}
	return nil
}

// Limits of how long a source may be fetched.
const (
	DefaultFetchTimeout = time.Minute
	MaxFetchTimeout     = 10 * time.Minute
)

// fetchTimeout reads how long a source may be fetched, with all retries.
func fetchTimeout(field, text string) (time.Duration, error) {
	d, err := Duration(field, text, DefaultFetchTimeout)
	if err == nil && (d <= 0 || d > MaxFetchTimeout) {
		return 0, fleet.Invalidf(field, "%s is too short or too long: at most %s", fleet.Clip(text, 40), MaxFetchTimeout)
	}
	return d, err
}
