package plan

import (
	"encoding/json"
	"fmt"

	"towline.dev/towline/pkg/fleet"
)

// Exempt says which fields of an object are left as they are once it is there. Nil: none.
type Exempt struct {
	// Paths lead to fields that are nobody's.
	Paths []fleet.FieldPath
	// Managers are field managers that have what they hold for as long as they hold it.
	Managers []string
	// Text tells it from others.
	Text string
}

// ExemptOf is what a policy leaves of an object; nil: nothing.
func ExemptOf(p fleet.Policy) (*Exempt, error) {
	if p.IgnoreFields == nil || len(p.IgnoreFields.JSONPointers)+len(p.IgnoreFields.Managers) == 0 {
		return nil, nil
	}
	out := &Exempt{Managers: p.IgnoreFields.Managers}
	for i, text := range p.IgnoreFields.JSONPointers {
		path, err := fleet.ParseFieldPath(text)
		if err != nil {
			return nil, fmt.Errorf("ignoreFields.jsonPointers[%d]: %w", i, err)
		}
		out.Paths = append(out.Paths, path)
	}
	text, err := json.Marshal(p.IgnoreFields)
	out.Text = string(text)
	return out, err
}

// Name is the Text; empty: nothing is left.
func (e *Exempt) Name() string {
	if e == nil {
		return ""
	}
	return e.Text
}
