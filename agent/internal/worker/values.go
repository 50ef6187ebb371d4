package worker

import (
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
)

// values are the wanted and the live value of a field, as text.
type values struct {
	field, want, live string
}

// valuesOf are none of an object that does not show its values, nor those that hold what nobody may be shown: statuses go to people who
// may not read it.
func (w *worker) valuesOf(id fleet.ObjectID, shows bool, f apply.Field, want string) values {
	hidden := w.hiddenIn(id)
	field := hidden.field(f.Pointer)
	if !shows || hidden.in(f.Live, want) {
		return values{field, fleet.Masked, fleet.Masked}
	}
	return values{field, want, f.Live}
}

// shows reports that people may see the values of an object: it is no Secret, and holds none of the values that bindings read of one.
func (it *item) shows() bool {
	return !it.entry.ID.IsSecret() && len(it.late.secrets()) == 0 && !it.late.failed()
}

func (j *job) shows() bool { return !j.id.IsSecret() && len(j.hidden) == 0 }

// tell puts them into a failure.
func (v values) tell(f *apply.Failure) { f.Field, f.Want, f.Live = v.field, v.want, v.live }

// drifting is what a change made of which value. The content is read once for each change.
func (w *worker) drifting(it *item, c *watch.Change) values {
	if c.Pointer == "" {
		return values{}
	}
	t := it.makeRare()
	if t.change != c {
		t.change, t.values = c, w.valuesOf(it.liveID(), it.shows(), c.Field, w.wanted(it, c.Field))
	}
	return t.values
}

// wanted is the value of a field in what is applied, marks included; empty if that cannot be read.
func (w *worker) wanted(it *item, f apply.Field) string {
	d, err := w.desiredOf(it)
	if err != nil {
		return ""
	}
	body, err := d.Body(w.m.marks(w.ref, it.liveID()), apply.Guard{}, false)
	if err != nil {
		return ""
	}
	var obj map[string]any
	if err := utiljson.Unmarshal(body, &obj); err != nil {
		return ""
	}
	return f.In(obj)
}

// desiredOf reads what is to be applied of an item.
func (w *worker) desiredOf(it *item) (*apply.Desired, error) {
	content, err := w.m.o.Contents.Object(it.entry.Digest)
	if err != nil {
		return nil, err
	}
	return apply.NewDesired(it.entry.ID, content, it.entry.Digest, w.bound(it), w.how)
}
