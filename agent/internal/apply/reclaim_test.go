package apply

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestFieldsOfAPathSet(t *testing.T) {
	for _, text := range []string{
		`{}`,
		`{"f:data":{"f:k":{}}}`,
		`{"f:data":{".":{},"f:k":{}}}`,
		`{"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}},"f:set":{"v:\"a\"":{}},"f:list":{"i:0":{}}}}`,
	} {
		p, err := NewInterner().Parse([]byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := json.Marshal(p.fields())
		if !reflect.DeepEqual(read(t, got), read(t, []byte(text))) {
			t.Errorf("%s became %s", text, got)
		}
	}
}
