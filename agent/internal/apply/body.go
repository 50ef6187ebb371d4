package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// Marks are what managed objects carry.
type Marks struct {
	Hub, Owner string
	Again      string // of no meaning but that the object is another version with it; empty: there is none
}

// Desired is one object as it is to be applied. It is one goroutine's.
type Desired struct {
	// Content is the digest of the object after substitution, with the text of a Secret in data, without the marks.
	Content fleet.Digest

	before fleet.Digest // by which agents of before named the same content; zero: they named it alike
	id     fleet.ObjectID
	text   []byte         // canonical JSON
	object map[string]any // nil: not read yet
}

// NewDesired takes canonical JSON with its digest, and puts declared values in place of ${NAME} in string values; how says what more
// than that is meant. The text of a Secret is moved into its data then.
func NewDesired(id fleet.ObjectID, content []byte, digest fleet.Digest, values map[string]string, how *fleet.Substitution) (*Desired, error) {
	d := &Desired{Content: digest, id: id, text: content}
	substitutes := (len(values) > 0 || how != nil) && bytes.Contains(content, []byte("${"))
	folds := isCoreSecret(id) && bytes.Contains(content, []byte(`"stringData"`))
	if !substitutes && !folds {
		return d, nil
	}
	var obj map[string]any
	if err := utiljson.Unmarshal(content, &obj); err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: content is no object: %v", id, err)
	}
	if substitutes {
		if err := manifest.Substitute(obj, values, how, manifest.MaxObjectBytes-len(content)); err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
	}
	if folds {
		if err := foldStringData(id, obj); err != nil {
			return nil, err
		}
	}
	var err error
	if d.text, err = json.Marshal(obj); err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	d.Content = fleet.DigestOf(d.text)
	if bytes.Equal(manifest.Canonical(obj), content) { // nothing in it was a placeholder: it is what it is without any value
		d.text, d.Content, d.before = content, digest, d.Content
	}
	return d, nil
}

// Is reports that a record of content is of this one.
func (d *Desired) Is(content fleet.Digest) bool {
	return content == d.Content || !d.before.IsZero() && content == d.before
}

// Size is how many bytes the object has as JSON.
func (d *Desired) Size() int { return len(d.text) }

// serverFields of metadata are what only the server may say.
var serverFields = []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink",
	"deletionTimestamp", "deletionGracePeriodSeconds"}

// Object is the object without what only the server may say. It must not be changed.
func (d *Desired) Object() (map[string]any, error) {
	if d.object != nil {
		return d.object, nil
	}
	var obj map[string]any
	if err := utiljson.Unmarshal(d.text, &obj); err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: content is no object: %v", d.id, err)
	}
	delete(obj, "status")
	meta, _ := obj["metadata"].(map[string]any)
	if meta == nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s: has no metadata", d.id)
	}
	for _, f := range serverFields {
		delete(meta, f)
	}
	if d.id.Namespace == "" {
		delete(meta, "namespace") // of an object that has none
	}
	d.object = obj
	return obj, nil
}

// empties is the object if it holds an empty map or list, which is ours as a presence only; else nil, without reading it.
func (d *Desired) empties() (map[string]any, error) {
	if d.object == nil && !bytes.Contains(d.text, []byte("{}")) && !bytes.Contains(d.text, []byte("[]")) {
		return nil, nil
	}
	return d.Object()
}

// Without is the object without a field, which is left to somebody else.
func (d *Desired) Without(path []string) (*Desired, error) {
	read, err := d.Object()
	if err != nil || len(path) == 0 {
		return d, err
	}
	obj := shallow(read)
	at := obj
	for _, step := range path[:len(path)-1] {
		below, isMap := at[step].(map[string]any)
		if !isMap {
			return d, nil
		}
		below = shallow(below)
		at[step], at = below, below
	}
	delete(at, path[len(path)-1])
	text, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.id, err)
	}
	return &Desired{Content: d.Content, before: d.before, id: d.id, text: text}, nil
}

// Guard ties an apply to a certain live object.
type Guard struct {
	// Absent lets the apply succeed only if there is no such object.
	Absent bool
	// UID lets it succeed only for the object with this UID.
	UID string
	// ResourceVersion lets it succeed only for this version.
	ResourceVersion string
}

