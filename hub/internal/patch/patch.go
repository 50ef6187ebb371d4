// Package patch applies the patches of overrides to rendered objects. It owns what a patch may say and which objects it is for; it must
// not know where objects come from, or any cluster.
package patch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/manifest"
)

const (
	// maxCopied is how many bytes the copy operations of a patch may add to an object.
	maxCopied = manifest.MaxObjectBytes
	// maxBetween is how large an object may be between two patches.
	maxBetween = 2 * manifest.MaxObjectBytes
	// MaxWork is how many bytes of objects all patches of a revision may go through.
	MaxWork = 1 << 30
	// costOfPatch is what a patch of an object counts beside its bytes, and costOfLook what it counts to look whether it is for an object.
	costOfPatch = 4 << 10
	costOfLook  = 64
)

// Work counts what patches go through: many patches of many objects take hours otherwise.
type Work struct{ Spent int }

func (w *Work) spend(ctx context.Context, cost int) error {
	if w.Spent += cost; w.Spent > MaxWork {
		return fleet.Invalidf("", "with it the patches of all variants go through more than %d MiB of objects: have their targets name fewer", MaxWork>>20)
	}
	return ctx.Err()
}

// Apply patches objects as a variant's overrides say, in order. objects are as they were read by opts, and are not changed. An error names
// the patch, by its field below the module's spec.
func Apply(ctx context.Context, spent *Work, objects []manifest.Object, overrides []fleet.Override, v []int32, opts manifest.Options) ([]manifest.Object, error) {
	w := work{spent: spent, objects: objects, changed: map[int]map[string]any{}, sizes: map[int]int{}}
	for _, n := range v {
		for i, p := range overrides[n].Patches {
			field := fieldOf(int(n), i)
			parsed, err := parse(field, p)
			if err == nil {
				err = w.apply(ctx, parsed)
			}
			if err != nil {
				return nil, fleet.Join(field, err)
			}
		}
	}
	if len(w.changed) == 0 {
		return objects, nil
	}
	return manifest.Amend(objects, w.changed, opts)
}

// Check finds what is wrong with the patches of overrides, whatever they are applied to.
func Check(overrides []fleet.Override) error {
	for n, o := range overrides {
		for i, p := range o.Patches {
			if _, err := parse(fieldOf(n, i), p); err != nil {
				return fleet.Join(fieldOf(n, i), err)
			}
		}
	}
	return nil
}

func fieldOf(override, patch int) string {
	return fmt.Sprintf("overrides[%d].patches[%d]", override, patch)
}

// parsed is a patch that can be applied: operations, or what is merged.
type parsed struct {
	target     fleet.PatchTarget
	namespace  *regexp.Regexp // nil: any
	name       *regexp.Regexp
	exact      bool // namespace and name are as they stand
	operations jsonpatch.Patch
	merge      map[string]any
}

// parse reads a patch. Its errors are about a field below it.
func parse(field string, p fleet.Patch) (*parsed, error) {
	value, err := manifest.Value("patch", p.Text)
	if err != nil {
		return nil, err
	}
	out := &parsed{}
	switch v := value.(type) {
	case []any:
		if p.Target == nil {
			return nil, fleet.Invalid("target", "is required for a list of operations: it says which objects they are for, such as {kind: Deployment, name: web}")
		}
		if out.operations, err = operationsOf(v); err != nil {
			return nil, err
		}
	case map[string]any:
		out.merge = v
	default:
		return nil, fleet.Invalid("patch", "is neither a list of operations (a JSON patch) nor a map (a merge patch)")
	}
	if p.Target == nil {
		return out, out.aimAtItself()
	}
	return out, out.aim(*p.Target)
}

// operationsOf reads a JSON patch, and checks what can be said without an object.
func operationsOf(list []any) (jsonpatch.Patch, error) {
	for i, x := range list {
		at := fmt.Sprintf("patch[%d]", i)
		op, isMap := x.(map[string]any)
		if !isMap {
			return nil, fleet.Invalid(at, "is no operation: write {op: replace, path: /spec/replicas, value: 5}")
		}
		verb, _ := op["op"].(string)
		if !slices.Contains([]string{"add", "remove", "replace", "move", "copy", "test"}, verb) {
			return nil, fleet.Invalidf(at+".op", "%q is unknown; use add, remove, replace, move, copy or test", fleet.Clip(verb, 80))
		}
		if path, isText := op["path"].(string); !isText || !strings.HasPrefix(path, "/") {
			return nil, fleet.Invalid(at+".path", "is no JSON pointer below the object: write, for example, /spec/replicas")
		}
		if from, isText := op["from"].(string); (verb == "move" || verb == "copy") && (!isText || !strings.HasPrefix(from, "/")) {
			return nil, fleet.Invalid(at+".from", "is no JSON pointer below the object: write, for example, /spec/replicas")
		}
		if _, has := op["value"]; !has && (verb == "add" || verb == "replace" || verb == "test") {
			return nil, fleet.Invalidf(at+".value", "is required of %s", verb)
		}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, fleet.Invalid("patch", err.Error())
	}
	out, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return nil, fleet.Invalid("patch", err.Error())
	}
	return out, nil
}

