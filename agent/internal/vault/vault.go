// Package vault keeps values in the agent's state that nobody who copies a part of it is to read: encrypted, under a key that lies in a
// record of its own. It must not know what the values are for.
package vault

import (
	"context"
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/rand"
	"errors"
	"fmt"

	"towline.dev/towline/pkg/fleet"
)

// State keeps named bytes.
type State interface {
	Read(ctx context.Context, name string) ([]byte, error)
	Write(ctx context.Context, name string, data []byte) error
}

// keyName is where the key is.
const keyName = "vault-key"

// Vault encrypts and decrypts. It is safe for concurrent use.
type Vault struct{ key hpke.PrivateKey }

// Open reads the key, or makes one if there is none. One that is damaged is made anew: what was encrypted under it is lost.
func Open(ctx context.Context, s State) (*Vault, error) {
	data, err := s.Read(ctx, keyName)
	if err == nil {
		if v, err := read(data); err == nil {
			return v, nil
		}
	} else if !errors.Is(err, fleet.ErrNotFound) && !errors.Is(err, fleet.ErrCorrupt) {
		return nil, fmt.Errorf("key of the agent's values: %w", err)
	}
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key of the agent's values: %w", err)
	}
	if err := s.Write(ctx, keyName, key.Bytes()); err != nil {
		return nil, fmt.Errorf("key of the agent's values: %w", err)
	}
	return of(key)
}

func read(data []byte) (*Vault, error) {
	key, err := ecdh.X25519().NewPrivateKey(data)
	if err != nil {
		return nil, err
	}
	return of(key)
}

func of(key *ecdh.PrivateKey) (*Vault, error) {
	private, err := hpke.NewDHKEMPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &Vault{key: private}, nil
}

// PublicKey is what others encrypt for the agent with: X25519.
func (v *Vault) PublicKey() []byte { return v.key.PublicKey().Bytes() }

// Seal encrypts what only Open with the same purpose gives back.
func (v *Vault) Seal(purpose string, plain []byte) ([]byte, error) {
	return hpke.Seal(v.key.PublicKey(), hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(purpose), plain)
}

// Open decrypts. It does not say what it failed on.
func (v *Vault) Open(purpose string, sealed []byte) ([]byte, error) {
	plain, err := hpke.Open(v.key, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(purpose), sealed)
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: was not encrypted for this agent's key", purpose)
	}
	return plain, nil
}
