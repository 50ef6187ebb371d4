package api

import (
	"fmt"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// masked hides the values of Secrets in an object.
func masked(id fleet.ObjectID, raw []byte) ([]byte, error) {
	obj, err := manifest.Decode(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	out, masks := manifest.Mask(obj)
	if !masks {
		return raw, nil
	}
	return manifest.Canonical(out), nil
}
