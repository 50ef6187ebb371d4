package store_test

import (
	"errors"
	"testing"

	"towline.dev/towline/hub/internal/store"
)

// A class of its own may lie within another: the longer prefix says whose a key is.
func TestClassWithinAClass(t *testing.T) {
	for key, owner := range map[string]store.Owner{store.FreezePrefix + "1": store.API, store.HoldPrefix + "prune-1": store.Leader} {
		for _, other := range []store.Owner{store.API, store.Leader} {
			if err := other.MayPut(key); (err == nil) != (other == owner) || err != nil && !errors.Is(err, store.ErrNotOwner) {
				t.Errorf("%s puts %s: %v", other, key, err)
			}
		}
	}
}
