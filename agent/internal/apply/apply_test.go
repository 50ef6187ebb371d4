package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/plan"
)

func object(t *testing.T, text string) map[string]any {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDesired(fleet.ObjectID{}, raw, fleet.DigestOf(raw), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := d.Object()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const fields = `{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:replicas":{},"f:template":{"f:spec":{"f:containers":{
	"k:{\"name\":\"main\"}":{".":{},"f:image":{},"f:name":{},"f:resources":{},"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}}}}},
	"f:finalizers":{"v:\"x.io/a\"":{}}}`

const applied = `
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  template: {spec: {containers: [{name: main, image: "a:1", resources: {}, ports: [{containerPort: 80}]}]}}
finalizers: [x.io/a]
`

const live = `
metadata: {name: web, labels: {app: web, theirs: x}}
spec:
  replicas: 2
  template: {spec: {restartPolicy: Always, containers: [{name: sidecar, image: "s:1"}, {name: main, image: "a:1", imagePullPolicy: Always, resources: {}, ports: [{containerPort: 80, protocol: TCP}]}]}}
finalizers: [x.io/b, x.io/a]
`

func TestPathSetSeesWhatIsOurs(t *testing.T) {
	set, err := NewInterner().Parse([]byte(fields), object(t, applied))
	if err != nil {
		t.Fatal(err)
	}
	base := set.Of(noted(t, live, fields))
	if base.Replicas != 2 {
		t.Errorf("replicas are %d", base.Replicas)
	}
	for _, tc := range []struct {
		name, from, to string
		drift          bool
	}{
		{"our image", "a:1", "a:2", true},
		{"our label", "{app: web,", "{app: api,", true},
		{"our label gone", "{app: web, theirs: x}", "{theirs: x}", true},
		{"our container renamed", "name: main", "name: other", true},
		{"our port", "containerPort: 80,", "containerPort: 81,", true},
		{"our finalizer gone", "[x.io/b, x.io/a]", "[x.io/b]", true},
		{"their label", "theirs: x", "theirs: y", false},
		{"their container", "s:1", "s:2", false},
		{"their container gone", `{name: sidecar, image: "s:1"}, `, "", false},
		{"a default", "imagePullPolicy: Always", "imagePullPolicy: Never", false},
		{"fields in our empty map", "resources: {}", "resources: {limits: {cpu: 1}}", false},
		{"the order of their finalizers", "[x.io/b, x.io/a]", "[x.io/a, x.io/b]", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changed := strings.Replace(live, tc.from, tc.to, 1)
			if changed == live {
				t.Fatal("the case changes nothing")
			}
			if got := set.Of(noted(t, changed, fields)).Hash != base.Hash; got != tc.drift {
				t.Errorf("seen as drift: %v", got)
			}
		})
	}
	scaled := set.Of(noted(t, strings.Replace(live, "replicas: 2", "replicas: 5", 1), fields))
	if scaled.Hash != base.Hash || scaled.Replicas != 5 {
		t.Errorf("replicas are compared by themselves: %+v", scaled)
	}
	if !set.Paths()[`.spec.template.spec.containers[name="main"].image`] || !set.Paths()[`.finalizers[="x.io/a"]`] {
		t.Errorf("paths %v", slices.Sorted(maps.Keys(set.Paths())))
	}
}

// noted is an object of which the server notes that the fields are ours.
func noted(t *testing.T, text, fields string) map[string]any {
	t.Helper()
	obj := object(t, text)
	var ours map[string]any
	if err := json.Unmarshal([]byte(fields), &ours); err != nil {
		t.Fatal(err)
	}
	obj["metadata"].(map[string]any)["managedFields"] = []any{
		map[string]any{"manager": "towline", "operation": "Update", "fieldsV1": map[string]any{"f:x": map[string]any{}}},
		map[string]any{"manager": "towline", "operation": "Apply", "fieldsV1": ours}}
	return obj
}

// What the server notes as ours tells whose write made live what it is.
func TestMatch(t *testing.T) {
	for _, tc := range []struct {
		name, live, fields string // changes of what was written: from, a bar, to
		free               bool
		want               plan.Match
	}{
		{"as written", "", "", false, plan.MatchYes},
		{"their fields in our empty map", `resources: {}|resources: {limits: {cpu: 1}}`, "", false, plan.MatchYes},
		{"a value that somebody took", "a:1|a:2", `"f:image":{},|`, false, plan.MatchNo},
		{"a value that somebody took and gave back", "", `"f:image":{},|`, false, plan.MatchTaken},
		{"a field that is gone", "{app: web,|{", `"f:metadata":{"f:labels":{"f:app":{}}},|`, false, plan.MatchNo},
		{"an empty map that somebody filled and took", `resources: {}|resources: {limits: {cpu: 1}}`, `"f:resources":{},|`, false, plan.MatchNo},
		{"an empty map that somebody took", "", `"f:resources":{},|`, false, plan.MatchTaken},
		{"a value that we wrote", "a:1|a:2", "", false, plan.MatchUnsettled},
		{"a field that we wrote", "", `"f:image":{},|"f:image":{},"f:command":{},`, false, plan.MatchUnsettled},
		{"a list item that we wrote", "", `"f:finalizers":{|"f:finalizers":{"v:\"x.io/b\"":{},`, false, plan.MatchUnsettled},
		{"a map that became ours as a whole", "", `"f:labels":{|"f:labels":{".":{},`, false, plan.MatchUnsettled},
		{"replicas that a person took", "replicas: 2|replicas: 5", `"f:replicas":{},|`, false, plan.MatchNo},
		{"replicas that an autoscaler took", "replicas: 2|replicas: 5", `"f:replicas":{},|`, true, plan.MatchYes},
		{"replicas that we wrote", "replicas: 2|replicas: 5", "", false, plan.MatchUnsettled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set, err := NewInterner().Parse([]byte(fields), object(t, applied))
			if err != nil {
				t.Fatal(err)
			}
			r := &Record{Paths: set, Base: set.Of(noted(t, live, fields))}
			change := func(text, how string) string {
				from, to, _ := strings.Cut(how, "|")
				if !strings.Contains(text, from) {
					t.Fatalf("the case changes nothing: %s", from)
				}
				return strings.Replace(text, from, to, 1)
			}
			now := set.Of(noted(t, change(live, tc.live), change(fields, tc.fields)))
			if got := r.Match(now, tc.free); got != tc.want {
				t.Errorf("match %d, want %d", got, tc.want)
			}
		})
	}
}

