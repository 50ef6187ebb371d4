package control

import (
	"context"
	"errors"

	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// waitsForSecret reports that a source cannot be fetched before somebody sets its secret: no time makes it better. A store that does
// not answer is asked again.
func waitsForSecret(err error) bool {
	return errors.As(err, new(*source.SecretError)) && !errors.Is(err, fleet.ErrUnavailable)
}

// touchSecret looks at the modules whose sources use a secret that has changed: they may wait for it. What has its revision stays as
// it is.
func (c *Controller) touchSecret(key string) {
	project, name, ok := store.SplitSecret(key)
	if !ok {
		return
	}
	c.drafts.secretSet()
	c.touchCatalogsWith(fleet.ModuleRef{Project: project, Name: name})
	var users []string
	_ = c.o.Store.View(context.Background(), 0, func(r store.Reader) error {
		users = record.SecretPuts(r, project)[fleet.ModuleRef{Project: project, Name: name}]
		return nil
	})
	for _, user := range users {
		ref := fleet.ModuleRef{Project: project, Name: user}
		c.modules.add(store.ModuleKey(ref))
		if known, _ := c.Followed(ref); known.GetReason() == follow.ReasonNeedsSecret || known.GetReason() == follow.ReasonDenied {
			c.call(ref, true)
		}
	}
}
