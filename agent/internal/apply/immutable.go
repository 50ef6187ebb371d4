package apply

import (
	"context"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
)

// Touch has the API server judge an update of exactly one object that changes nothing, without storing it. What it finds wrong with that is in
// nobody's request: admission changes it.
func (c *Client) Touch(ctx context.Context, r Resource, namespace, name string, uid types.UID) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}})
	if err != nil {
		return err
	}
	return kube.Denied(c.rest.Patch(types.MergePatchType).AbsPath(r.segments(namespace, name)...).
		Param("fieldManager", fleet.FieldManager).Param("dryRun", "All").Body(body).Do(ctx).Error())
}

// ChangesImmutable reports that what is desired is not what the live object has in a field of which the API server says that it cannot be
// changed. What is not desired any more does not count.
func ChangesImmutable(immutable error, desired, live map[string]any) bool {
	s := kube.StatusOf(immutable)
	if s == nil || s.Details == nil {
		return true
	}
	for _, c := range s.Details.Causes {
		var want, have any = desired, live
		for _, step := range strings.Split(c.Field, ".") {
			step, _, _ = strings.Cut(step, "[")
			in, isMap := want.(map[string]any)
			if _, listed := in[step]; !isMap || !listed {
				break // it may be listed by another name: whatever differs around it counts
			}
			want = in[step]
			of, _ := have.(map[string]any)
			have = of[step]
		}
		if Difference(want, have) != nil {
			return true
		}
	}
	return false
}
