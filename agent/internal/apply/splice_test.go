package apply

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"towline.dev/towline/pkg/fleet"
)

// slow is the body that is made by reading the object.
func slow(t interface{ Fatal(...any) }, text []byte, m Marks, g Guard) map[string]any {
	d := &Desired{text: text}
	if _, err := d.Object(); err != nil {
		t.Fatal(err)
	}
	meta := d.object["metadata"].(map[string]any)
	set := func(name, key, value string) {
		into, _ := meta[name].(map[string]any)
		if into == nil {
			into = map[string]any{}
			meta[name] = into
		}
		into[key] = value
	}
	set("labels", fleet.HubLabel, m.Hub)
	set("annotations", fleet.OwnerAnnotation, m.Owner)
	if g.UID != "" {
		meta["uid"] = g.UID
	}
	if g.Absent {
		g.ResourceVersion = neverVersion
	}
	if g.ResourceVersion != "" {
		meta["resourceVersion"] = g.ResourceVersion
	}
	return read(t, must(json.Marshal(d.object)))
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func read(t interface{ Fatal(...any) }, text []byte) map[string]any {
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err, string(text))
	}
	return out
}

func TestSplice(t *testing.T) {
	marks := Marks{Hub: "hub-1", Owner: "default/web@uid-1"}
	for name, tc := range map[string]struct {
		text    string
		spliced bool
	}{
		"no maps":               {`{"kind":"X","metadata":{"name":"a"}}`, true},
		"labels":                {`{"metadata":{"labels":{"a":"b"},"name":"a"},"spec":{}}`, true},
		"annotations":           {`{"metadata":{"annotations":{"a":"b"},"name":"a"}}`, true},
		"both":                  {`{"metadata":{"annotations":{"a":"b"},"labels":{"c":"d"},"name":"a"}}`, true},
		"both the other way":    {`{"metadata":{"labels":{"c":"d"},"annotations":{"a":"b"},"name":"a"}}`, true},
		"both empty":            {`{"metadata":{"annotations":{},"labels":{},"name":"a"}}`, true},
		"braces in strings":     {`{"data":{"a":"}{\"][","b":"\\"},"metadata":{"annotations":{"a":"{}\"}"},"name":"a"}}`, true},
		"metadata further down": {`{"data":{"metadata":{"name":"no"}},"metadata":{"name":"a"},"spec":[1,2.5,true,null,{"metadata":{}}]}`, true},
		"generateName":          {`{"metadata":{"generateName":"a-"}}`, true},
		"status":                {`{"metadata":{"name":"a"},"status":{"x":1}}`, false},
		"a uid":                 {`{"metadata":{"name":"a","uid":"u"}}`, false},
		"a mark":                {`{"metadata":{"annotations":{"towline.dev/owner":"x"},"name":"a"}}`, false},
		"a label":               {`{"metadata":{"labels":{"towline.dev/hub":"x"},"name":"a"}}`, false},
		"null labels":           {`{"metadata":{"labels":null,"name":"a"}}`, false},
		"an escaped name":       {`{"meta\u0064ata":{"name":"a"},"metadata":{"name":"b"}}`, false},
		"empty metadata":        {`{"metadata":{}}`, false},
	} {
		for _, g := range []Guard{{}, {Absent: true}, {UID: "u-1"}, {UID: "u-1", ResourceVersion: "7"}} {
			body, ok := splice([]byte(tc.text), marks, g)
			if ok != tc.spliced {
				t.Errorf("%s: spliced %t", name, ok)
				continue
			}
			if !ok {
				continue
			}
			if diff := cmp.Diff(slow(t, []byte(tc.text), marks, g), read(t, body)); diff != "" {
				t.Errorf("%s (-read +spliced)\n%s", name, diff)
			}
		}
	}
	if _, ok := splice([]byte(`{"metadata":{"name":"a"}}`), Marks{Hub: "h", Owner: "a\"b"}, Guard{}); ok {
		t.Error("a mark that needs escapes was spliced")
	}
}

func TestSpliceOfWhatIsNoObject(t *testing.T) {
	whole := `{"data":{"a":"b\"c"},"metadata":{"annotations":{"a":"b"},"labels":{"c":"d"},"name":"a"}}`
	for i := range whole {
		if _, ok := splice([]byte(whole[:i]), Marks{Hub: "h", Owner: "o"}, Guard{UID: "u"}); ok {
			t.Errorf("cut off at %d it was spliced", i)
		}
	}
	for _, text := range []string{"", "[]", "7", `"x"`, `{"metadata":7}`, `{"metadata":"x"}`, `{metadata:{}}`, `{"metadata" :{"name":"a"}}`, `{"a":]`} {
		if _, ok := splice([]byte(text), Marks{Hub: "h", Owner: "o"}, Guard{}); ok {
			t.Errorf("%q was spliced", text)
		}
	}
}

// What is spliced is what is read, whatever the object.
func TestSpliceAgreesWithReading(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SampledFrom([]string{"a", "labels", "annotations", "metadata", "name", "status", "uid", "x\"y", "\\", "{", fleet.HubLabel, fleet.OwnerAnnotation})
		var value func(depth int) *rapid.Generator[any]
		value = func(depth int) *rapid.Generator[any] {
			kinds := []*rapid.Generator[any]{rapid.String().AsAny(), rapid.Int().AsAny(), rapid.Bool().AsAny(), rapid.Just[any](nil)}
			if depth > 0 {
				kinds = append(kinds, rapid.MapOfN(key, value(depth-1), 0, 4).AsAny(), rapid.SliceOfN(value(depth-1), 0, 3).AsAny())
			}
			return rapid.OneOf(kinds...)
		}
		meta := rapid.MapOfN(key, value(1), 0, 5).Draw(t, "metadata")
		for _, name := range []string{"labels", "annotations"} {
			if rapid.Bool().Draw(t, name) {
				meta[name] = rapid.MapOfN(key, rapid.String(), 0, 3).Draw(t, name+" of metadata")
			}
		}
		meta["name"] = "n"
		object := rapid.MapOfN(key, value(2), 0, 4).Draw(t, "object")
		object["metadata"] = meta
		text := must(json.Marshal(object))
		if strings.Contains(string(text), `\u`) {
			return // canonical JSON has none
		}
		marks, g := Marks{Hub: "h", Owner: "o"}, Guard{UID: "u"}
		body, ok := splice(text, marks, g)
		if !ok {
			return
		}
		if diff := cmp.Diff(slow(t, text, marks, g), read(t, body)); diff != "" {
			t.Fatalf("%s (-read +spliced)\n%s", text, diff)
		}
	})
}
