package health

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
)

// sampleSet is objects of one or several kinds.
type sampleSet struct {
	// Kinds are an API version and kinds of it.
	Kinds   string   `json:"kinds"`
	Samples []sample `json:"samples"`
}

// sample is an object with the health that it should have.
type sample struct {
	Name string `json:"name"`
	// Is are the health and, where it matters, the reason.
	Is string `json:"is"`
	// If are conditions, each as TYPE=STATUS REASON MESSAGE; Conditions are conditions in full.
	If         []string         `json:"if"`
	Conditions []map[string]any `json:"conditions"`
	Meta       map[string]any   `json:"meta"`
	Spec       map[string]any   `json:"spec"`
	Status     map[string]any   `json:"status"`
	// Operation is a field beside them.
	Operation map[string]any `json:"operation"`
	// After is how many seconds after its creation it is judged.
	After int `json:"after"`
	// Changed is when we wrote it last.
	Changed string `json:"changed"`
	// Old is how many pods of an older template it has.
	Old int `json:"old"`
	// Bare says that the kind has no status subresource.
	Bare bool `json:"bare"`
}

var sampleBirth = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (s sample) want() (fleet.Health, string) {
	health, reason, _ := strings.Cut(s.Is, " ")
	return fleet.Health(health), reason
}

func (s sample) facts(t testing.TB) Facts {
	f := Facts{Now: sampleBirth.Add(time.Duration(s.After) * time.Second), HasStatus: !s.Bare}
	if s.After == 0 {
		f.Now = sampleBirth.Add(10 * time.Second)
	}
	if s.Changed != "" {
		at, err := time.Parse(time.RFC3339, s.Changed)
		if err != nil {
			t.Fatal(err)
		}
		f.Changed = at
	}
	return f
}

// object is the sample as the API server would give it.
func (s sample) object(t testing.TB, version, kind string) map[string]any {
	meta := map[string]any{"name": "a", "generation": 2, "creationTimestamp": sampleBirth.Format(time.RFC3339)}
	for k, v := range s.Meta {
		meta[k] = v
	}
	status := map[string]any{}
	for k, v := range s.Status {
		status[k] = v
	}
	var conditions []any
	for _, c := range s.Conditions {
		conditions = append(conditions, c)
	}
	for _, c := range s.If {
		conditions = append(conditions, conditionOfText(c))
	}
	if conditions != nil {
		status["conditions"] = conditions
	}
	obj := map[string]any{"apiVersion": version, "kind": kind, "metadata": meta}
	if s.Spec != nil {
		obj["spec"] = s.Spec
	}
	if s.Operation != nil {
		obj["operation"] = s.Operation
	}
	if s.Status != nil || conditions != nil {
		obj["status"] = status
	}
	raw, err := json.Marshal(obj)
	var out map[string]any
	if err == nil {
		err = utiljson.Unmarshal(raw, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func conditionOfText(text string) map[string]any {
	kind, rest, _ := strings.Cut(text, "=")
	parts := append(strings.SplitN(rest, " ", 3), "", "")
	c := map[string]any{"type": kind, "status": parts[0]}
	if parts[1] != "" {
		c["reason"] = parts[1]
	}
	if parts[2] != "" {
		c["message"] = parts[2]
	}
	return c
}

func loadSamples(t testing.TB) map[string][]sampleSet {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	out := map[string][]sampleSet{}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var sets []sampleSet
		if err := yaml.UnmarshalStrict(raw, &sets); err != nil {
			t.Fatal(f, err)
		}
		out[strings.TrimSuffix(filepath.Base(f), ".yaml")] = sets
	}
	return out
}

// each calls f with every sample as an object of each of its kinds.
func each(t *testing.T, f func(name, version, kind string, s sample)) {
	for file, sets := range loadSamples(t) {
		for _, set := range sets {
			words := strings.Fields(set.Kinds)
			for _, kind := range words[1:] {
				for _, s := range set.Samples {
					f(fmt.Sprintf("%s/%s/%s", file, kind, s.Name), words[0], kind, s)
				}
			}
		}
	}
}

// TestSamples: every sample is judged as it should be, and what is not healthy is never called so.
func TestSamples(t *testing.T) {
	samples, kinds := 0, map[string]bool{}
	for _, sets := range loadSamples(t) {
		for _, set := range sets {
			samples += len(set.Samples)
		}
	}
	each(t, func(name, version, kind string, s sample) {
		kinds[version+" "+kind] = true
		health, reason := s.want()
		got := Judge(s.object(t, version, kind), s.facts(t), nil)
		if got.Health != health || reason != "" && got.Reason != reason {
			t.Errorf("%s: %s %q (%s), want %s", name, got.Health, got.Reason, got.Message, s.Is)
		}
		if healthy := got.Health == fleet.HealthHealthy; healthy && got.Reason != reason || !healthy && (got.Reason == "" || strings.Contains(got.Reason, " ")) {
			t.Errorf("%s: %s with the reason %q", name, got.Health, got.Reason)
		}
	})
	each(t, func(name, version, kind string, s sample) {
		if got := Old(s.object(t, version, kind)); got != s.Old {
			t.Errorf("%s: has %d old pods, want %d", name, got, s.Old)
		}
	})
	if samples < 300 || len(kinds) < 90 {
		t.Errorf("%d samples of %d kinds; at least 300 of 90 are wanted", samples, len(kinds))
	}
	t.Logf("%d samples of %d kinds", samples, len(kinds))
}