// Some aggregated servers note no managers: then the values say all.
func TestMatchWithoutManagers(t *testing.T) {
	set, err := NewInterner().Parse([]byte(fields), object(t, applied))
	if err != nil {
		t.Fatal(err)
	}
	r := &Record{Paths: set, Base: set.Of(object(t, live))}
	for text, want := range map[string]plan.Match{live: plan.MatchYes, strings.Replace(live, "a:1", "a:2", 1): plan.MatchNo,
		strings.Replace(live, "resources: {}", "resources: {limits: {cpu: 1}}", 1): plan.MatchNo} {
		if got := r.Match(set.Of(object(t, text)), false); got != want {
			t.Errorf("match %d, want %d", got, want)
		}
	}
	r.Base = set.Of(noted(t, live, fields))
	if got := r.Match(set.Of(object(t, live)), false); got != plan.MatchTaken {
		t.Errorf("our entry is gone: match %d", got)
	}
}

func TestPathSetsAreShared(t *testing.T) {
	in := NewInterner()
	a, _ := in.Parse([]byte(fields), nil)
	b, _ := in.Parse([]byte(fields), nil)
	if a != b {
		t.Error("equal sets are two")
	}
	nodes := len(in.nodes)
	c, err := in.Parse([]byte(strings.Replace(fields, `"main\"`, `"web\"`, 1)), nil)
	if err != nil || c == a {
		t.Fatalf("%v", err)
	}
	if grown := len(in.nodes) - nodes; grown > 5 {
		t.Errorf("another container name makes %d new nodes", grown)
	}
}

