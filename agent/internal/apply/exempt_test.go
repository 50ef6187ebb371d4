package apply

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/wire"
)

// exempting is what a policy leaves.
func exempting(t *testing.T, pointers, managers []string) *plan.Exempt {
	t.Helper()
	_, x, err := plan.Exempts(fleet.Policy{IgnoreFields: &fleet.IgnoreFields{JSONPointers: pointers, Managers: managers}})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// manifestOf reads YAML as the API server's answers are read.
func manifestOf(t *testing.T, text string) map[string]any {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDesired(fleet.ObjectID{Kind: "Pod", Namespace: "n", Name: "p"}, raw, fleet.DigestOf(raw), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if out, err = d.Object(); err != nil {
		t.Fatal(err)
	}
	return out
}

const listedPod = `
metadata: {name: p, namespace: n, labels: {team: a}}
spec:
  replicas: 2
  containers:
  - {name: app, image: a:1, args: [b, c], resources: {requests: {cpu: 1}}}
  - {name: new, image: n:1}
`

// ourFields are what a real API server notes of listedPod, as apps/v1 has it below spec.template.
const ourFields = `{"f:metadata":{"f:labels":{"f:team":{}}},"f:spec":{"f:replicas":{},"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:name":{},"f:image":{},"f:args":{},"f:resources":{"f:requests":{"f:cpu":{}}}}}}}`

func TestLeaveAndRelease(t *testing.T) {
	for name, tc := range map[string]struct {
		pointers, managers []string
		theirs             string // what vpa holds
		spec               string // what is applied of spec
		released           string // of our fields
	}{
		"nothing there": {[]string{"/spec/nothing", "/spec/replicas/x"}, nil, `{}`,
			`{"containers":[{"args":["b","c"],"image":"a:1","name":"app","resources":{"requests":{"cpu":1}}},{"image":"n:1","name":"new"}],"replicas":2}`, `null`},
		"a field": {[]string{"/spec/replicas"}, nil, `{}`,
			`{"containers":[{"args":["b","c"],"image":"a:1","name":"app","resources":{"requests":{"cpu":1}}},{"image":"n:1","name":"new"}]}`,
			`{"f:spec":{"f:replicas":{}}}`},
		"by index, with what is below": {[]string{"/spec/containers/0/resources"}, nil, `{}`,
			`{"containers":[{"args":["b","c"],"image":"a:1","name":"app"},{"image":"n:1","name":"new"}],"replicas":2}`,
			`{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{"f:resources":{"f:requests":{"f:cpu":{}}}}}}}`},
		"what is above goes when nothing is left in it": {[]string{"/spec/containers/0/resources/requests/cpu"}, nil, `{}`,
			`{"containers":[{"args":["b","c"],"image":"a:1","name":"app"},{"image":"n:1","name":"new"}],"replicas":2}`,
			`{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{"f:resources":{"f:requests":{"f:cpu":{}}}}}}}`},
		"by key": {[]string{"/spec/containers/name=app/image"}, nil, `{}`,
			`{"containers":[{"args":["b","c"],"name":"app","resources":{"requests":{"cpu":1}}},{"image":"n:1","name":"new"}],"replicas":2}`,
			`{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{"f:image":{}}}}}`},
		"of all items, but of one that is not there yet": {[]string{"/spec/containers/*/image"}, nil, `{}`,
			`{"containers":[{"args":["b","c"],"name":"app","resources":{"requests":{"cpu":1}}},{"image":"n:1","name":"new"}],"replicas":2}`,
			`{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{"f:image":{}}}}}`},
		"a key of an item stays": {[]string{"/spec/containers/*/name"}, nil, `{}`,
			`{"containers":[{"args":["b","c"],"image":"a:1","name":"app","resources":{"requests":{"cpu":1}}},{"image":"n:1","name":"new"}],"replicas":2}`, `null`},
		"a list with one owner goes as a whole": {[]string{"/spec/containers/0/args/1"}, nil, `{}`,
			`{"containers":[{"image":"a:1","name":"app","resources":{"requests":{"cpu":1}}},{"image":"n:1","name":"new"}],"replicas":2}`,
			`{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{"f:args":{}}}}}`},
		"an item": {[]string{"/spec/containers/0"}, nil, `{}`,
			`{"containers":[{"image":"n:1","name":"new"}],"replicas":2}`,
			`{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:args":{},"f:image":{},"f:name":{},"f:resources":{"f:requests":{"f:cpu":{}}}}}}}`},
		"what a manager holds": {nil, []string{"vpa"}, `{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:name":{},"f:resources":{"f:limits":{"f:cpu":{}},"f:requests":{"f:cpu":{}}}}}}}`,
			`{"containers":[{"args":["b","c"],"image":"a:1","name":"app"},{"image":"n:1","name":"new"}],"replicas":2}`, `null`},
		"what another one holds": {nil, []string{"hpa"}, `{"f:spec":{"f:replicas":{}}}`,
			`{"containers":[{"args":["b","c"],"image":"a:1","name":"app","resources":{"requests":{"cpu":1}}},{"image":"n:1","name":"new"}],"replicas":2}`, `null`},
	} {
		t.Run(name, func(t *testing.T) {
			live := manifestOf(t, listedPod)
			live["spec"].(map[string]any)["containers"] = live["spec"].(map[string]any)["containers"].([]any)[:1]
			live["metadata"].(map[string]any)["managedFields"] = []any{
				map[string]any{"manager": fleet.FieldManager, "operation": "Apply", "fieldsV1": parsedJSON(t, ourFields)},
				map[string]any{"manager": "vpa", "operation": "Update", "fieldsV1": parsedJSON(t, tc.theirs)}}
			raw, err := json.Marshal(manifestOf(t, listedPod))
			if err != nil {
				t.Fatal(err)
			}
			d, err := NewDesired(fleet.ObjectID{Kind: "Pod", Namespace: "n", Name: "p"}, raw, fleet.DigestOf(raw), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			x := exempting(t, tc.pointers, tc.managers)
			left, err := d.Leave(live, Leaving{Exempt: x, Verb: plan.Apply})
			if err != nil {
				t.Fatal(err)
			}
			obj, err := left.Desired.Object()
			if err != nil {
				t.Fatal(err)
			}
			if got := asJSON(t, obj["spec"]); got != tc.spec {
				t.Errorf("applied is %s\nwant       %s", got, tc.spec)
			}
			released, err := d.Release(live, x, fleet.FieldManager)
			if err != nil {
				t.Fatal(err)
			}
			if got := asJSON(t, released.fields); got != tc.released || (released.Patch == nil) != (released.fields == nil) {
				t.Errorf("released is %s\nwant        %s", got, tc.released)
			}
		})
	}
}

func parsedJSON(t *testing.T, text string) (out map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What is exempt outlives a restart.
func TestExemptIsStored(t *testing.T) {
	in := NewInterner()
	left, err := in.Parse([]byte(ourFields), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &Record{Record: plan.Record{ID: fleet.ObjectID{Kind: "Pod", Namespace: "n", Name: "p"}, Module: fleet.ModuleRef{Project: "p", Name: "m"}, State: plan.Owned},
		Algorithm: Algorithm, Paths: left, Exempt: &Exempt{Text: "x", Body: fleet.DigestOf([]byte("x")), Left: left, Lent: left, Managers: []string{"vpa"}}}
	data, err := segment{records: []*Record{r}}.encode(newVault(t))
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeSegment(data, in)
	if err != nil {
		t.Fatal(err)
	}
	if x := got.records[0].Exempt; asJSON(t, x) != asJSON(t, r.Exempt) || x.Left != left || x.Lent != left {
		t.Errorf("%+v, want %+v", x, r.Exempt)
	}
}

// A revision has its way with what is left on drift, and keeps the live value of what is left on updates; what repeats a write leaves
// the one, and puts the other back to what the last write left.
func TestLeaveOfARevisionAndOfARepeat(t *testing.T) {
	const listed = `
metadata: {name: p, namespace: n}
spec: {replicas: 9, paused: true, containers: [{name: app, image: "a:9", tty: true}, {name: new, image: "n:9"}]}
`
	const answered = `{"f:spec":{"f:replicas":{},"f:paused":{},"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:name":{},"f:image":{},"f:tty":{}}}}}`
	wrote := func(fields, spec string) map[string]any {
		out := manifestOf(t, "metadata: {name: p, namespace: n}\nspec: "+spec)
		out["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{"manager": fleet.FieldManager, "operation": "Apply", "fieldsV1": parsedJSON(t, fields)},
			map[string]any{"manager": "bob", "operation": "Update", "fieldsV1": parsedJSON(t, `{"f:spec":{"f:paused":{}}}`)}}
		return out
	}
	answer := wrote(answered, `{replicas: 1, paused: false, containers: [{name: app, image: "a:1", tty: false}]}`)
	live := wrote(`{"f:spec":{"f:replicas":{},"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:name":{},"f:image":{}}}}}`,
		`{replicas: 1, paused: true, containers: [{name: app, image: "a:1", tty: true}]}`) // bob changed paused and tty
	raw, err := json.Marshal(manifestOf(t, listed))
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDesired(fleet.ObjectID{Kind: "Pod", Namespace: "n", Name: "p"}, raw, fleet.DigestOf(raw), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		when  string
		paths []string
		verb  plan.Verb
		spec  string
	}{
		"a revision, on drift":   {fleet.OnceOnDrift, []string{"/spec/paused", "/spec/containers/*/tty"}, plan.Apply, `{"containers":[{"image":"a:9","name":"app","tty":true},{"image":"n:9","name":"new"}],"paused":true,"replicas":9}`},
		"a correction, on drift": {fleet.OnceOnDrift, []string{"/spec/paused", "/spec/containers/*/tty"}, plan.Correct, `{"containers":[{"image":"a:9","name":"app"},{"image":"n:9","name":"new"}],"replicas":9}`},
		"a correction, on drift of what did not change": {fleet.OnceOnDrift, []string{"/spec/replicas"}, plan.Correct,
			`{"containers":[{"image":"a:9","name":"app","tty":true},{"image":"n:9","name":"new"}],"paused":true,"replicas":9}`},
		"a revision, on update": {fleet.OnceOnUpdate, []string{"/spec/replicas", "/spec/containers/*/image"}, plan.Apply,
			`{"containers":[{"image":"a:1","name":"app","tty":true},{"image":"n:9","name":"new"}],"paused":true,"replicas":1}`},
		"a revision, on update of what changed": {fleet.OnceOnUpdate, []string{"/spec/paused"}, plan.Apply,
			`{"containers":[{"image":"a:9","name":"app","tty":true},{"image":"n:9","name":"new"}],"paused":true,"replicas":9}`},
		"a correction, on update": {fleet.OnceOnUpdate, []string{"/spec/paused", "/spec/containers/name=app/tty"}, plan.Correct,
			`{"containers":[{"image":"a:9","name":"app","tty":false},{"image":"n:9","name":"new"}],"paused":false,"replicas":9}`},
		"a correction, of the whole on update": {fleet.OnceOnUpdate, []string{"*"}, plan.Correct,
			`{"containers":[{"image":"a:1","name":"app","tty":false}],"paused":false,"replicas":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			_, x, err := plan.Exempts(fleet.Policy{ApplyOnce: &fleet.ApplyOnce{Paths: tc.paths, When: tc.when}})
			if err != nil {
				t.Fatal(err)
			}
			in := NewInterner()
			record := &Record{}
			if record.Paths, record.Base, err = in.Written(answer, d, false); err != nil {
				t.Fatal(err)
			}
			if record.Exempt, err = in.Exempt(answer, d, Remainder{Desired: d}, x, Released{}, nil); err != nil {
				t.Fatal(err)
			}
			left, err := d.Leave(live, Leaving{Exempt: x, Verb: tc.verb, Record: record})
			if err != nil {
				t.Fatal(err)
			}
			obj, err := left.Desired.Object()
			if err != nil {
				t.Fatal(err)
			}
			if got := asJSON(t, obj["spec"]); got != tc.spec {
				t.Errorf("applied is %s\nwant       %s", got, tc.spec)
			}
		})
	}
}

// What is kept of an object is encrypted in the state. What an agent of before stored as it was is read, and stored anew soon; what cannot
// be decrypted is nothing.
func TestKeptIsStoredEncrypted(t *testing.T) {
	const canary = "canary-kept"
	ctx, stop := context.WithCancel(t.Context())
	v, store := newVault(t), &files{names: map[string][]byte{}}
	id := fleet.ObjectID{Kind: "Secret", Namespace: "n", Name: "s"}
	r := &Record{Record: plan.Record{ID: id, Module: fleet.ModuleRef{Project: "p", Name: "m"}, State: plan.Owned}, Algorithm: Algorithm,
		Exempt: &Exempt{Text: "x", Kept: []byte(`{"data":"` + canary + `"}`)}}
	plain := func(data []byte) bool {
		_, packed, _ := bytes.Cut(data, []byte(segmentHeader))
		d, err := zstd.NewReader(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		text, err := d.DecodeAll(packed[sha256.Size:], nil)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(text, []byte(base64.StdEncoding.EncodeToString(r.Exempt.Kept)))
	}
	before, err := segment{records: []*Record{r}}.encode(asItIs{})
	if err != nil {
		t.Fatal(err)
	}
	// As an agent of before wrote it: under the other name.
	store.names[segmentName(1, true)] = fieldRenamed(t, before, `"sealed"`, `"kept"`)
	if !plain(store.names[segmentName(1, true)]) {
		t.Fatal("the fixture is not as an agent of before wrote it")
	}
	inv, err := Open(ctx, store, v, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if got := inv.Get(id).Exempt.Kept; !bytes.Contains(got, []byte(canary)) {
		t.Errorf("of an agent of before: %s", got)
	}
	done := make(chan error, 1)
	go func() { done <- inv.Run(ctx) }()
	if err := inv.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for name, data := range store.names {
		if plain(data) {
			t.Errorf("%s has it as it is", name)
		}
	}
	for what, tc := range map[string]struct {
		vault Vault
		want  bool
	}{"the same key": {v, true}, "another one": {newVault(t), false}} {
		inv, err := Open(t.Context(), store, tc.vault, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if got := inv.Get(id).Exempt.Kept; bytes.Contains(got, []byte(canary)) != tc.want || !tc.want && len(got) > 0 {
			t.Errorf("%s: %s", what, got)
		}
	}
}

// asItIs encrypts nothing.
type asItIs struct{}

func (asItIs) Seal(_ string, plain []byte) ([]byte, error)  { return plain, nil }
func (asItIs) Open(_ string, sealed []byte) ([]byte, error) { return sealed, nil }

// fieldRenamed is a segment in which a field has another name.
func fieldRenamed(t *testing.T, data []byte, from, to string) []byte {
	t.Helper()
	_, packed, _ := bytes.Cut(data, []byte(segmentHeader))
	d, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	text, err := d.DecodeAll(packed[sha256.Size:], nil)
	if err != nil {
		t.Fatal(err)
	}
	packed = wire.Compress(bytes.ReplaceAll(text, []byte(from), []byte(to)))
	sum := sha256.Sum256(packed)
	return slices.Concat([]byte(segmentHeader), sum[:], packed)
}

// TestExcuseIsOfWhatOthersTook: a policy that leaves fields to others does not make what our own write left otherwise the same, as one
// whose answer was lost did before a rollback.
func TestExcuseIsOfWhatOthersTook(t *testing.T) {
	const without, limits = `{"f:metadata":{"f:labels":{"f:team":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:name":{},"f:image":{},"f:args":{}}}}}`,
		`{"f:spec":{"f:replicas":{},"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:name":{},"f:resources":{"f:requests":{"f:cpu":{}}}}}}}`
	livePod := func(ours, theirs, image string, cpu, replicas int64) map[string]any {
		live := manifestOf(t, listedPod)
		spec := live["spec"].(map[string]any)
		app := spec["containers"].([]any)[0].(map[string]any)
		app["image"], app["resources"], spec["replicas"] = image, map[string]any{"requests": map[string]any{"cpu": cpu}}, replicas
		spec["containers"] = []any{app}
		entries := []any{map[string]any{"manager": fleet.FieldManager, "operation": "Apply", "fieldsV1": parsedJSON(t, ours)}}
		if theirs != "" {
			entries = append(entries, map[string]any{"manager": "vpa", "operation": "Update", "fieldsV1": parsedJSON(t, theirs)})
		}
		live["metadata"].(map[string]any)["managedFields"] = entries
		return live
	}
	paths, err := NewInterner().Ours(livePod(ourFields, "", "a:1", 1, 2))
	if err != nil {
		t.Fatal(err)
	}
	base := paths.Of(livePod(ourFields, "", "a:1", 1, 2))
	base.Holding = 0
	r := &Record{Paths: paths, Base: base, Exempt: &Exempt{Text: "x", Managers: []string{"vpa"}}}
	for name, tc := range map[string]struct {
		live map[string]any
		want plan.Match
	}{
		"nothing has changed":                   {livePod(ourFields, "", "a:1", 1, 2), plan.MatchYes},
		"they changed what is left to them":     {livePod(without, limits, "a:1", 5, 7), plan.MatchYes},
		"a write of ours is not the last known": {livePod(ourFields, "", "a:2", 1, 2), plan.MatchUnsettled},
		"somebody else took what is ours":       {livePod(without, "", "a:1", 5, 7), plan.MatchNo},
	} {
		v, _ := r.Excuse(r.Paths.Of(tc.live), tc.live)
		if got := r.Match(v, false); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// An item that leaves a key to its default is told from one that names another value of it, wherever they stand.
func TestExemptItemsWithADefaultKey(t *testing.T) {
	const (
		fields = `{"f:spec":{"f:ports":{"k:{\"port\":53,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:targetPort":{}},"k:{\"port\":53,\"protocol\":\"UDP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}}}}`
		tcp    = `{"name":"t","port":53,"targetPort":5300}`
		udp    = `{"name":"u","port":53,"protocol":"UDP","targetPort":5353}`
		noTCP  = `{"name":"t","port":53}`
		noUDP  = `{"name":"u","port":53,"protocol":"UDP"}`
	)
	released := func(protocol string) string {
		return `{"f:spec":{"f:ports":{"k:{\"port\":53,\"protocol\":\"` + protocol + `\"}":{"f:targetPort":{}}}}}`
	}
	for _, tc := range []struct{ listed, pointer, applied, released string }{
		{tcp + "," + udp, "/spec/ports/0/targetPort", noTCP + "," + udp, released("TCP")},
		{tcp + "," + udp, "/spec/ports/1/targetPort", tcp + "," + noUDP, released("UDP")},
		{tcp + "," + udp, "/spec/ports/name=u/targetPort", tcp + "," + noUDP, released("UDP")},
		{udp + "," + tcp, "/spec/ports/0/targetPort", noUDP + "," + tcp, released("UDP")},
		{udp + "," + tcp, "/spec/ports/1/targetPort", udp + "," + noTCP, released("TCP")},
	} {
		text := `{"metadata":{"name":"p","namespace":"n"},"spec":{"ports":[` + tc.listed + `]}}`
		d, err := NewDesired(fleet.ObjectID{Kind: "Pod", Namespace: "n", Name: "p"}, []byte(text), fleet.DigestOf([]byte(text)), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		live := manifestOf(t, strings.Replace(text, `"name":"t"`, `"protocol":"TCP","name":"t"`, 1))
		live["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{"manager": fleet.FieldManager, "operation": "Apply", "fieldsV1": parsedJSON(t, fields)}}
		x := exempting(t, []string{tc.pointer}, nil)
		freed, err := d.Release(live, x, fleet.FieldManager)
		if err != nil {
			t.Fatal(err)
		}
		if got := asJSON(t, freed.fields); got != tc.released {
			t.Errorf("%s of %s: released is %s", tc.pointer, tc.listed, got)
		}
		left, err := d.Leave(live, Leaving{Exempt: x, Verb: plan.Apply})
		if err != nil {
			t.Fatal(err)
		}
		obj, err := left.Desired.Object()
		if err != nil {
			t.Fatal(err)
		}
		if got := asJSON(t, at(obj, "spec")["ports"]); got != "["+tc.applied+"]" {
			t.Errorf("%s of %s: applied is %s", tc.pointer, tc.listed, got)
		}
	}
}
