package watch

import (
	"strings"
	"testing"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// What the API server writes of objects that name others: of a built-in kind in the order of its type, of a custom one in that
// of the alphabet. The UID u1 is that of another object of the kind.
const (
	ownedMap = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"NAME","namespace":"n","uid":"UID","resourceVersion":"VERSION",` +
		`"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"u1"}]},"data":{"resourceVersion":"5","say":"\"uid\":\"u1\""}}`
	ownedThing = `{"apiVersion":"example.com/v1","binding":{"resourceVersion":"5","uid":"u1"},"kind":"Thing","metadata":{"annotations":{` +
		`"resourceVersion":"5","uid":"u1"},"name":"NAME","namespace":"n","ownerReferences":[{"apiVersion":"example.com/v1","kind":"Thing",` +
		`"name":"a","uid":"u1"}],"resourceVersion":"VERSION","uid":"UID"},"spec":{"ref":{"resourceVersion":"5","uid":"u1"}}}`
)

func fill(object, name, uid, version string) []byte {
	return []byte(strings.NewReplacer("NAME", name, "UID", uid, "VERSION", version).Replace(object))
}

func TestIdentityIsOfTheObjectItself(t *testing.T) {
	for _, object := range []string{ownedMap, ownedThing} {
		if id := identity(fill(object, "b", "u2", "8")); string(id.uid) != "u2" || id.version != 8 || string(id.namespace) != "n" || string(id.name) != "b" {
			t.Errorf("%s, %d of %s", id.uid, id.version, object)
		}
	}
	for _, broken := range []string{"", "null", "[]", "{", `{"metadata"`, `{"metadata":`, `{"metadata":{"uid":"u`, `{"metadata":{"uid":"u","resourceVersion":"x"}}`,
		`{"metadata":[{"uid":"u"}]}`, `{"spec":{"metadata":{"uid":"u"}}}`, `{"metadata":{"uid":"\"`, `{"a":"\\"}`, `{"metadata":{"labels":{"a":"}"`} {
		if id := identity([]byte(broken)); id.version != 0 {
			t.Errorf("%q, %d of %s", id.uid, id.version, broken)
		}
	}
	if id := identity([]byte("{ \"metadata\" : {\n\t\"a\": [\"]\", {}], \"uid\" : \"u\", \"b\": 1.5 , \"resourceVersion\": \"9\" } }")); string(id.uid) != "u" || id.version != 9 {
		t.Errorf("%s, %d of an object with spaces", id.uid, id.version)
	}
}

// While one object is written, others change that name it, as their owner: none of these changes is lost.
func TestChangesOfObjectsThatNameTheOneThatIsWritten(t *testing.T) {
	for _, object := range []string{ownedMap, ownedThing} {
		w, k, _ := flying(t)
		done := w.Writing(k.resource, "n", "a")
		for _, x := range [][3]string{{"b", "u2", "7"}, {"c", "u3", "8"}} {
			_, raw, _ := split([]byte(`{"type":"MODIFIED","object":` + string(fill(object, x[0], x[1], x[2])) + "}\n"))
			if err := k.Update(decodeItem(t, k, string(raw))); err != nil {
				t.Fatal(err)
			}
		}
		done()
		for _, name := range []string{"b", "c"} {
			if k.prints[Key{"n", name}] == nil {
				t.Errorf("the change of %s is lost", name)
			}
		}
	}
}

// A list is newer than an event that came before it, and that waited for the answer to a write which hangs: what the list does
// not have is gone.
func TestEventThatWaitedIsOlderThanAList(t *testing.T) {
	w, k, _ := flying(t)
	k.w.o.Synced, k.w.o.WentBack = func(apply.Resource) {}, func(apply.Resource, []Lost) {}
	done := w.Writing(k.resource, "n", "a")
	event(t, k, "MODIFIED", "7")
	k.begin()
	if err := k.Replace(nil, "9"); err != nil {
		t.Fatal(err)
	}
	done()
	if f := k.prints[Key{"n", "a"}]; f != nil {
		t.Errorf("%+v is called %s, and is gone", fleet.ObjectID{Name: f.Name}, f.Health)
	}
}

// An answer that is heard after a list which is newer, and which does not have the object, brings nothing back: no watch would
// ever tell that it is gone.
func TestAnswerThatIsOlderThanAList(t *testing.T) {
	for name, tt := range map[string]struct {
		version   uint64
		unwatched bool
		there     bool
	}{
		"older":                 {8, false, false},
		"of the list's version": {9, false, false},
		"newer":                 {10, false, true},
		"of an object without our label, which no list has": {8, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			w, k, _ := flying(t)
			k.w.o.Synced, k.w.o.WentBack = func(apply.Resource) {}, func(apply.Resource, []Lost) {}
			done := w.Writing(k.resource, "n", "a")
			k.begin()
			if err := k.Replace(nil, "9"); err != nil {
				t.Fatal(err)
			}
			f := answer(tt.version)
			f.Unwatched = tt.unwatched
			k.observe(f)
			done()
			if there := k.prints[f.Key()] != nil; there != tt.there || !there && len(k.answers) > 0 {
				t.Errorf("it is there: %v, and %d answers are kept", there, len(k.answers))
			}
		})
	}
}
