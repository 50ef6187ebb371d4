package api

import (
	"fmt"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// mask stands for a value that people must not see here.
const mask = "***"

// masked hides the values of a Secret.
func masked(id fleet.ObjectID, raw []byte) ([]byte, error) {
	if id.Kind != "Secret" || id.Group != "" {
		return raw, nil
	}
	obj, err := manifest.Decode(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	for _, field := range []string{"data", "stringData"} {
		values, ok := obj[field].(map[string]any)
		if !ok {
			continue
		}
		for k := range values {
			values[k] = mask
		}
	}
	return manifest.Canonical(obj), nil
}
