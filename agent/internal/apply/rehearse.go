package apply

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Rehearse has the API server judge a new object without storing it.
func (c *Client) Rehearse(ctx context.Context, r Resource, namespace, name string, body []byte) error {
	return c.rest.Patch(types.ApplyYAMLPatchType).AbsPath(r.segments(namespace, name)...).
		Param("fieldManager", fleet.FieldManager).Param("fieldValidation", "Strict").Param("dryRun", "All").Body(body).Do(ctx).Error()
}

// Rehearsal is the object under another name, without what it can have only when the object of its own name is gone.
func (d *Desired) Rehearsal(marks Marks) (name string, body []byte, err error) {
	obj, meta, err := d.marked(marks)
	if err != nil {
		return "", nil, err
	}
	if plan.IsCRD(d.id) {
		name = renameDefinition(obj)
	} else {
		name = rehearsalName(d.id.Name)
	}
	if d.id.Group == "" && d.id.Kind == "Service" {
		releaseAddresses(obj)
	}
	meta["name"] = name
	body, err = json.Marshal(obj)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", d.id, err)
	}
	return name, body, nil
}

// shortName is a length that names of every kind may have.
const shortName = 52

// rehearsalName is a name that is as valid as the given one: not longer, unless that is short.
func rehearsalName(name string) string {
	sum := sha256.Sum256([]byte(name))
	suffix := "x" + hex.EncodeToString(sum[:])[:5]
	keep := max(len(name), shortName) - len(suffix)
	return name[:min(len(name), keep)] + suffix
}

// renameDefinition moves a CRD to another group: its name follows from that.
func renameDefinition(obj map[string]any) string {
	spec, _ := obj["spec"].(map[string]any)
	spec = shallow(spec)
	group, _ := spec["group"].(string)
	spec["group"] = "rehearsal." + group
	obj["spec"] = spec
	names, _ := spec["names"].(map[string]any)
	plural, _ := names["plural"].(string)
	return plural + ".rehearsal." + group
}

// releaseAddresses drops what the Service of the real name holds.
func releaseAddresses(obj map[string]any) {
	spec, _ := obj["spec"].(map[string]any)
	spec = shallow(spec)
	if spec["clusterIP"] != "None" {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
	}
	delete(spec, "healthCheckNodePort")
	ports, _ := spec["ports"].([]any)
	free := make([]any, len(ports))
	for i, x := range ports {
		port, isMap := x.(map[string]any)
		if !isMap {
			free[i] = x
			continue
		}
		port = maps.Clone(port)
		delete(port, "nodePort")
		free[i] = port
	}
	if len(free) > 0 {
		spec["ports"] = free
	}
	obj["spec"] = spec
}

// OnlyCountsInQuota reports that a new object was refused only because a quota on the number of objects of the kind is
// full: then there is room for it as soon as the one whose place it takes is gone.
func OnlyCountsInQuota(err error, r Resource) bool {
	s := apiStatus(err)
	if s == nil || !apierrors.IsForbidden(err) {
		return false
	}
	_, after, exceeded := strings.Cut(s.Message, "exceeded quota: ")
	_, after, requested := strings.Cut(after, ", requested: ")
	list, _, _ := strings.Cut(after, ", used: ")
	if !exceeded || !requested {
		return false
	}
	for _, x := range strings.Split(list, ",") {
		name, _, _ := strings.Cut(x, "=")
		if !strings.HasPrefix(name, "count/") && name != r.Resource {
			return false
		}
	}
	return true
}
