package manifest

import (
	"maps"
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// Value reads one value of a text in YAML or JSON. name is what errors call the text.
func Value(name, text string) (any, error) {
	if err := checkText(name, []byte(text)); err != nil {
		return nil, err
	}
	values, err := readYAML(name, []byte(text), false)
	if err != nil {
		return nil, err
	}
	values = slices.DeleteFunc(values, func(p parsed) bool { return p.value == nil })
	if len(values) != 1 {
		return nil, fleet.Invalidf(name, "has %d values, not one", len(values))
	}
	return values[0].value, nil
}

// Amend is the set with some of its objects changed, by their index: they are read anew from the value that each has now, which is taken
// over; without one the object is left out. objects are as ParseSet made them, by the same options.
func Amend(objects []Object, changed map[int]map[string]any, opts Options) ([]Object, error) {
	b := newBuilder(opts)
	for i, o := range objects {
		if o.ID.Kind != "CustomResourceDefinition" {
			continue
		}
		value, amended := changed[i]
		if !amended {
			var err error
			if value, err = Decode(o.Raw); err != nil {
				return nil, err
			}
		}
		b.scopes.learn(value)
	}
	out := slices.Clone(objects)
	var gone []int
	for _, i := range slices.Sorted(maps.Keys(changed)) {
		if changed[i] == nil {
			gone = append(gone, i)
			continue
		}
		o, err := b.build(changed[i], place{objects[i].File, objects[i].Line})
		if err != nil {
			return nil, err
		}
		out[i] = o
	}
	for _, i := range slices.Backward(gone) {
		out = slices.Delete(out, i, i+1)
	}
	total := 0
	for _, o := range out {
		if total += len(o.Raw); total > MaxTotalBytes {
			return nil, fleet.Invalidf(o.Place(), "%s brings the objects to more than %d MiB: split the module", o.ID, MaxTotalBytes>>20)
		}
	}
	SortByIdentity(out)
	return out, nil
}
