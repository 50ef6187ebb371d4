package apply

import (
	"strings"
	"testing"
)

// TestHoldsWhatIsOursAsAWhole: a field that another manager has is ours all the same where it is in a list that is ours as a whole, for a
// definition has divided that since. Where the definition has put a list together of which we have items, it is not.
func TestHoldsWhatIsOursAsAWhole(t *testing.T) {
	const item = `"f:list":{"k:{\"name\":\"%\"}":{".":{},"f:name":{},"f:port":{}}}`
	const whole = `"f:list":{}`
	for name, tc := range map[string]struct {
		ours, theirs, field string
		want                bool
	}{
		"a list that was divided":             {whole, strings.ReplaceAll(item, "%", "b"), `.spec.list[name="b"].port`, true},
		"a list that was put together":        {strings.ReplaceAll(item, "%", "a"), whole, ".spec.list", false},
		"a list that both have as a whole":    {whole, whole, ".spec.list", true},
		"another item":                        {strings.ReplaceAll(item, "%", "a"), strings.ReplaceAll(item, "%", "b"), `.spec.list[name="b"].port`, false},
		"a field of the set":                  {strings.ReplaceAll(item, "%", "a"), strings.ReplaceAll(item, "%", "a"), `.spec.list[name="a"].port`, true},
		"a list of which nothing was listed":  {`"f:other":{}`, whole, ".spec.list", false},
		"a list that is ours as one presence": {`"f:list":{".":{}}`, whole, ".spec.list", true},
	} {
		t.Run(name, func(t *testing.T) {
			ours, err := NewInterner().Parse([]byte(`{"f:spec":{`+tc.ours+`}}`), nil)
			if err != nil {
				t.Fatal(err)
			}
			live := read(t, []byte(`{"spec":{"list":[{"name":"a","port":1},{"name":"b","port":2}]},"metadata":{"managedFields":[
				{"manager":"operator","operation":"Update","apiVersion":"x.example.com/v1","fieldsV1":{"f:spec":{`+tc.theirs+`}}}]}}`))
			f, found := FieldNamed(live, "operator", tc.field)
			if !found {
				t.Fatal("the field is not found")
			}
			if got := ours.Holds(f); got != tc.want {
				t.Errorf("ours: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestDropDividedByOneVersion: what is noted in the words of another version of the kind, in which a list may have another name or other keys, says
// nothing of what nobody holds in this one: then nothing is taken away.
func TestDropDividedByOneVersion(t *testing.T) {
	before, err := NewInterner().Parse([]byte(`{"f:spec":{"f:ports":{}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		entry string
		drops bool
	}{
		"of nobody":                 {`{"manager":"ana","operation":"Update","apiVersion":"x.example.com/v2","fieldsV1":{"f:metadata":{"f:labels":{"f:a":{}}}}}`, true},
		"of ana":                    {`{"manager":"ana","operation":"Update","apiVersion":"x.example.com/v2","fieldsV1":{"f:spec":{"f:ports":{"k:{\"name\":\"b\"}":{".":{}}}}}}`, false},
		"of ana in another version": {`{"manager":"ana","operation":"Update","apiVersion":"x.example.com/v1","fieldsV1":{"f:spec":{"f:listeners":{"k:{\"id\":\"b\"}":{".":{}}}}}}`, false},
		"a status in another version": {`{"manager":"operator","operation":"Update","apiVersion":"x.example.com/v1","subresource":"status",
			"fieldsV1":{"f:status":{"f:ready":{}}}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			patch, err := before.DropDivided(read(t, []byte(`{"apiVersion":"x.example.com/v2","kind":"Gate","spec":{"ports":[{"name":"a"},{"name":"b"}]},
				"metadata":{"resourceVersion":"7","managedFields":[{"manager":"towline","operation":"Apply","apiVersion":"x.example.com/v2",
				"fieldsV1":{"f:spec":{"f:ports":{"k:{\"name\":\"a\"}":{".":{},"f:name":{}}}}}},`+tc.entry+`]}}`)))
			if drops := strings.Contains(string(patch), "/spec/ports/1"); err != nil || drops != tc.drops || !drops && patch != nil {
				t.Errorf("patch %s, %v; want one that drops: %t", patch, err, tc.drops)
			}
		})
	}
}
