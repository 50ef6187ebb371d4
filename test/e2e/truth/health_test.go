package truth

import (
	"fmt"

	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

// told is how long the hub may take to hear how an object is. Nobody waits for that in a calm moment.
const told = 4 * lag

// sicken says of an object of a custom kind that it is not well, as its controller would, and later that it is: the hub may not call it healthy
// meanwhile.
func (w *world) sicken(s *state) {
	var rows []e2etest.Row
	for _, r := range s.rows {
		if r.Fine() && shapes[r.Object.Kind].apiVersion == custom {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return
	}
	r := e2etest.Pick(w.Random, rows)
	x := placeOf(r).id
	for _, c := range w.Clusters {
		if c.Name != r.Cluster {
			continue
		}
		w.Note("sicken", "%s %s", c.Name, x)
		w.merge(c, x, `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Broken","message":"a test"}]}}`, func() {})
		w.says(r, "Healthy", false)
		w.merge(c, x, `{"status":null}`, func() {})
		w.says(r, "Healthy", true)
	}
}

// says waits until the hub says so of an object, or no longer.
func (w *world) says(of e2etest.Row, health string, is bool) {
	err := lab.PollFor(w.T.Context(), told, func() error {
		for _, r := range w.Rows() {
			if placeOf(r) == placeOf(of) && r.Module == of.Module && (r.Health == health) == is {
				return nil
			}
		}
		return fmt.Errorf("that it is %s is %t, and the hub says otherwise", health, is)
	})
	if err != nil {
		w.Fatal("%s; for %s: %v", of, told, err)
	}
}
