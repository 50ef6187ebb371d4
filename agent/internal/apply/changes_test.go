package apply

import (
	"reflect"
	"testing"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"towline.dev/towline/pkg/fleet"
)

func TestChanges(t *testing.T) {
	for _, c := range []struct {
		name, live, next string
		want             []Differs
	}{
		{name: "what the API server keeps by itself, our marks and the status are no change",
			live: `{"metadata":{"name":"a","resourceVersion":"1","generation":1,"managedFields":[{"manager":"x"}]},"status":{"ready":1}}`,
			next: `{"metadata":{"name":"a","resourceVersion":"2","generation":2,"labels":{"` + fleet.HubLabel + `":"h"},"annotations":{"` + fleet.OwnerAnnotation + `":"o"}},"status":{"ready":2}}`},
		{name: "a value",
			live: `{"spec":{"replicas":3,"paused":true}}`, next: `{"spec":{"replicas":5,"paused":true}}`,
			want: []Differs{{Pointer: "/spec/replicas", Live: "3", Want: "5"}}},
		{name: "a field that comes and one that goes, whole",
			live: `{"data":{"old/key":"1"},"spec":{"a":{"b":1}}}`, next: `{"data":{"new~key":"1"},"spec":{}}`,
			want: []Differs{{Pointer: "/data/new~0key", Want: `"1"`}, {Pointer: "/data/old~1key", Live: `"1"`}, {Pointer: "/spec/a", Live: `{"b":1}`}}},
		{name: "items with names are compared by them",
			live: `{"containers":[{"name":"a","image":"1"},{"name":"gone"}]}`, next: `{"containers":[{"name":"new"},{"name":"a","image":"2"}]}`,
			want: []Differs{{Pointer: "/containers/1", Live: `{"name":"gone"}`}, {Pointer: "/containers/0", Want: `{"name":"new"}`},
				{Pointer: "/containers/1/image", Live: `"1"`, Want: `"2"`}}},
		{name: "others by their place",
			live: `{"args":["-a","-b"]}`, next: `{"args":["-a","-c","-d"]}`,
			want: []Differs{{Pointer: "/args/1", Live: `"-b"`, Want: `"-c"`}, {Pointer: "/args/2", Want: `"-d"`}}},
		{name: "another type",
			live: `{"spec":{"port":80}}`, next: `{"spec":{"port":{"name":"http"}}}`,
			want: []Differs{{Pointer: "/spec/port", Live: "80", Want: `{"name":"http"}`}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Changes(fromJSON(t, c.live), fromJSON(t, c.next)); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func fromJSON(t *testing.T, text string) (out map[string]any) {
	t.Helper()
	if err := utiljson.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}
