package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Override is what is different in the clusters that its selector matches.
type Override struct {
	Selector *Selector
	Patches  []Patch
	// Values of a chart, as JSON; nil: none.
	Values json.RawMessage
	// Components of a kustomization.
	Components []string
	AllowEmpty bool
}

// Patch changes the objects that its target matches.
type Patch struct {
	// Target is nil where the patch names its object itself.
	Target *PatchTarget
	Text   string
}

// PatchTarget selects objects; what is empty matches all. Namespace and Name are regular expressions for the whole of a text.
type PatchTarget struct {
	Group, Version, Kind, Namespace, Name string
	Labels                                *Selector
}

// Variant is which overrides of a module match a cluster, by their indexes in order. The zero Variant is that none does.
type Variant []int32

// Key is equal for equal variants; empty: no override matches.
func (v Variant) Key() string { return strings.Trim(fmt.Sprint([]int32(v)), "[]") }

// String names the overrides, for messages.
func (v Variant) String() string {
	if len(v) == 0 {
		return "no override"
	}
	names := make([]string, len(v))
	for i, n := range v {
		names[i] = fmt.Sprintf("overrides[%d]", n)
	}
	return strings.Join(names, " + ")
}