// aimAtItself has the object be patched that a merge patch names.
func (p *parsed) aimAtItself() error {
	version, _ := p.merge["apiVersion"].(string)
	kind, _ := p.merge["kind"].(string)
	meta, _ := p.merge["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	if version == "" || kind == "" || name == "" {
		return fleet.Invalid("target", "is required, or the patch names its object by apiVersion, kind and metadata.name")
	}
	p.target.Kind, p.target.Name, p.exact = kind, name, true
	p.target.Namespace, _ = meta["namespace"].(string)
	if group, v, found := strings.Cut(version, "/"); found {
		p.target.Group, p.target.Version = group, v
	} else {
		p.target.Version = version
	}
	return nil
}

func (p *parsed) aim(t fleet.PatchTarget) (err error) {
	p.target = t
	if p.namespace, err = whole("target.namespace", t.Namespace); err != nil {
		return err
	}
	p.name, err = whole("target.name", t.Name)
	return err
}

// whole is an expression for all of a text; nil: none is given.
func whole(field, text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil
	}
	e, err := regexp.Compile("^(?:" + text + ")$")
	if err != nil {
		return nil, fleet.Invalidf(field, "%q is no regular expression: %v", fleet.Clip(text, 80), err)
	}
	return e, nil
}

// work is a set of objects on its way through patches.
type work struct {
	spent   *Work
	objects []manifest.Object
	changed map[int]map[string]any // the values that objects have by now; nil: it is left out
	sizes   map[int]int            // of those that had to be written out, in bytes
}

func (w *work) apply(ctx context.Context, p *parsed) error {
	found := ""
	for i, o := range w.objects {
		if err := w.spent.spend(ctx, costOfLook); err != nil {
			return err
		}
		value, changed := w.changed[i]
		if changed && value == nil || !p.matches(o, value) {
			continue
		}
		if found != "" && p.exact {
			return fleet.Invalidf("", "is for one object, and %s and %s have its name: say metadata.namespace in it, or which are meant in a target", found, o.ID.Short())
		}
		found = o.ID.Short()
		if p.leavesOut() {
			w.changed[i] = nil
			continue
		}
		if err := w.spent.spend(ctx, costOfPatch+max(len(o.Raw), w.sizes[i])); err != nil {
			return err
		}
		if !changed {
			var err error
			if value, err = manifest.Decode(o.Raw); err != nil {
				return err
			}
		}
		next, size, err := p.on(o, value)
		if err != nil {
			return err
		}
		if !names(next, o) {
			return fleet.Invalidf("", "%s would be another object, by its apiVersion, kind, namespace or name: a patch changes what an object says; leave the object out and add one, or put a placeholder into its name", o.ID.Short())
		}
		w.changed[i], w.sizes[i] = next, max(size, w.sizes[i])
	}
	if found == "" {
		return fleet.Invalid("", "matches no object; "+w.there(p.target))
	}
	return nil
}

// matches reports whether a patch is for an object, which has changed to value; nil: it has not.
func (p *parsed) matches(o manifest.Object, value map[string]any) bool {
	t := p.target
	if t.Group != "" && t.Group != o.ID.Group || t.Version != "" && t.Version != o.Version || t.Kind != "" && t.Kind != o.ID.Kind {
		return false
	}
	if p.exact {
		return t.Group == o.ID.Group && t.Name == o.ID.Name && (t.Namespace == "" || t.Namespace == o.ID.Namespace)
	}
	if p.namespace != nil && t.Namespace != o.ID.Namespace && !p.namespace.MatchString(o.ID.Namespace) ||
		p.name != nil && t.Name != o.ID.Name && !p.name.MatchString(o.ID.Name) {
		return false
	}
	return t.Labels == nil || t.Labels.Matches(labelsOf(o, value))
}

func labelsOf(o manifest.Object, value map[string]any) map[string]string {
	if value == nil {
		return o.Labels
	}
	meta, _ := value["metadata"].(map[string]any)
	in, _ := meta["labels"].(map[string]any)
	out := map[string]string{}
	for k, v := range in {
		out[k], _ = v.(string)
	}
	return out
}

