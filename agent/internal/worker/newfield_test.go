package worker

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

// definedWith is a kind with these fields in its spec.
func definedWith(fields ...string) string {
	properties := make([]string, len(fields))
	for i, f := range fields {
		properties[i] = f + ": {type: string}"
	}
	return `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: grows.$NS.example.com}
spec:
  group: $NS.example.com
  scope: Namespaced
  names: {kind: Grow, plural: grows}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {` + strings.Join(properties, ", ") + `}}}}}
`
}

// TestFieldThatComesWithItsDefinition: a revision that adds a field to a kind and sets it in an object of that is no failure.
func TestFieldThatComesWithItsDefinition(t *testing.T) {
	r := newRig(t)
	var fields []string
	for i := range 6 {
		fields = append(fields, fmt.Sprintf("f%d", i))
		var values []string
		for _, f := range fields {
			values = append(values, f+": x")
		}
		var objects []string
		for _, name := range []string{"a", "b", "c", "d"} {
			objects = append(objects, "apiVersion: $NS.example.com/v1\nkind: Grow\nmetadata: {name: "+name+", namespace: $NS}\nspec: {"+strings.Join(values, ", ")+"}\n")
		}
		s := r.bundle("shop", nil, append(objects, definedWith(fields...))...)
		r.neverFails(fmt.Sprint("revision ", i), s)
	}
}

// TestFieldWhoseTypeChanges: a revision gives a field of a kind another type. The API server can make nothing of the object that is there, of
// which it says that it failed itself; the module says which field it is, and goes on when somebody has changed it.
func TestFieldWhoseTypeChanges(t *testing.T) {
	r := newRig(t)
	gadget := "apiVersion: $NS.example.com/v1\nkind: Gadget\nmetadata: {name: t, namespace: $NS}\nspec: {color: "
	one := r.bundle("one", nil, strictCRD("color: {type: string}"), gadget+"red}\n")
	r.set([]fleet.Sync{one})
	r.ready(one)
	two := r.bundle("one", nil, strictCRD("color: {type: integer}"), gadget+"7}\n")
	r.set([]fleet.Sync{two})
	r.wait("one", "failed", func(x fleet.SyncStatus) bool {
		return x.Generation == two.Generation && x.Phase == fleet.PhaseFailed && x.Reason == apply.ReasonInvalid &&
			strings.HasSuffix(x.Message, "patch the field there, or delete the object: .spec.color: expected numeric (int or float), got string")
	})
	r.patch(r.ns+".example.com/v1", "gadgets", "t", "ana", `{"spec":{"color":7}}`)
	r.ready(two)
}

// TestDefinitionThatComesLater: an object that sets a field which another module's definition of its kind does not have yet is tried
// again at once when that comes, however long its back-off has become.
func TestDefinitionThatComesLater(t *testing.T) {
	for reason, now := range map[string]bool{apply.ReasonNoKind: true, apply.ReasonInvalid: true, apply.ReasonForbidden: false} {
		it := &item{entry: fleet.BundleEntry{ID: fleet.ObjectID{Group: "example.com", Kind: "Grow", Name: "a"}}}
		it.fail, it.next, it.waiting = &apply.Failure{Reason: reason}, time.Now().Add(time.Hour), true
		w := newWorker(&Manager{o: Options{Log: slog.New(slog.DiscardHandler)}}, fleet.ModuleRef{Project: "default", Name: "app"})
		w.items = []*item{it}
		w.touchKind("example.com", "")
		w.take(context.Background(), time.Now())
		if it.look != now || it.next.IsZero() != now {
			t.Errorf("%s: look %t, next %s", reason, it.look, it.next)
		}
	}
}

