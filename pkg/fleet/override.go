package fleet

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
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

// Variant is what is different in a cluster: which overrides of the module match it, by their indexes in order, and for a revision that is
// rendered by what clusters can do, the digest of what this one can. The zero Variant is that no override does, and nothing is known of it.
type Variant struct {
	Overrides    []int32
	Capabilities Digest
}

// Key is equal for equal variants; empty: that of the zero Variant.
func (v Variant) Key() string {
	key := strings.Trim(fmt.Sprint(v.Overrides), "[]")
	if v.Capabilities.IsZero() {
		return key
	}
	return key + "/" + v.Capabilities.String()
}

// Equal reports that two variants are the same.
func (v Variant) Equal(x Variant) bool {
	return v.Capabilities == x.Capabilities && slices.Equal(v.Overrides, x.Overrides)
}

// Compare orders variants by their overrides.
func (v Variant) Compare(x Variant) int {
	return cmp.Or(slices.Compare(v.Overrides, x.Overrides), bytes.Compare(v.Capabilities[:], x.Capabilities[:]))
}

// String names the overrides, for messages.
func (v Variant) String() string {
	if len(v.Overrides) == 0 {
		return "no override"
	}
	names := make([]string, len(v.Overrides))
	for i, n := range v.Overrides {
		names[i] = fmt.Sprintf("overrides[%d]", n)
	}
	return strings.Join(names, " + ")
}
