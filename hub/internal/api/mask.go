package api

import (
	"fmt"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// masked hides the values of a Secret.
func masked(id fleet.ObjectID, raw []byte) ([]byte, error) {
	if !id.IsSecret() {
		return raw, nil
	}
	obj, err := manifest.Decode(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	fleet.MaskSecret(obj)
	return manifest.Canonical(obj), nil
}
