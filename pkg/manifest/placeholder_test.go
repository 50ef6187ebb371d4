package manifest

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"towline.dev/towline/pkg/fleet"
)

func TestSubstitute(t *testing.T) {
	values := map[string]string{"CLUSTER": "eu-1", "QUOTE": `"a"\` + "\n", "NEST": "${CLUSTER}", "EMPTY": ""}
	for _, tt := range []struct{ name, in, want string }{
		{"nothing to do", `{"a":"b"}`, `{"a":"b"}`},
		{"in the middle", `{"a":"in ${CLUSTER}!"}`, `{"a":"in eu-1!"}`},
		{"in lists and maps", `{"a":[{"b":"${CLUSTER}${CLUSTER}"}]}`, `{"a":[{"b":"eu-1eu-1"}]}`},
		{"escapes", `{"a":"${QUOTE}"}`, `{"a":"\"a\"\\\n"}`},
		{"values are not looked at again", `{"a":"${NEST}"}`, `{"a":"${CLUSTER}"}`},
		{"nor what they make with their neighbours", `{"a":"$${EMPTY}{CLUSTER}"}`, `{"a":"${CLUSTER}"}`},
		{"an empty value is a value", `{"a":"${EMPTY}"}`, `{"a":""}`},
		{"not declared", `{"a":"${OTHER} ${HOME} ${cluster} ${} ${CLUSTER:-x} ${CLUSTER"}`, `{"a":"${OTHER} ${HOME} ${cluster} ${} ${CLUSTER:-x} ${CLUSTER"}`},
		{"nested braces", `{"a":"${${CLUSTER}}"}`, `{"a":"${eu-1}"}`},
		{"keys stay", `{"${CLUSTER}":"${CLUSTER}"}`, `{"${CLUSTER}":"eu-1"}`},
		{"numbers stay exact", `{"a":9007199254740993,"b":"${CLUSTER}","c":0.1}`, `{"a":9007199254740993,"b":"eu-1","c":0.1}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			object, err := Decode([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if err := Substitute(object, values, nil, MaxObjectBytes); err != nil || string(Canonical(object)) != tt.want {
				t.Errorf("got %s, %v; want %s", Canonical(object), err, tt.want)
			}
		})
	}
}

func TestSubstituteIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		text  string
		value int
		fits  bool
	}{
		"a long value":             {"${BIG}", MaxObjectBytes + 10, false},
		"a value used often":       {strings.Repeat("${BIG}", 100000), 1 << 10, false},
		"no longer than the names": {strings.Repeat("${BIG}", 100000), 6, true},
	} {
		object := map[string]any{"a": tc.text}
		err := Substitute(object, map[string]string{"BIG": strings.Repeat("x", tc.value)}, nil, MaxObjectBytes-len(Canonical(object)))
		if tc.fits != (err == nil) || err != nil && !errors.Is(err, fleet.ErrExhausted) || len(Canonical(object)) > MaxObjectBytes {
			t.Errorf("%s: %v, %d bytes", name, err, len(Canonical(object)))
		}
	}
}

func TestPlaceholders(t *testing.T) {
	o := parse(t, `apiVersion: v1
kind: ConfigMap
metadata: {name: "web-${REGION}", namespace: "${TEAM}", labels: {where: "${REGION}"}}
data: {a: "${CLUSTER} ${HOME}", b: "${CLUSTER}"}
`, Options{Declared: []string{"CLUSTER", "REGION", "TEAM", "UNUSED"}})[0]
	if diff := cmp.Diff([]string{"CLUSTER", "REGION", "TEAM"}, o.Placeholders); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"REGION", "TEAM"}, o.IdentityPlaceholders); diff != "" {
		t.Error(diff)
	}
	if got := o.ID.String(); got != "ConfigMap ${TEAM}/web-${REGION}" {
		t.Errorf("identity %s", got)
	}
}

func TestResolveID(t *testing.T) {
	id := fleet.ObjectID{Kind: "ConfigMap", Namespace: "${TEAM}", Name: "web-${REGION}"}
	got, err := ResolveID(id, map[string]string{"TEAM": "shop", "REGION": "eu"})
	if err != nil || got.String() != "ConfigMap shop/web-eu" {
		t.Errorf("got %s, %v", got, err)
	}
	for _, tt := range []struct {
		team, region, want string
		kind               error
	}{
		{"shop", "EU West", `metadata.name "web-EU West" is no name`, fleet.ErrInvalid},
		{"", "eu", "leave no namespace", fleet.ErrInvalid},
		{"towline-system", "eu", "belongs to the agent", fleet.ErrInvalid},
		{"a/b", "eu", "metadata.namespace", fleet.ErrInvalid},
		{"${X}", "eu", "metadata.namespace", fleet.ErrInvalid},
	} {
		_, err := ResolveID(id, map[string]string{"TEAM": tt.team, "REGION": tt.region})
		if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got %v", tt, err)
		}
	}
	_, err = ResolveID(id, map[string]string{"TEAM": "shop"})
	if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "no value for ${REGION}") {
		t.Errorf("got %v", err)
	}
	_, err = ResolveID(fleet.ObjectID{Kind: "Namespace", Name: "towline-${X}"}, map[string]string{"X": "system"})
	if err == nil {
		t.Error("the agent's namespace came in by a placeholder")
	}
}
