// Package secrets seals what the hub needs to get at sources, and opens it when a source is fetched. It owns the hub's keys, which
// are not in the store, and the form of what is sealed; it must not know what the values are for, nor show one.
package secrets

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/pkg/fleet"
)

// keyBytes is the size of a key: AES-256.
const keyBytes = 32

// Keys are the hub's keys: the first one seals, all of them open. They are safe for concurrent use.
type Keys struct {
	list    []key
	problem string // why there are none
}

type key struct {
	id   string
	aead cipher.AEAD
}

// NewestID names the key that seals; empty: there is none.
func (k *Keys) NewestID() string {
	if len(k.list) == 0 {
		return ""
	}
	return k.list[0].id
}

// Problem is why the hub has no key; empty: it has one.
func (k *Keys) Problem() string { return k.problem }

// NoKeys are none, for a reason that is said to who needs one.
func NoKeys(problem string) *Keys { return &Keys{problem: problem} }

// parseKeys reads a key a line, the newest first; blank lines and those that begin with # are none.
func parseKeys(text []byte) (*Keys, error) {
	k := &Keys{}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(raw) != keyBytes {
			return nil, fmt.Errorf("line %d is no key: write %d random bytes in base64, as by: openssl rand -base64 %d", number, keyBytes, keyBytes)
		}
		next, err := newKey(raw)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if slices.ContainsFunc(k.list, func(x key) bool { return x.id == next.id }) {
			return nil, fmt.Errorf("line %d has a key that stands above it already", number)
		}
		k.list = append(k.list, next)
	}
	if len(k.list) == 0 {
		return nil, fmt.Errorf("has no key: write a line of %d random bytes in base64, as by: openssl rand -base64 %d", keyBytes, keyBytes)
	}
	return k, nil
}

func newKey(raw []byte) (key, error) {
	block, err := aes.NewCipher(raw)
	if err != nil {
		return key{}, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return key{}, err
	}
	// The name tells nothing of a key that is random.
	sum := sha256.Sum256(append([]byte("towline secrets key\x00"), raw...))
	return key{id: hex.EncodeToString(sum[:4]), aead: aead}, nil
}

// Seal seals the values of a secret with the newest key.
func (k *Keys) Seal(project, name string, scope fleet.SecretScope, values map[string][]byte) (*storev1.SealedValues, error) {
	if len(k.list) == 0 {
		return nil, fleet.Errorf(fleet.ErrPrecondition, "secret %s: the hub cannot keep secrets: %s", Scoped(project, name, scope), k.problem)
	}
	plain, err := proto.Marshal(&storev1.SecretValues{Values: values})
	if err != nil {
		return nil, fmt.Errorf("secret %s: its values cannot be packed", Scoped(project, name, scope))
	}
	newest := k.list[0]
	nonce := make([]byte, newest.aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails: crypto/rand
	return &storev1.SealedValues{KeyId: newest.id, Nonce: nonce, Sealed: newest.aead.Seal(nil, nonce, plain, bound(project, name, scope, newest.id))}, nil
}

// bound is what a sealing is bound to: it opens under no other name, in no other project, for no other clusters and as sealed by no other key.
func bound(project, name string, scope fleet.SecretScope, keyID string) []byte {
	to := []string{"towline secret 1", project, name, keyID}
	if !scope.Everywhere() {
		to = append(to, string(scope.Cluster), scope.Labels)
	}
	return []byte(strings.Join(to, "\x00"))
}

// Open is the values of a secret. An error is an *Unreadable.
func (k *Keys) Open(project, name string, scope fleet.SecretScope, sealed *storev1.SealedValues) (map[string][]byte, error) {
	shown := Scoped(project, name, scope)
	with := slices.IndexFunc(k.list, func(x key) bool { return x.id == sealed.GetKeyId() })
	switch {
	case len(k.list) == 0:
		return nil, &Unreadable{Secret: shown, Reason: fleet.SecretNoKey, Detail: k.problem}
	case with < 0:
		return nil, &Unreadable{Secret: shown, Reason: fleet.SecretOtherKey, Detail: sealed.GetKeyId()}
	}
	altered := &Unreadable{Secret: shown, Reason: fleet.SecretAltered, Detail: sealed.GetKeyId()}
	x := k.list[with]
	if len(sealed.GetNonce()) != x.aead.NonceSize() {
		return nil, altered
	}
	plain, err := x.aead.Open(nil, sealed.GetNonce(), sealed.GetSealed(), bound(project, name, scope, x.id))
	if err != nil {
		return nil, altered
	}
	values := &storev1.SecretValues{}
	if err := proto.Unmarshal(plain, values); err != nil {
		return nil, altered
	}
	return values.GetValues(), nil
}

// Unreadable says why the values of a secret cannot be read.
type Unreadable struct {
	Secret string
	// Reason is one of fleet's codes.
	Reason string
	// Detail is why there is no key, or names the key that is needed.
	Detail string
}

func (e *Unreadable) Error() string {
	again := "or set all of it anew: towline secret set " + e.Secret + " --replace KEY=-"
	switch e.Reason {
	case fleet.SecretNoKey:
		return "secret " + e.Secret + " cannot be read, for the hub has no key: " + e.Detail
	case fleet.SecretOtherKey:
		return "secret " + e.Secret + " cannot be read: it is encrypted with key " + e.Detail + ", which the hub does not have; start the hub with that key, " + again
	}
	return "secret " + e.Secret + " cannot be read: what is stored was altered, or belongs to another secret; put a backup back, " + again
}

// Unwrap yields the sentinel.
func (e *Unreadable) Unwrap() error { return fleet.ErrPrecondition }

// Scoped is a secret for people, and as the command line takes it: its name, and which clusters it is for.
func Scoped(project, name string, scope fleet.SecretScope) string {
	if scope.Everywhere() {
		return Display(project, name)
	}
	return Display(project, name) + " " + scope.String()
}

// Display is a secret's name for people: that of another project than the default one stands with it.
func Display(project, name string) string {
	return fleet.ModuleRef{Project: project, Name: name}.Display()
}