func TestDefinedLately(t *testing.T) {
	var d defined
	now, id := time.Now(), fleet.ObjectID{Group: "example.com", Kind: "Grow", Name: "a"}
	d.note(map[string]any{"spec": map[string]any{"group": "example.com", "names": map[string]any{"kind": "Grow"}}}, now)
	other := id
	other.Kind = "Other"
	for _, tc := range []struct {
		id   fleet.ObjectID
		at   time.Time
		want bool
	}{{id, now, true}, {id, now.Add(definedFor - 1), true}, {id, now.Add(definedFor), false}, {other, now, false}} {
		if got := d.lately(tc.id, tc.at); got != tc.want {
			t.Errorf("%s after %s: %t", tc.id, tc.at.Sub(now), got)
		}
	}
}

// TestFieldOfADefinitionOfAnotherModule: two modules are upgraded at once, one defines a field and the other one sets it. That the
// other one comes first is no failure; a field that nobody defines is one.
func TestFieldOfADefinitionOfAnotherModule(t *testing.T) {
	r := newRig(t)
	grow := func(fields string) string {
		return "apiVersion: $NS.example.com/v1\nkind: Grow\nmetadata: {name: a, namespace: $NS}\nspec: {" + fields + "}\n"
	}
	crds, app := r.bundle("crds", nil, definedWith("old")), r.bundle("app", nil, grow("old: x"))
	r.set([]fleet.Sync{crds, app})
	r.ready(app)
	tried := make(chan struct{}, 1)
	r.count.upset(func(req *http.Request) error {
		if req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/grows/a") {
			dirty.Poke(tried)
		}
		return nil
	})
	app = r.bundle("app", nil, grow("old: x, new: x"))
	r.set([]fleet.Sync{crds, app})
	<-tried
	r.wait("app", "tells what it waits for", func(x fleet.SyncStatus) bool {
		return x.Generation == app.Generation && len(x.Exceptions) == 1 && x.Exceptions[0].Reason == apply.ReasonInvalid
	})
	crds = r.bundle("crds", nil, definedWith("old", "new"))
	r.set([]fleet.Sync{crds, app})
	r.ready(app)
	if said := r.heard.String(); strings.Contains(said, "Phase:Failed") {
		t.Error("a module failed")
	}
	app = r.bundle("app", nil, grow("old: x, misspelt: x"))
	r.set([]fleet.Sync{crds, app})
	if x := r.failed(app); !strings.Contains(x.Message, ".spec.misspelt: field not declared") {
		t.Error(x.Message)
	}
}

// TestFieldThatIsNoLongerImmutable: a revision lets a field of a kind change, and changes it. That is no failure, and nothing is made
// again for it, whatever the policies allow.
func TestFieldThatIsNoLongerImmutable(t *testing.T) {
	for name, policies := range map[string][]fleet.Policy{"by default": nil,
		"made again where it has to be": {{Match: fleet.PolicyMatch{Kinds: []string{"Grow"}}, Recreate: fleet.RecreateIfImmutable}}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			free := definedWith("f")
			fixed := strings.Replace(free, "f: {type: string}", "f: {type: string, x-kubernetes-validations: [{rule: self == oldSelf, message: field is immutable}]}", 1)
			uid := types.UID("")
			for i := range 8 {
				for _, definition := range []string{free, fixed} {
					objects := []string{definition}
					for _, name := range []string{"a", "b", "c", "d"} {
						objects = append(objects, fmt.Sprintf("apiVersion: $NS.example.com/v1\nkind: Grow\nmetadata: {name: %s, namespace: $NS}\nspec: {f: v%d}\n", name, i))
					}
					s := r.bundle("shop", policies, objects...)
					r.set([]fleet.Sync{s})
					r.ready(s)
				}
				now := r.uidOf(r.ns+".example.com/v1", "grows", "a")
				if uid != "" && now != uid {
					t.Errorf("round %d: it was made again", i)
				}
				uid = now
			}
			if said := r.heard.String(); strings.Contains(said, "Phase:Failed") {
				t.Error("it failed")
			}
		})
	}
}
