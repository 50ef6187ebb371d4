package source

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// SecretError says that a source cannot be fetched for want of what its secret should have. No server has been asked: it is
// tried again when the secret is set.
type SecretError struct {
	// Secret is the name that the source gives.
	Secret string
	// Err is what is wrong and what to do, without values.
	Err error
}

func (e *SecretError) Error() string { return e.Err.Error() }

// Unwrap yields the cause.
func (e *SecretError) Unwrap() error { return e.Err }

// secret are the values that a source is fetched with.
type secret struct {
	field  string // of the source, that names it
	name   string
	values map[string][]byte
}

// secretOf gets the secret that a field of a source names; nil: it names none.
func (f *Fetcher) secretOf(ctx context.Context, project, field, name string) (*secret, error) {
	if name == "" {
		return nil, nil
	}
	if f.opts.Secrets == nil {
		return nil, fleet.Invalid(field, "names a secret, and there are none here")
	}
	values, err := f.opts.Secrets(ctx, project, name)
	if err != nil {
		return nil, &SecretError{Secret: name, Err: fmt.Errorf("%s: %w", field, err)}
	}
	return &secret{field: field, name: name, values: values}, nil
}

// wants is what the secret lacks, or has too much.
func (s *secret) wants(format string, args ...any) error {
	return &SecretError{Secret: s.name, Err: fleet.Errorf(fleet.ErrPrecondition, "%s: secret %s: %s", s.field, s.name, fmt.Sprintf(format, args...))}
}

// text is a value that stands in a line of a request; false: the secret has none of the key.
func (s *secret) text(key string) (value string, ok bool, err error) {
	b, ok := s.values[key]
	if strings.ContainsFunc(string(b), func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return "", ok, s.wants("%s has a line break, or another character that no header may have: set it without that", key)
	}
	return string(b), ok, nil
}

// Keys of secrets.
const (
	keyUsername   = "username"
	keyPassword   = "password"
	keyToken      = "token"
	keyCA         = "caFile"
	keyIdentity   = "identity"    // a private key in PEM, for ssh
	keyKnownHosts = "known_hosts" // whose keys are trusted, for ssh
	headerKey     = "header."
)

// login is the Authorization header by username and password, or by token; empty: the secret has neither.
func (s *secret) login() (string, error) {
	user, hasUser, userErr := s.text(keyUsername)
	password, hasPassword, passwordErr := s.text(keyPassword)
	token, hasToken, tokenErr := s.text(keyToken)
	if err := errors.Join(userErr, passwordErr, tokenErr); err != nil {
		return "", err
	}
	switch {
	case hasUser && !hasPassword:
		return "", s.wants("has username and no password: towline secret set %s password=-", s.name)
	case hasPassword && !hasUser:
		return "", s.wants("has password and no username: towline secret set %s username=NAME", s.name)
	case hasUser && hasToken:
		return "", s.wants("has both username and token, and one request is sent one of them: towline secret set %s token- (or username- password-)", s.name)
	case hasUser && strings.Contains(user, ":"):
		return "", s.wants("username has a colon, which none may have")
	case hasUser:
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password)), nil
	case hasToken:
		return "Bearer " + token, nil
	}
	return "", nil
}

// transportHeaders belong to the connection and cannot be set by a secret.
var transportHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Te", "Trailer", "Keep-Alive", "Accept-Encoding"}

// headers are what the secret adds to requests.
func (s *secret) headers() (http.Header, error) {
	if s == nil {
		return nil, nil
	}
	out := http.Header{}
	login, err := s.login()
	if err != nil {
		return nil, err
	}
	if login == "" && !s.isUsed() {
		return nil, s.wants("has none of the keys that are sent over http: username and password, token, header.NAME, caFile")
	}
	if login != "" {
		out.Set("Authorization", login)
	}
	for key := range s.values {
		name, is := strings.CutPrefix(key, headerKey)
		if !is {
			continue
		}
		name = http.CanonicalHeaderKey(name)
		value, _, err := s.text(key)
		switch {
		case err != nil:
			return nil, err
		case !isHeaderName(name) || slices.Contains(transportHeaders, name) || strings.HasPrefix(name, "Proxy-"):
			return nil, s.wants("%s names no header that can be set", key)
		case out.Get(name) != "":
			return nil, s.wants("%s says again what username, token or another key says of the header %s: keep one", key, name)
		}
		out.Set(name, value)
	}
	return out, nil
}

// isUsed reports that the secret has a header or an authority.
func (s *secret) isUsed() bool {
	for key := range s.values {
		if key == keyCA || strings.HasPrefix(key, headerKey) {
			return true
		}
	}
	return false
}

func isHeaderName(s string) bool {
	return s != "" && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// minScrubbed is the shortest value that is looked for in texts: a shorter one is found in every second word.
const minScrubbed = 4

// minPart is the shortest part of a header that is looked for, but for the last one: what says how that is to be read is shorter, as Bearer.
const minPart = 8

// scrub takes values out of a text, which may have been clipped: a server may send back what it was sent, or what it makes of that.
func (s *secret) scrub(text string) string {
	if s == nil {
		return text
	}
	words := make([]string, 0, 4*len(s.values))
	for key, v := range s.values {
		value := strings.TrimSpace(string(v))
		words = append(words, formsOf(value)...)
		if strings.HasPrefix(key, headerKey) {
			words = append(words, partsOf(value)...)
		}
	}
	if login, err := s.login(); err == nil {
		_, coded, _ := strings.Cut(login, " ")
		words = append(words, coded)
	}
	return fleet.MaskWords(text, words, minScrubbed)
}

// formsOf are a value as it is, in quotes, and in an address.
func formsOf(value string) []string {
	return []string{value, strings.Trim(strconv.Quote(value), `"`), url.QueryEscape(value), url.PathEscape(value)}
}

// partsOf are what a server may read out of a header: what stands behind a scheme or a name, and the password in one.
func partsOf(header string) (out []string) {
	parts := strings.FieldsFunc(header, func(r rune) bool { return strings.ContainsRune(" \t,:;=\"'", r) })
	for i, part := range parts {
		if len(part) >= minPart || i == len(parts)-1 {
			out = append(out, formsOf(part)...)
		}
	}
	if _, password, is := (&http.Request{Header: http.Header{"Authorization": {header}}}).BasicAuth(); is {
		out = append(out, formsOf(password)...)
	}
	return out
}

// digest names the values in the key of a cache: who has others is given nothing that was fetched with these.
func (s *secret) digest() string {
	if s == nil {
		return ""
	}
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		parts = append(parts, key, string(s.values[key]))
	}
	return cacheKey(parts...)
}
