package apply

import (
	"encoding/json"
	"maps"
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// Stripped reports that the API server has nothing noted for our manager in an object any more whose values are all as our
// last write left them: somebody took the note away, and nothing else.
func (r *Record) Stripped(v Values) bool {
	return r.Paths != nil && r.Algorithm == Algorithm && r.Base.Holding&holdsNone == 0 && v.Holding&holdsNone != 0 &&
		v.Hash == r.Base.Hash && !r.ReplicasDiffer(v)
}

// Reclaim is the JSON patch that notes the fields of a record as ours again in a live object, in the version that they were
// written in; nil if the object is not stripped. What the next apply does not list goes with it then; without the note it
// would stay, and be nobody's. When somebody applied since, the API server noted all that was there as that of a program without
// server-side apply, which would never let it go: ours alone it is, too.
func (r *Record) Reclaim(live map[string]any) ([]byte, error) {
	meta, _ := live["metadata"].(map[string]any)
	if meta["uid"] != r.UID || !r.Stripped(r.Paths.Of(live)) {
		return nil, nil
	}
	version := Resource{}
	version.Group, version.Version = r.ID.Group, r.Version
	entry := map[string]any{"manager": fleet.FieldManager, "operation": "Apply", "apiVersion": version.GroupVersion().String(),
		"fieldsType": "FieldsV1", "fieldsV1": r.Paths.fields()}
	entries := append(slices.Clone(entriesOf(live)), entry)
	noted := maps.Clone(meta)
	noted["managedFields"] = entries
	if patch, err := TakeOver(map[string]any{"metadata": noted}, false, nil); patch != nil || err != nil {
		return patch, err
	}
	return json.Marshal([]map[string]any{
		{"op": "add", "path": "/metadata/managedFields", "value": entries},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
	})
}

// fields is the set in the form of fieldsV1.
func (p *PathSet) fields() map[string]any {
	out := make(map[string]any, len(p.edges))
	for _, e := range p.edges {
		sub := map[string]any{}
		if e.kid != nil {
			sub = e.kid.fields()
			if e.leaf {
				sub["."] = map[string]any{}
			}
		}
		out[e.elem.text] = sub
	}
	return out
}
