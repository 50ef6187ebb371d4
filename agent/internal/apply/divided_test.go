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