// leavesOut reports that the patch leaves out what it is for.
func (p *parsed) leavesOut() bool { return p.merge["$patch"] == "delete" }

// on is an object's value patched, and how many bytes that has, if it was written out for that. What of the value is not changed may be shared.
func (p *parsed) on(o manifest.Object, value map[string]any) (out map[string]any, size int, err error) {
	err = guard.Run(func() error { // the libraries are written for patches of people, not for those of an enemy
		switch {
		case p.operations != nil:
			out, size, err = p.operate(value)
		default:
			out, err = p.mergeInto(o, value)
		}
		return err
	})
	if err == nil {
		return out, size, nil
	}
	if guard.Stack(err) != "" {
		err = errors.New("cannot be applied")
	}
	return nil, 0, fleet.Invalidf("", "%s: %s", o.ID.Short(), fleet.Clip(strings.Join(strings.Fields(err.Error()), " "), 500))
}

func (p *parsed) operate(value map[string]any) (out map[string]any, size int, err error) {
	opts := jsonpatch.NewApplyOptions()
	opts.AccumulatedCopySizeLimit = maxCopied
	raw, err := p.operations.ApplyWithOptions(manifest.Canonical(value), opts)
	if err != nil {
		return nil, 0, err
	}
	if len(raw) > maxBetween {
		return nil, 0, fmt.Errorf("would have %d bytes; at most %d are allowed", len(raw), manifest.MaxObjectBytes)
	}
	out, err = manifest.Decode(raw)
	return out, len(raw), err
}

// mergeInto merges as kubectl does: by the merge keys of lists where the kind is one of Kubernetes' own.
func (p *parsed) mergeInto(o manifest.Object, value map[string]any) (map[string]any, error) {
	patch, err := json.Marshal(p.merge)
	if err != nil {
		return nil, err
	}
	known, err := scheme.Scheme.New(schema.GroupVersionKind{Group: o.ID.Group, Version: o.Version, Kind: o.ID.Kind})
	if err != nil {
		if _, has := p.merge["$patch"]; has {
			return nil, fmt.Errorf("$patch is a strategic merge, which kinds of Kubernetes have, and %s has not; delete is the only one for it", o.ID.Kind)
		}
		if key := directive(p.merge); key != "" {
			return nil, fmt.Errorf("%s is of a strategic merge, which kinds of Kubernetes have, and %s has not: write the list as it is to be, or a JSON patch", key, o.ID.Kind)
		}
		raw, err := jsonpatch.MergePatch(manifest.Canonical(value), patch)
		if err != nil {
			return nil, err
		}
		return manifest.Decode(raw)
	}
	merge, err := manifest.Decode(patch) // merging changes it
	if err != nil {
		return nil, err
	}
	meta, err := strategicpatch.NewPatchMetaFromStruct(known)
	if err != nil {
		return nil, err
	}
	out, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(value, merge, meta)
	if err != nil {
		return nil, mergeError(err, value, p.merge, meta)
	}
	return out, nil
}

// directive finds a key that a strategic merge reads and any other takes for a field; empty: there is none.
func directive(v any) string {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			if key := directive(x); key != "" {
				return key
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if key == "$patch" || key == "$retainKeys" || strings.HasPrefix(key, "$setElementOrder/") || strings.HasPrefix(key, "$deleteFromPrimitiveList/") {
				return key
			}
			if below := directive(v[key]); below != "" {
				return below
			}
		}
	}
	return ""
}

// names reports that a value is of an object still.
func names(value map[string]any, o manifest.Object) bool {
	meta, _ := value["metadata"].(map[string]any)
	namespace, _ := meta["namespace"].(string)
	e := fleet.BundleEntry{ID: o.ID, Version: o.Version}
	return value["apiVersion"] == e.APIVersion() && value["kind"] == o.ID.Kind && meta["name"] == o.ID.Name && namespace == o.ID.Namespace
}

// there says what there is instead of what a target asks for: objects of its kind, or kinds.
func (w *work) there(t fleet.PatchTarget) string {
	var names []string
	kinds := map[string]bool{}
	for i, o := range w.objects {
		if value, changed := w.changed[i]; changed && value == nil {
			continue
		}
		kinds[o.ID.Kind] = true
		if o.ID.Kind == t.Kind {
			names = append(names, strings.TrimPrefix(o.ID.Short(), t.Kind+" "))
		}
	}
	switch {
	case len(names) > 0:
		slices.Sort(names)
		return "objects of kind " + t.Kind + ": " + some(names)
	case len(kinds) == 0:
		return "there is none"
	}
	return "kinds that there are: " + some(slices.Sorted(maps.Keys(kinds)))
}

// some lists names for a message.
func some(names []string) string {
	const most = 10
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}