// neverVersion is a resource version that no object has: the store's first revision exists before any object does. An
// apply that carries it creates, and answers Conflict if the object exists.
const neverVersion = "1"

// Body is the request body: the object with marks, under a guard. withoutReplicas leaves /spec/replicas to an
// autoscaler.
func (d *Desired) Body(marks Marks, g Guard, withoutReplicas bool) ([]byte, error) {
	if !withoutReplicas && marks.Again == "" && !(d.id.Namespace == "" && bytes.Contains(d.text, namespaceField)) {
		if body, ok := splice(d.text, marks, g); ok {
			return body, nil
		}
	}
	obj, meta, err := d.marked(marks)
	if err != nil {
		return nil, err
	}
	if g.Absent {
		meta["resourceVersion"] = neverVersion
	}
	if g.UID != "" {
		meta["uid"] = g.UID
	}
	if g.ResourceVersion != "" {
		meta["resourceVersion"] = g.ResourceVersion
	}
	if spec, ok := obj["spec"].(map[string]any); ok && withoutReplicas {
		spec = shallow(spec)
		delete(spec, "replicas")
		obj["spec"] = spec
	}
	out, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.id, err)
	}
	return out, nil
}

var namespaceField = []byte(`"namespace":`)

// marked is the object with the marks, and its metadata. Only those two maps, and what holds the marks, may be changed.
func (d *Desired) marked(marks Marks) (obj, meta map[string]any, err error) {
	read, err := d.Object()
	if err != nil {
		return nil, nil, err
	}
	obj = shallow(read)
	meta = shallow(obj["metadata"].(map[string]any))
	labels, _ := meta["labels"].(map[string]any)
	labels = shallow(labels)
	labels[fleet.HubLabel] = marks.Hub
	annotations, _ := meta["annotations"].(map[string]any)
	annotations = shallow(annotations)
	annotations[fleet.OwnerAnnotation] = marks.Owner
	if marks.Again != "" {
		annotations[fleet.AgainAnnotation] = marks.Again
	}
	meta["labels"], meta["annotations"] = labels, annotations
	obj["metadata"] = meta
	return obj, meta, nil
}

func shallow(m map[string]any) map[string]any {
	out := make(map[string]any, len(m)+2)
	for k, v := range m {
		out[k] = v
	}
	return out
}

// Differs is a field that is not as desired; Want and Live are its values as text.
type Differs struct{ Pointer, Want, Live string }

// Difference is the first field where the live object is not as desired, looking only at what is desired; nil if
// there is none. Lists of the server may hold defaults that the desired ones lack, so items are compared the same way.
func Difference(desired, live any) *Differs { return difference("", desired, live, false) }

func difference(at string, desired, live any, secret bool) *Differs {
	here := func() *Differs {
		return &Differs{Pointer: orRoot(at), Want: show(desired, secret), Live: show(live, secret)}
	}
	switch want := desired.(type) {
	case nil:
		if live == nil {
			return nil
		}
		return here()
	case map[string]any:
		have, ok := live.(map[string]any)
		if !ok && len(want) > 0 {
			return here()
		}
		for _, k := range slices.Sorted(maps.Keys(want)) {
			if d := difference(at+"/"+pointerStep(k), want[k], have[k], hidden(secret, k, want, have)); d != nil {
				return d
			}
		}
		return nil
	case []any:
		have, _ := live.([]any)
		if len(want) != len(have) {
			return here()
		}
		for i := range want {
			if d := difference(fmt.Sprintf("%s/%d", at, i), want[i], have[i], secret); d != nil {
				return d
			}
		}
		return nil
	default:
		if scalarEqual(at, desired, live) {
			return nil
		}
		return here()
	}
}

func orRoot(at string) string {
	if at == "" {
		return "/"
	}
	return at
}

func scalarEqual(at string, a, b any) bool {
	if a == b {
		return true
	}
	if x, ok := number(a); ok {
		if y, ok := number(b); ok && x == y {
			return true
		}
	}
	if !strings.Contains(at, "/requests") && !strings.Contains(at, "/limits") && !strings.Contains(at, "/hard/") && !strings.Contains(at, "/capacity") {
		return false
	}
	x, errX := resource.ParseQuantity(fmt.Sprint(a))
	y, errY := resource.ParseQuantity(fmt.Sprint(b))
	return errX == nil && errY == nil && x.Cmp(y) == 0
}

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}
