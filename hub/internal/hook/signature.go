package hook

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"net/http"
	"strings"
)

// headers are what servers sign their calls with: all but the last have the HMAC of the body in hex, behind the name of its hash.
var headers = []struct{ name, prefix string }{
	{"X-Hub-Signature-256", "sha256="}, // GitHub, Gitea, Forgejo
	{"X-Hub-Signature", "sha256="},     // Bitbucket
	{"X-Gitea-Signature", ""},          // Gitea
	{"X-Signature", "sha512="},         // anybody
	{"X-Signature", "sha256="},
}

// tokenHeader has the secret itself: GitLab signs nothing.
const tokenHeader = "X-Gitlab-Token"

// claim is what a call has to show that it comes from who knows the key.
type claim struct {
	token string // the key itself; empty: sum is
	sum   []byte // the HMAC of the body
	hash  func() hash.Hash
}

// claimOf reads the first signature of a call; false: it has none that can be read.
func claimOf(h http.Header) (claim, bool) {
	for _, s := range headers {
		text, is := strings.CutPrefix(h.Get(s.name), s.prefix)
		if !is || text == "" {
			continue
		}
		c := claim{hash: sha256.New}
		if s.prefix == "sha512=" {
			c.hash = sha512.New
		}
		var err error
		c.sum, err = hex.DecodeString(text)
		return c, err == nil
	}
	if token := h.Get(tokenHeader); token != "" {
		return claim{token: token, hash: sha256.New}, true
	}
	return claim{hash: sha256.New}, false
}

// check is how a claim is checked with a key: what is written into mac is the body.
type check struct {
	claim
	key []byte
	mac hash.Hash
}

func (c claim) with(key []byte) *check { return &check{claim: c, key: key, mac: hmac.New(c.hash, key)} }

// holds reports that the claim is of the key. It takes as long whatever it comes to.
func (c *check) holds() bool {
	sum := c.mac.Sum(nil)
	if c.token == "" {
		return hmac.Equal(sum, c.sum)
	}
	got, want := sha256.Sum256([]byte(c.token)), sha256.Sum256(c.key)
	return hmac.Equal(got[:], want[:])
}
