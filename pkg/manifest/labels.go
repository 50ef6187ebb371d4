package manifest

import (
	"encoding/json"

	"towline.dev/towline/pkg/fleet"
)

// Labels are those of an object's content with these values in the places of their placeholders, as it has them in the cluster. One whose value is not
// among them keeps its placeholder.
func Labels(content []byte, values map[string]string) (map[string]string, error) {
	var obj struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(content, &obj); err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "content is no object: %v", err)
	}
	for k, v := range obj.Metadata.Labels {
		obj.Metadata.Labels[k] = Expand(v, values)
	}
	return obj.Metadata.Labels, nil
}
