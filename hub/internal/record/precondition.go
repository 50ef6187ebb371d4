package record

import (
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// AsSeen checks the preconditions of a put: it is of the object, of the generation and of the version that its caller saw.
func AsSeen(r store.Reader, key string, about fleet.Object, have, want *towlinev1.Metadata) error {
	if err := fleet.SameUID(about, have.GetUid(), want.GetUid()); err != nil {
		return err
	}
	if err := fleet.SameGeneration(about, have.GetGeneration(), want.GetGeneration()); err != nil {
		return err
	}
	if want.GetResourceVersion() == 0 {
		return nil // what is damaged has no version, and may be put anew
	}
	e, _ := r.Get(key)
	return fleet.SameVersion(about, e.ModRevision, want.GetResourceVersion())
}
