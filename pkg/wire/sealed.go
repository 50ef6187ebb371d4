package wire

import (
	"crypto/ecdh"
	"crypto/hpke"
	"fmt"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

// SealedFor is what the values of a secret are sealed for, so that none passes for another one.
func SealedFor(project, name string) string { return "towline.dev/secret " + project + "/" + name }

// SealSecret encrypts values for the agent that has the private key.
func SealSecret(key []byte, project, name string, values map[string][]byte) (*agentv1.SealedSecret, error) {
	public, err := ecdh.X25519().NewPublicKey(key)
	if err != nil {
		return nil, fleet.Invalidf("sealingKey", "is no X25519 key: %v", err)
	}
	to, err := hpke.NewDHKEMPublicKey(public)
	if err != nil {
		return nil, fleet.Invalidf("sealingKey", "%v", err)
	}
	plain, err := proto.Marshal(&agentv1.SecretValues{Values: values})
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s: %w", project, name, err)
	}
	sealed, err := hpke.Seal(to, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(SealedFor(project, name)), plain)
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s: %w", project, name, err)
	}
	return &agentv1.SealedSecret{Project: project, Name: name, Sealed: sealed}, nil
}

// SecretValues reads what was sealed, once it is open.
func SecretValues(plain []byte) (map[string][]byte, error) {
	var out agentv1.SecretValues
	if err := proto.Unmarshal(plain, &out); err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "values of a secret cannot be read") // without the cause, which may hold one
	}
	return out.GetValues(), nil
}
