package manifest

import (
	"encoding/json"

	"towline.dev/towline/pkg/fleet"
)

// Labels reads the labels of an object's content.
func Labels(content []byte) (map[string]string, error) {
	var obj struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(content, &obj); err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "content is no object: %v", err)
	}
	return obj.Metadata.Labels, nil
}
