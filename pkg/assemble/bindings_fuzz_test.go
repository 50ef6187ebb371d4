package assemble

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// Whatever people write into bindings and labels, each cluster either has a value for every name, no longer than one may be, or an
// error that names the bindings; nothing is evaluated twice to different ends, and what only an agent can evaluate ends too.
func FuzzBindings(f *testing.F) {
	for _, s := range [][4]string{
		{"${B}-${C}", "${C}", "prod", "eu"},
		{"${B}", "${A}", "x", ""},
		{"$${B} ${B:-none} ${unknown}", "${B}", "${A}", "1"},
		{strings.Repeat("${B}", 50), strings.Repeat("${C}", 50), strings.Repeat("x", 100), "true"},
		{"${", "${A", "}", "$${"},
		{"\xff", "é${C}", "\x00", "-0"},
	} {
		f.Add(s[0], s[1], s[2], s[3], uint8(0))
		f.Add(s[0], s[1], s[2], s[3], uint8(0x7f))
	}
	f.Fuzz(func(t *testing.T, a, b, fallback, label string, flags uint8) {
		types := []fleet.BindingType{"", fleet.BindingInteger, fleet.BindingNumber, fleet.BindingBoolean}
		c := fleet.Cluster{Name: "c1", Labels: map[string]string{}}
		if flags&1 != 0 {
			c.Labels["env"] = label
		}
		bindings := []fleet.Binding{{Name: "A", Value: &a, Type: types[flags>>1&3]}, {Name: "B", Value: &b},
			{Name: "C", Label: "env", Optional: flags&8 != 0}, {Name: "D", Field: "metadata.name"}}
		if flags&16 != 0 {
			bindings[2].Default = &fallback
		}
		got, err := Values(bindings, c)
		again, errAgain := Values(bindings, c)
		if !maps.Equal(got, again) || (err == nil) != (errAgain == nil) {
			t.Fatalf("once %q, %v; again %q, %v", got, err, again, errAgain)
		}
		if err != nil && !errors.Is(err, fleet.ErrInvalid) {
			t.Fatalf("error %v is none of what was written", err)
		}
		for name, v := range got {
			if len(v) > MaxValueBytes {
				t.Errorf("%s has %d bytes", name, len(v))
			}
		}
		if err == nil && len(got) != len(bindings) {
			t.Errorf("values of %d names: %q", len(got), got)
		}
		lateBindings(t, a, b, fallback, label, flags)
	})
}

// lateBindings evaluates the same texts as an agent does, with an object that they name and whose field they refer to.
func lateBindings(t *testing.T, a, b, fallback, live string, flags uint8) {
	bindings := []fleet.Binding{{Name: "A", Value: &a}, {Name: "B", Default: &fallback, Object: &fleet.ObjectField{Version: "v1", Kind: "ConfigMap",
		Namespace: "default", Name: b, Path: "data.x"}}, {Name: "C", Field: "metadata.name"}}
	late, err := Late(bindings)
	if err != nil {
		return
	}
	got := LateValues(late, map[string]string{"C": "c1"}, reads(func(fleet.ObjectField) Read {
		if flags&32 != 0 {
			return Read{Absent: errors.New("it is not there")}
		}
		return Read{Value: live, Secret: flags&64 != 0}
	}))
	for _, x := range late {
		if v, ok := got[x.Name]; !ok || v.Err != nil && v.Value != "" || v.Err == nil && x.Object == nil && len(v.Value) > MaxValueBytes {
			t.Errorf("%s is %+v", x.Name, v)
		}
	}
}
