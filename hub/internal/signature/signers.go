package signature

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"towline.dev/towline/pkg/fleet"
)

// cutSigner parts a line into its key and the options in front of it. The line is one of a .pub file, of an allowed_signers file, which has
// names first, or of one with options and without names, as in authorized_keys: no word that may be an option is taken for a name.
func cutSigner(line string) (pub ssh.PublicKey, options []string, ok bool) {
	if pub, ok = bareKey(line); ok {
		return pub, nil, true
	}
	first, rest := cutWord(line)
	if options = cutOptions(first); !slices.ContainsFunc(options, mayBeOption) {
		if pub, ok = bareKey(rest); ok {
			return pub, nil, true
		}
		first, rest = cutWord(rest)
		options = cutOptions(first)
	}
	pub, ok = bareKey(rest)
	return pub, options, ok
}

// bareKey reads a key that has nothing in front of it.
func bareKey(text string) (ssh.PublicKey, bool) {
	pub, _, _, _, err := ssh.ParseAuthorizedKey([]byte(text))
	kind, _, _ := strings.Cut(strings.ReplaceAll(text, "\t", " "), " ")
	return pub, err == nil && kind == pub.Type()
}

// cutWord cuts the first word, in which spaces may stand in quotes.
func cutWord(s string) (word, rest string) {
	end := cutOutsideOfQuotes(s, " \t")
	return s[:end], strings.TrimLeft(s[end:], " \t")
}

// cutOptions parts a word at its commas.
func cutOptions(s string) (list []string) {
	for {
		end := cutOutsideOfQuotes(s, ",")
		if list = append(list, s[:end]); end == len(s) {
			return list
		}
		s = s[end+1:]
	}
}

// cutOutsideOfQuotes is where the first of the characters is, or the end.
func cutOutsideOfQuotes(s, chars string) int {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && strings.HasPrefix(s[i+1:], `"`):
			i++
		case s[i] == '"':
			quoted = !quoted
		case !quoted && strings.IndexByte(chars, s[i]) >= 0:
			return i
		}
	}
	return len(s)
}

// Options of a signer, and of authorized_keys: a line of the latter is no list of names either.
var (
	optionsWithValue = []string{"namespaces", "valid-after", "valid-before", "command", "environment", "expiry-time", "from", "permitlisten", "permitopen",
		"principals", "tunnel"}
	optionsWithout = []string{"cert-authority", "restrict", "agent-forwarding", "port-forwarding", "pty", "user-rc", "x11-forwarding", "verify-required",
		"no-agent-forwarding", "no-port-forwarding", "no-pty", "no-user-rc", "no-x11-forwarding", "no-touch-required"}
)

// mayBeOption reports that a word is no name.
func mayBeOption(word string) bool {
	name, value, has := strings.Cut(strings.ToLower(word), "=")
	return slices.Contains(optionsWithout, name) || has && (slices.Contains(optionsWithValue, name) || strings.HasPrefix(value, `"`))
}

// allow takes the options of an allowed_signers file. One that cannot be held to is an error, and never passed over.
func (k *sshKey) allow(options []string) error {
	seen := map[string]bool{}
	for _, option := range options {
		name, value, has := strings.Cut(option, "=")
		name = strings.ToLower(name)
		if seen[name] {
			return fmt.Errorf("option %q is there twice", fleet.Clip(name, 40))
		}
		seen[name] = true
		switch name {
		case "cert-authority":
			return fmt.Errorf("option %q: is an authority of certificates, which are not read: list the keys themselves", name)
		case "namespaces", "valid-after", "valid-before":
		default:
			return fmt.Errorf("option %q is not known: namespaces, valid-after and valid-before are", fleet.Clip(name, 40))
		}
		quoted, ok := unquoted(value)
		if !has || !ok {
			return fmt.Errorf(`option %q: write it as %s="VALUE"`, name, name)
		}
		if err := k.limit(name, quoted); err != nil {
			return fmt.Errorf("option %q: %w", name, err)
		}
	}
	if !k.after.IsZero() && !k.before.IsZero() && !k.after.Before(k.before) {
		return errors.New(`option "valid-before" is not after "valid-after", so that it may sign nothing`)
	}
	return nil
}

// limit takes an option with its value.
func (k *sshKey) limit(name, value string) (err error) {
	switch name {
	case "valid-after":
		k.after, err = signersTime(value)
	case "valid-before":
		k.before, err = signersTime(value)
	default:
		if !inNamespaces(value, gitNamespace) {
			return fmt.Errorf("namespaces %q leaves out %s", fleet.Clip(value, 40), gitNamespace)
		}
	}
	return err
}

// unquoted is what stands between quotes, which have to be there.
func unquoted(s string) (string, bool) {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return "", false
	}
	const mark = "\x00"
	s = strings.ReplaceAll(s[1:len(s)-1], `\"`, mark)
	return strings.ReplaceAll(s, mark, `"`), !strings.Contains(s, `"`)
}

// inNamespaces matches a name as OpenSSH does: by * and ?, where a pattern with ! that matches takes it out whatever else is listed.
func inNamespaces(list, name string) bool {
	in := false
	for pattern := range strings.SplitSeq(list, ",") {
		pattern, out := strings.CutPrefix(pattern, "!")
		ok, err := path.Match(strings.NewReplacer(`\`, `\\`, `[`, `\[`).Replace(pattern), name)
		if err != nil || !ok {
			continue
		}
		if out {
			return false
		}
		in = true
	}
	return in
}

// signersTime reads a time as ssh-keygen writes it. Without a Z it is the local one of who wrote it, which is not known here: it is taken as UTC.
func signersTime(text string) (time.Time, error) {
	digits := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(text), "Z"), "UTC")
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if at, err := time.Parse(layout, digits); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time: write YYYYMMDD, or YYYYMMDDHHMMSSZ", fleet.Clip(text, 40))
}
