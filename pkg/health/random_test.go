package health

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"

	"towline.dev/towline/pkg/fleet"
)

// FuzzJudge breaks samples in all ways that JSON allows: no object makes Judge panic, or is changed by it, and what it
// says is always one of the states, with a reason and within bounds.
func FuzzJudge(f *testing.F) {
	var objects []map[string]any
	for _, sets := range loadSamples(f) {
		for _, set := range sets {
			for _, s := range set.Samples {
				version, kind := firstKind(set)
				objects = append(objects, s.object(f, version, kind))
			}
		}
	}
	for i := range uint64(64) {
		f.Add(i)
	}
	rules, err := Compile([]Rule{{Group: "*.io", Kind: "*", Degraded: "object.status.phase == 'Failed'", Message: "object.status.message"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		for range 200 {
			obj := runtime.DeepCopyJSON(objects[r.IntN(len(objects))])
			for range 1 + r.IntN(4) {
				breakValue(r, obj)
			}
			before := runtime.DeepCopyJSON(obj)
			facts := Facts{Now: sampleBirth.Add(time.Duration(r.IntN(300)) * time.Second), HasStatus: r.IntN(2) == 0}
			got := Judge(obj, facts, rules)
			if !reflect.DeepEqual(obj, before) {
				t.Fatalf("the object was changed: %v", before)
			}
			if !sane(got, facts) {
				t.Fatalf("%+v of %v", got, before)
			}
		}
	})
}

func firstKind(set sampleSet) (version, kind string) {
	words := strings.Fields(set.Kinds)
	return words[0], words[1]
}

func sane(r Result, f Facts) bool {
	if len(r.Reason) > maxReason || strings.ContainsAny(r.Reason, " \n") || !utf8.ValidString(r.Reason) || !utf8.ValidString(r.Message) {
		return false
	}
	switch r.Health {
	case fleet.HealthHealthy:
		return r.Reason == "" && r.Message == "" || r.Unjudged()
	case fleet.HealthProgressing, fleet.HealthDegraded, fleet.HealthSuspended, fleet.HealthTerminating, fleet.HealthUnknown:
		return r.Reason != "" && len(r.Message) <= maxMessage && (r.Until.IsZero() || r.Until.After(f.Now))
	}
	return false
}

// breakValue replaces, drops or repeats a value somewhere in the object.
func breakValue(r *rand.Rand, v any) {
	for {
		switch m := v.(type) {
		case map[string]any:
			keys := make([]string, 0, len(m))
			for k := range m {
				keys = append(keys, k)
			}
			if len(keys) == 0 {
				return
			}
			k := keys[r.IntN(len(keys))]
			if child := m[k]; r.IntN(3) > 0 && isTree(child) {
				v = child
				continue
			}
			m[k] = anyValue(r)
			if r.IntN(4) == 0 {
				delete(m, k)
			}
			return
		case []any:
			if len(m) == 0 {
				return
			}
			i := r.IntN(len(m))
			if r.IntN(3) > 0 && isTree(m[i]) {
				v = m[i]
				continue
			}
			m[i] = anyValue(r)
			return
		default:
			return
		}
	}
}

func isTree(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}

func anyValue(r *rand.Rand) any {
	values := []any{nil, "", " ", "-", "é", "é x", strings.Repeat("long ", 99), "Failed", "True", "99999999999999999999", int64(0), int64(-1), int64(1 << 62), 1.5, true, false,
		map[string]any{}, []any{}, []any{nil}, []any{map[string]any{"type": nil}}, map[string]any{"a": []any{int64(1)}}}
	return runtime.DeepCopyJSONValue(values[r.IntN(len(values))])
}
