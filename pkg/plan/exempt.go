package plan

import (
	"encoding/json"
	"fmt"

	"towline.dev/towline/pkg/fleet"
)

// Exempt says what of an object is left as it is once it is there: of a drift, of a revision, or of both. Nil: nothing.
type Exempt struct {
	// Always lead to fields that are nobody's.
	Always []fleet.FieldPath
	// OnDrift lead to fields that stay as others set them until a revision changes the object.
	OnDrift []fleet.FieldPath
	// OnUpdate lead to fields that a revision leaves as they are. They are the module's, with that value.
	OnUpdate []fleet.FieldPath
	// Updates and Drifts say so of the whole object.
	Updates, Drifts bool
	// Left says that the policy leaves whatever drifts of the object.
	Left bool
	// Managers are field managers that have what they hold for as long as they hold it.
	Managers []string
	// Text tells it from others.
	Text string
}

// Exempts is what a policy leaves of an object, and the policy that holds for the rest: what somebody changes of an object that is
// left as a whole is no drift to correct.
func Exempts(p fleet.Policy) (fleet.Policy, *Exempt, error) {
	out := &Exempt{}
	if i := p.IgnoreFields; i != nil {
		out.Managers = i.Managers
		if err := out.add("ignoreFields.jsonPointers", i.JSONPointers, true, true); err != nil {
			return p, nil, err
		}
	}
	if o := p.ApplyOnce; o != nil {
		if err := out.add("applyOnce.paths", o.Paths, o.When != fleet.OnceOnDrift, o.When != fleet.OnceOnUpdate); err != nil {
			return p, nil, err
		}
	}
	if out.empty() {
		return p, nil, nil
	}
	text, err := json.Marshal([]any{p.IgnoreFields, p.ApplyOnce})
	if out.Drifts && p.Drift == fleet.DriftCorrect {
		p.Drift = fleet.DriftIgnore
	}
	out.Text, out.Left = string(text), p.Drift == fleet.DriftReport || p.Drift == fleet.DriftIgnore
	return p, out, err
}

func (e *Exempt) add(field string, paths []string, updates, drifts bool) error {
	for i, text := range paths {
		if text == fleet.OnceAll {
			e.Updates, e.Drifts = e.Updates || updates, e.Drifts || drifts
			continue
		}
		path, err := fleet.ParseFieldPath(text)
		switch {
		case err != nil:
			return fmt.Errorf("%s[%d]: %w", field, i, err)
		case updates && drifts:
			e.Always = append(e.Always, path)
		case drifts:
			e.OnDrift = append(e.OnDrift, path)
		default:
			e.OnUpdate = append(e.OnUpdate, path)
		}
	}
	return nil
}

func (e *Exempt) empty() bool {
	return len(e.Always)+len(e.OnDrift)+len(e.OnUpdate)+len(e.Managers) == 0 && !e.Updates && !e.Drifts
}

// Name is the Text; empty: nothing is left.
func (e *Exempt) Name() string {
	if e == nil {
		return ""
	}
	return e.Text
}

// KeepsWhole reports that a revision does not write an object that is there.
func (e *Exempt) KeepsWhole() bool { return e != nil && e.Updates }

// Stays reports that the whole object is left as it is, by a drift as by a revision: no write of ours has its way.
func (e *Exempt) Stays() bool { return e != nil && e.Updates && (e.Drifts || e.Left) }

// Fields is what it says of single fields, and not of the whole object.
func (e *Exempt) Fields() *Exempt {
	out := *e
	out.Updates, out.Drifts = false, false
	return &out
}

// Updating is what of it an object keeps that is made anew because a revision cannot change it in place.
func (e *Exempt) Updating() *Exempt {
	return &Exempt{OnUpdate: e.OnUpdate, Text: e.Text}
}
