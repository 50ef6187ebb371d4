package apply

import (
	"testing"

	"towline.dev/towline/agent/internal/vault"
)

// newVault is one with a key of its own.
func newVault(t *testing.T) *vault.Vault {
	t.Helper()
	v, err := vault.Open(t.Context(), &files{names: map[string][]byte{}})
	if err != nil {
		t.Fatal(err)
	}
	return v
}
