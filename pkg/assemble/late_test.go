package assemble

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

func ptr(s string) *string { return &s }

type reads func(fleet.ObjectField) Read

func (r reads) ReadField(_ string, f fleet.ObjectField) Read { return r(f) }

func (r reads) ReadSecret(_ string, k fleet.SecretKey) Read {
	return Read{Value: k.Key + " of " + k.Name}
}

func field(name string) *fleet.ObjectField {
	return &fleet.ObjectField{Version: "v1", Kind: "ConfigMap", Namespace: "shop", Name: name, Path: "data.v"}
}

// TestLateIsWhatTheAgentEvaluates: a binding of an object, and every literal that refers to one, however far; the hub evaluates the rest.
func TestLateIsWhatTheAgentEvaluates(t *testing.T) {
	list := []fleet.Binding{{Name: "NAME", Field: "metadata.name"}, {Name: "FAR", Value: ptr("${NEAR}!")}, {Name: "NEAR", Value: ptr("x${OBJ}")},
		{Name: "OBJ", Object: field("net")}, {Name: "PLAIN", Value: ptr("$${OBJ} of ${NAME}")}}
	late, err := Late(list)
	var names []string
	for _, b := range late {
		names = append(names, b.Name)
	}
	if err != nil || !slices.Equal(names, []string{"FAR", "NEAR", "OBJ"}) {
		t.Fatalf("%v: late %v", err, names)
	}
	values, err := Values(list, fleet.Cluster{Name: "c1"})
	if err != nil || len(values) != 2 || values["PLAIN"] != "${OBJ} of c1" {
		t.Errorf("%v: values %v", err, values)
	}
	values, err = Values(append(list, fleet.Binding{Name: "A", Annotation: "a"}), fleet.Cluster{Name: "c1", Annotations: map[string]string{"a": "${OBJ}"}})
	if err != nil || values["A"] != "${OBJ}" {
		t.Errorf("%v: what an annotation holds is no placeholder: %v", err, values)
	}
}

func TestLateIsRefused(t *testing.T) {
	for says, list := range map[string][]fleet.Binding{
		"A refers to itself: A → B → A":                                  {{Name: "A", Object: field("${B}")}, {Name: "B", Object: field("${A}")}},
		"A refers to itself: A → A":                                      {{Name: "A", Object: field("x"), Default: ptr("${A}")}},
		"R: its default refers to a binding that only the agent can eva": {{Name: "R", Label: "r", Default: ptr("${A}")}, {Name: "A", Object: field("x")}},
	} {
		if _, err := Late(list); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want one that says %q", err, says)
		}
	}
}

// TestLateValues: all are evaluated, one by way of the other; one without a value takes those with it that refer to it, and no others.
func TestLateValues(t *testing.T) {
	late := []fleet.LateBinding{{Name: "URL", Value: ptr("${HOST}:${PORT}/${REGION}")}, {Name: "HOST", Object: field("net-${REGION}")}, {Name: "PORT", Object: field("port"), Type: fleet.BindingInteger},
		{Name: "PW", Object: field("pw")}, {Name: "DSN", Value: ptr("u:${PW}@${HOST}")}, {Name: "GONE", Object: field("gone")}, {Name: "BY", Value: ptr("a${GONE}")},
		{Name: "FALLS", Object: field("gone"), Default: ptr("${REGION}-1")}, {Name: "OPT", Object: field("gone"), Optional: true, Type: fleet.BindingInteger}, {Name: "BAD", Object: field("net-eu"), Type: fleet.BindingInteger}}
	absent, asked := errors.New("ConfigMap gone does not exist"), 0
	late = append(late, fleet.LateBinding{Name: "TOKEN", Secret: &fleet.SecretKey{Name: "api", Key: "token"}}, fleet.LateBinding{Name: "AUTH", Value: ptr("Bearer ${TOKEN}")})
	got := LateValues(late, map[string]string{"REGION": "eu"}, reads(func(f fleet.ObjectField) Read {
		asked++
		switch f.Name {
		case "net-eu":
			return Read{Value: "h.example"}
		case "port":
			return Read{Value: "80"}
		case "pw":
			return Read{Value: "s3", Secret: true}
		}
		return Read{Absent: absent}
	}))
	for name, want := range map[string]LateValue{"URL": {Value: "h.example:80/eu"}, "HOST": {Value: "h.example"}, "DSN": {Value: "u:s3@h.example", Secret: true}, "PW": {Value: "s3", Secret: true},
		"GONE": {Err: absent}, "BY": {Err: absent}, "FALLS": {Value: "eu-1"}, "OPT": {}, "TOKEN": {Value: "token of api", Secret: true}, "AUTH": {Value: "Bearer token of api", Secret: true}} {
		if got[name] != want {
			t.Errorf("%s is %+v, want %+v", name, got[name], want)
		}
	}
	if err := got["BAD"].Err; err == nil || !strings.Contains(err.Error(), "BAD is no whole number") || got["BAD"].Value != "" || strings.Contains(err.Error(), "h.example") {
		t.Errorf("BAD: %+v", got["BAD"])
	}
	if asked != 7 {
		t.Errorf("%d fields were read, want 7", asked)
	}
}

// TestObjectCircle: objects that wait for a field of each other are found, with the bindings between them.
func TestObjectCircle(t *testing.T) {
	id := func(name string) fleet.ObjectID {
		return fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: name}
	}
	late := []fleet.LateBinding{{Name: "A", Object: field("a")}, {Name: "B", Object: field("b-${R}")}, {Name: "C", Value: ptr("x${A}")}, {Name: "X", Object: field("other")}}
	for want, users := range map[string]Users{
		"": {id("a"): {"B"}, id("b-eu"): {"X"}, id("c"): {"A", "B", "C"}},
		"ConfigMap shop/a → ${A} → ConfigMap shop/a":                                     {id("a"): {"A"}},
		"ConfigMap shop/a → ${B} → ConfigMap shop/b-eu → ${C} → ${A} → ConfigMap shop/a": {id("a"): {"B"}, id("b-eu"): {"C"}},
		"ConfigMap shop/a → ${C} → ${A} → ConfigMap shop/a":                              {id("a"): {"X", "C"}, id("z"): {"A"}},
	} {
		if got := strings.Join(ObjectCircle(late, users, map[string]string{"R": "eu"}), " → "); got != want {
			t.Errorf("circle %q, want %q", got, want)
		}
	}
}
