package signature

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Beginnings of signatures.
var (
	pgpBegin = []byte("-----BEGIN PGP SIGNATURE-----")
	sshBegin = []byte("-----BEGIN SSH SIGNATURE-----")
)

// Commit checks that a commit is signed, and that its tree is the one that is used. Raw is the object as git stores it: what is signed are
// its own bytes, without the signature.
func (k Keys) Commit(now time.Time, raw []byte, tree string) (Proof, error) {
	payload, sig, err := cutCommit(raw)
	if err != nil {
		return Proof{}, err
	}
	if !bytes.HasPrefix(payload, []byte("tree "+tree+"\n")) {
		return Proof{}, unsigned("it does not begin with its tree")
	}
	return k.git(now, "committer ", payload, sig)
}

// cutCommit parts a commit into what is signed and the signature. As git does it leaves out the signatures of other formats.
func cutCommit(raw []byte) (payload, sig []byte, err error) {
	head, message, found := bytes.Cut(raw, []byte("\n\n"))
	if !found {
		return nil, nil, unsigned("it is no commit")
	}
	const mine, others = "gpgsig ", "gpgsig-"
	in := "" // the signature that goes on
	count := 0
	for line := range bytes.Lines(append(bytes.Clone(head), '\n')) {
		text, more := line, in != "" && line[0] == ' '
		switch {
		case more:
			text = line[1:]
		case bytes.HasPrefix(line, []byte(mine)):
			in, text, count = mine, line[len(mine):], count+1
		case bytes.HasPrefix(line, []byte(others)):
			in = others
		default:
			in = ""
		}
		switch in {
		case mine:
			sig = append(sig, text...)
		case "":
			payload = append(payload, line...)
		}
	}
	switch {
	case count == 0:
		return nil, nil, unsigned("it has no signature")
	case count > 1:
		return nil, nil, unsigned("it has %d signatures of its own, and it is not clear which one counts", count)
	}
	return append(append(payload, '\n'), message...), sig, nil
}

// Tag checks that a tag is signed, has the name that it was found by, and leads to the object.
func (k Keys) Tag(now time.Time, raw []byte, name, target string) (Proof, error) {
	at := -1
	for i, begin := 0, 0; begin < len(raw); begin = i {
		end := bytes.IndexByte(raw[begin:], '\n')
		if i = len(raw); end >= 0 {
			i = begin + end + 1
		}
		if line := raw[begin:i]; bytes.HasPrefix(line, pgpBegin) || bytes.HasPrefix(line, sshBegin) {
			at = begin // the last one counts, as for git
		}
	}
	if at < 0 {
		return Proof{}, unsigned("it has no signature")
	}
	payload, sig := raw[:at], raw[at:]
	lines := strings.SplitN(string(payload), "\n", 4)
	if len(lines) < 4 || lines[0] != "object "+target || !strings.HasPrefix(lines[1], "type ") {
		return Proof{}, unsigned("it does not begin with what it leads to")
	}
	if lines[2] != "tag "+name {
		return Proof{}, unsigned("it is the tag %q of its own word, under another name", fleet.Clip(strings.TrimPrefix(lines[2], "tag "), 80))
	}
	return k.git(now, "tagger ", payload, sig)
}

// git checks a signature by how it begins.
func (k Keys) git(now time.Time, who string, payload, sig []byte) (Proof, error) {
	switch {
	case bytes.HasPrefix(sig, pgpBegin):
		return k.byPGP(now, payload, sig)
	case bytes.HasPrefix(sig, sshBegin):
		when, ok := timeOf(who, payload)
		if !ok {
			return Proof{}, unsigned("it does not say when it was made")
		}
		return k.bySSH(when, payload, sig)
	}
	return Proof{}, unsigned("its signature is neither by PGP nor by SSH")
}

// timeOf is the time that a header of an object says, in seconds before its time zone.
func timeOf(header string, payload []byte) (time.Time, bool) {
	head, _, _ := strings.Cut(string(payload), "\n\n")
	for line := range strings.Lines(head) {
		if !strings.HasPrefix(line, header) {
			continue
		}
		// A name may have a > in it: git looks for the last one.
		seconds, _, _ := strings.Cut(line[strings.LastIndex(line, "> ")+len("> "):], " ")
		n, err := strconv.ParseInt(seconds, 10, 64)
		return time.Unix(n, 0).UTC(), err == nil
	}
	return time.Time{}, false
}