func TestWhoTook(t *testing.T) {
	in := NewInterner()
	ours, _ := in.Parse([]byte(fields), object(t, applied))
	obj := object(t, live)
	var mine map[string]any
	_ = json.Unmarshal([]byte(strings.Replace(fields, `"f:replicas":{},`, "", 1)), &mine)
	obj["metadata"].(map[string]any)["managedFields"] = []any{
		map[string]any{"manager": "towline", "operation": "Apply", "fieldsV1": mine},
		map[string]any{"manager": "kubectl-edit", "operation": "Update", "time": "2026-01-01T00:00:00Z",
			"fieldsV1": map[string]any{"f:spec": map[string]any{"f:replicas": map[string]any{}}}},
		map[string]any{"manager": "kubelet", "operation": "Update", "subresource": "status", "time": "2026-02-01T00:00:00Z", "fieldsV1": map[string]any{}},
	}
	lost, by := WhoTook(obj, ours, nil)
	if len(lost) != 1 || lost[0].Pointer != "/spec/replicas" || lost[0].Live != "2" || by != "kubectl-edit" {
		t.Errorf("%+v by %s", lost, by)
	}
}

func TestSubstitution(t *testing.T) {
	values := map[string]string{"A": "x", "B_2": "${A}", "EMPTY": ""}
	for in, want := range map[string]string{
		"": "", "plain": "plain", "${A}": "x", "a${A}b${A}": "axbx", "${B_2}": "${A}", "[${EMPTY}]": "[]",
		"${UNKNOWN} ${A}": "${UNKNOWN} x", "${A": "${A", "$A $$ ${": "$A $$ ${", "${${A}}": "${x}",
	} {
		if got := manifest.Expand(in, values); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
	d, err := NewDesired(fleet.ObjectID{Kind: "X"}, []byte(`{"metadata":{"name":"n","uid":"u","resourceVersion":"4"},"status":{"a":1},"${A}":["${A}",{"k":"${A}"},7]}`), fleet.Digest{}, values, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := d.Body(Marks{Hub: "h", Owner: "o"}, Guard{UID: "mine"}, false)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"${A}":["x",{"k":"x"},7],"metadata":{"annotations":{"towline.dev/owner":"o"},"labels":{"towline.dev/hub":"h"},"name":"n","uid":"mine"}}`
	if string(body) != want {
		t.Errorf("body %s", body)
	}
}

// TestContentWithoutPlaceholders: what values leave as it is has one name with and without them, and the one by which agents of before
// noted it is known.
func TestContentWithoutPlaceholders(t *testing.T) {
	id, text := fleet.ObjectID{Group: "batch", Kind: "Job", Namespace: "n", Name: "j"}, []byte(`{"metadata":{"name":"j"},"spec":{"args":["${HOME} && b > c"]}}`)
	read := func(values map[string]string) *Desired {
		d, err := NewDesired(id, text, fleet.DigestOf(text), values, nil)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	plain, bound, used := read(nil), read(map[string]string{"V": "1"}), read(map[string]string{"HOME": "/"})
	before := fleet.DigestOf([]byte(`{"metadata":{"name":"j"},"spec":{"args":["${HOME} \u0026\u0026 b \u003e c"]}}`))
	if bound.Content != plain.Content || !bound.Is(plain.Content) || !plain.Is(bound.Content) || !bound.Is(before) {
		t.Error("a value that is not used makes another content")
	}
	if used.Is(plain.Content) || plain.Is(used.Content) || bound.Is(fleet.Digest{}) {
		t.Error("another content counts as the same")
	}
}

func TestValuesMakeNoObjectHuge(t *testing.T) {
	content := []byte(`{"data":{"a":"` + strings.Repeat("${A}", 1000) + `"},"kind":"ConfigMap","metadata":{"name":"n"}}`)
	_, err := NewDesired(fleet.ObjectID{Kind: "ConfigMap", Name: "n"}, content, fleet.Digest{}, map[string]string{"A": strings.Repeat("x", 64<<10)}, nil)
	if !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("64 MB of values in one object: %v", err)
	}
}

func TestDifference(t *testing.T) {
	for _, tc := range []struct{ desired, live, at string }{
		{"{a: 1}", "{a: 1, b: 2}", ""},
		{"{a: 1}", "{a: 2}", "/a"},
		{"{a: {b/c: x}}", "{a: {}}", "/a/b~1c"},
		{"{a: [{x: 1}]}", "{a: [{x: 1, y: 2}]}", ""},
		{"{a: [{x: 1}]}", "{a: [{x: 1}, {x: 2}]}", "/a"},
		{"{resources: {limits: {cpu: 1000m}}}", "{resources: {limits: {cpu: '1'}}}", ""},
		{"{data: {cpu: 1000m}}", "{data: {cpu: '1'}}", "/data/cpu"},
		{"{a: null}", "{}", ""},
		{"{a: {}}", "{}", ""},
	} {
		var desired, live map[string]any
		_ = yaml.Unmarshal([]byte(tc.desired), &desired)
		_ = yaml.Unmarshal([]byte(tc.live), &live)
		got := ""
		if d := Difference(desired, live); d != nil {
			got = d.Pointer
		}
		if got != tc.at {
			t.Errorf("%s against %s differs at %q, want %q", tc.desired, tc.live, got, tc.at)
		}
	}
	d := Difference(map[string]any{"a": []any{"x"}}, map[string]any{"a": int64(2)})
	if d == nil || *d != (Differs{"/a", `["x"]`, "2"}) {
		t.Errorf("values %+v", d)
	}
}

// files is a State in memory that can fail.
type files struct {
	mu     sync.Mutex
	names  map[string][]byte
	writes int
	fail   error
	slow   time.Duration // of a write
}

func (f *files) Read(_ context.Context, name string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b, ok := f.names[name]; ok {
		return b, nil
	}
	return nil, fleet.ErrNotFound
}

func (f *files) Write(_ context.Context, name string, data []byte) error {
	if f.slow > 0 {
		<-time.After(f.slow)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	f.writes++
	f.names[name] = slices.Clone(data)
	return nil
}

func (f *files) Remove(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.names, name)
	return nil
}

func (f *files) List(context.Context, string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.names)), nil
}

var shop = fleet.ModuleRef{Project: "default", Name: "shop"}

func rec(i int, paths *PathSet) *Record {
	r := &Record{Paths: paths, Base: Values{Replicas: int64(i), Hash: Hash{1, byte(i)}}, Algorithm: Algorithm, Content: fleet.DigestOf([]byte{byte(i)})}
	r.Record = plan.Record{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "ns", Name: fmt.Sprint("cm-", i)}, Version: "v1", Wave: 3, Module: shop,
		State: plan.Owned, UID: fmt.Sprint("uid-", i), ResourceVersion: uint64(i), Want: fleet.DigestOf([]byte("w")), Born: 1, Generation: 2,
		Deleting: fleet.Age{Lineage: 2, Generation: 7}, Prune: fleet.PruneNever, Delete: fleet.DeleteOrphan, Named: true, Found: true}
	return r
}

func TestInventorySurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		store := &files{names: map[string][]byte{}}
		inv, err := Open(ctx, store, newVault(t), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- inv.Run(ctx) }()
		paths, _ := inv.Paths.Parse([]byte(fields), nil)
		over := fleet.ModuleRef{Project: "default", Name: "over"}
		inv.Lose(shop, plan.Change{Owned: 500, Confirmed: fleet.Age{Lineage: 1, Generation: 3}})
		inv.Lose(over, plan.Change{Owned: 1})
		gone := fleet.ModuleRef{Project: "default", Name: "gone"}
		for _, ref := range []fleet.ModuleRef{shop, over, gone} {
			inv.Leave(ref, "Secret s")
		}
		for round := range 3 * maxSegments {
			if round == maxSegments {
				inv.Lose(over, plan.Change{})
				inv.ForgetLeft(func(ref fleet.ModuleRef) bool { return ref != over })
				inv.Leave(gone, "Secret t")
			}
			for i := range 20 {
				inv.Put(rec(i+round, paths))
			}
			if round > 0 {
				inv.Drop(shop, rec(round-1, nil).ID)
			}
			if err := inv.Sync(ctx); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if len(store.names) > maxSegments+1 {
			t.Errorf("%d segments are left", len(store.names))
		}
		again, err := Open(context.Background(), store, newVault(t), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if got := len(again.Module(shop)); got != 20 {
			t.Errorf("%d records, not 20", got)
		}
		if got, want := again.Losing(shop), (plan.Change{Owned: 500, Gone: 3*maxSegments - 1, Confirmed: fleet.Age{Lineage: 1, Generation: 3}}); got != want || again.Losing(over) != (plan.Change{}) {
			t.Errorf("loses %+v, not %+v, and %+v", got, want, again.Losing(over))
		}
		if a, b, c := again.Left(shop), again.Left(over), again.Left(gone); len(a) != 1 || len(b) != 0 || len(c) != 2 {
			t.Errorf("left %q, %q and %q", a, b, c)
		}
		want := rec(3*maxSegments+5, nil)
		got := again.Get(want.ID)
		if got == nil || got.Record != want.Record || got.Base != want.Base || got.Content != want.Content || got.Paths.Of(object(t, live)) != paths.Of(object(t, live)) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

func TestInventorySharesWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		store := &files{names: map[string][]byte{}, slow: time.Millisecond}
		inv, _ := Open(ctx, store, newVault(t), slog.New(slog.DiscardHandler))
		done := make(chan error)
		go func() { done <- inv.Run(ctx) }()
		for i := range 50 {
			inv.Put(rec(i, nil))
		}
		synctest.Wait()
		if store.writes != 0 {
			t.Errorf("%d writes before the delay", store.writes)
		}
		var wait sync.WaitGroup
		for i := range 30 {
			wait.Go(func() {
				inv.Put(rec(100+i, nil))
				if err := inv.Sync(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if store.writes > 15 {
			t.Errorf("30 waiting changes made %d writes", store.writes)
		}
		store.fail = fleet.ErrUnavailable
		inv.Put(rec(500, nil))
		if err := inv.Sync(ctx); err == nil {
			t.Error("a change counts as durable though the write failed")
		}
		store.fail = nil
		if err := inv.Sync(ctx); err != nil {
			t.Errorf("after the store is back: %v", err)
		}
		stop()
		<-done
	})
}

func TestInventoryCorrupt(t *testing.T) {
	for name, harm := range map[string]func([]byte) []byte{
		"cut":     func(b []byte) []byte { return b[:len(b)-3] },
		"flipped": func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"empty":   func([]byte) []byte { return nil },
		"foreign": func([]byte) []byte { return []byte("{}") },
	} {
		t.Run(name, func(t *testing.T) {
			data, err := segment{records: []*Record{rec(1, nil)}}.encode(newVault(t))
			if err != nil {
				t.Fatal(err)
			}
			store := &files{names: map[string][]byte{segmentName(1, true): harm(data)}}
			inv, err := Open(context.Background(), store, newVault(t), slog.New(slog.DiscardHandler))
			if err != nil || !inv.Lost() || len(inv.Module(shop)) != 0 {
				t.Errorf("%v; lost %v with %d records", err, inv != nil && inv.Lost(), len(inv.Module(shop)))
			}
		})
	}
}

func TestClaims(t *testing.T) {
	inv, _ := Open(context.Background(), &files{names: map[string][]byte{}}, newVault(t), slog.New(slog.DiscardHandler))
	first, second := rec(1, nil), rec(1, nil)
	second.Module = fleet.ModuleRef{Project: "default", Name: "other"}
	inv.Put(first)
	if owner, ok := inv.Claim(second); ok || owner != shop {
		t.Errorf("claimed what %v has", owner)
	}
	if by, ok := inv.WantedBy(first.ID); !ok || by != second.Module {
		t.Error("the owner does not learn who waits")
	}
	inv.Drop(second.Module, first.ID)
	if inv.Get(first.ID) == nil {
		t.Error("a module dropped what is not its own")
	}
	inv.Put(second)
	if _, waits := inv.WantedBy(first.ID); waits || len(inv.Module(shop)) != 0 || len(inv.Module(second.Module)) != 1 {
		t.Error("the hand-over is not complete")
	}
}

// TestWishes: of those that wait for an object the hub's word comes first, then who waits longest.
func TestWishes(t *testing.T) {
	inv, _ := Open(context.Background(), &files{names: map[string][]byte{}}, newVault(t), slog.New(slog.DiscardHandler))
	module := func(name string) fleet.ModuleRef { return fleet.ModuleRef{Project: "default", Name: name} }
	r := rec(1, nil)
	inv.Put(r)
	next := func(want string) {
		t.Helper()
		got, ok := inv.WantedBy(r.ID)
		if ok != (want != "") || got.Name != want {
			t.Errorf("next is %q, want %q; all: %v", got.Name, want, inv.Wishes(r.ID))
		}
	}
	next("")
	inv.Want(r.ID, Wish{Module: module("late"), Yields: true, Since: 9})
	next("late")
	inv.Want(r.ID, Wish{Module: module("early"), Yields: true, Since: 3})
	next("early")
	inv.Want(r.ID, Wish{Module: module("given"), Since: 20})
	next("given")
	inv.Want(r.ID, Wish{Module: module("given"), Yields: true, Since: 20})
	next("early")
	inv.Unwant(module("early"), func(id fleet.ObjectID) bool { return id == r.ID })
	next("early")
	inv.Unwant(module("early"), func(fleet.ObjectID) bool { return false })
	next("late")
	asked := *r
	asked.Found, asked.Asked = true, true
	inv.Put(&asked)
	inv.Want(r.ID, Wish{Module: module("late"), Yields: true, Since: 9})
	if inv.HandOver(r.Module, r.ID, module("early")) || inv.HandOver(module("other"), r.ID, module("late")) {
		t.Error("given to who does not wait, or by who does not have it")
	}
	if !inv.HandOver(r.Module, r.ID, module("late")) || inv.Get(r.ID).Module != module("late") || inv.Get(r.ID).From != r.Module || !inv.Get(r.ID).Want.IsZero() {
		t.Errorf("handed over: %+v", inv.Get(r.ID))
	}
	if got := inv.Get(r.ID); !got.Found || got.Asked {
		t.Errorf("what the module before was asked about counts for the next one: %+v", got)
	}
	next("given")
	inv.Want(r.ID, Wish{Module: r.Module, Yields: true, Since: 30})
	if !inv.HandOver(module("late"), r.ID, module("given")) || inv.Get(r.ID).From != r.Module {
		t.Errorf("handed on before it was written: %+v", inv.Get(r.ID))
	}
	inv.Want(r.ID, Wish{Module: module("given"), Since: 20})
	mine := rec(1, nil)
	mine.Module = module("late")
	inv.Put(mine)
	next("given")
}

func TestRenamedRecordIsFoundUnderItsNewIdentityOnly(t *testing.T) {
	inv, _ := Open(context.Background(), &files{names: map[string][]byte{}}, newVault(t), slog.New(slog.DiscardHandler))
	one, two := fleet.ModuleRef{Project: "default", Name: "one"}, fleet.ModuleRef{Project: "default", Name: "two"}
	in, bare := fleet.ObjectID{Group: "g.io", Kind: "Zone", Namespace: "n", Name: "z"}, fleet.ObjectID{Group: "g.io", Kind: "Zone", Name: "z"}
	inv.Put(&Record{Record: plan.Record{ID: in, Module: one, State: plan.Owned, UID: "u"}})
	inv.Rename(two, in, bare)
	if inv.Get(in) == nil {
		t.Fatal("renamed by a module that does not have it")
	}
	inv.Rename(one, in, bare)
	if r := inv.Get(bare); inv.Get(in) != nil || r == nil || r.ID != bare || r.UID != "u" || len(inv.Module(one)) != 1 {
		t.Errorf("renamed to %+v", r)
	}
	inv.Put(&Record{Record: plan.Record{ID: in, Module: two, State: plan.Intent}})
	inv.Rename(two, in, bare)
	if r := inv.Get(bare); inv.Get(in) != nil || r.Module != one || len(inv.Module(two)) != 0 {
		t.Errorf("the first owner's record is %+v", r)
	}
}

// What is wanted of replicas that were left to an autoscaler is remembered, for when there is none any more.
func TestReplicasLeftOut(t *testing.T) {
	d, err := NewDesired(fleet.ObjectID{}, []byte(`{"metadata":{"name":"web"},"spec":{"replicas":2}}`), fleet.Digest{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	withoutReplicas := strings.Replace(fields, `"f:replicas":{},`, "", 1)
	scaled, wanted := noted(t, strings.Replace(live, "replicas: 2", "replicas: 5", 1), withoutReplicas), noted(t, live, withoutReplicas)
	paths, base, err := NewInterner().Written(scaled, d, true)
	if err != nil {
		t.Fatal(err)
	}
	r := &Record{Paths: paths, Base: base}
	if m := r.Match(paths.Of(scaled), true); m != plan.MatchYes {
		t.Errorf("while an autoscaler holds them: match %d", m)
	}
	if m := r.Match(paths.Of(scaled), false); m != plan.MatchNo {
		t.Errorf("when none does: match %d", m)
	}
	if m := r.Match(paths.Of(wanted), false); m != plan.MatchYes {
		t.Errorf("when they are as wanted: match %d", m)
	}
	if _, base, _ = NewInterner().Written(scaled, d, false); base.Replicas >= 0 {
		t.Error("replicas that the module does not set are compared")
	}
}
