package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

var errKilled = errors.New("the agent was killed")

// crash kills an agent right after one of its side effects, which are its writes to the API server and to its state: the effect
// is there, its answer never arrives, and nothing follows.
type crash struct {
	*memory // the state

	next  http.RoundTripper
	dead  chan struct{}
	late  time.Duration // if set, the request at which it dies is carried out that much later
	lands chan struct{} // closed when that was carried out

	held   bool // there was such a request
	answer int  // to it

	mu    sync.Mutex
	after int // the side effect after which it dies; 0: none
	did   []string
	files map[string][]byte // as they were when it died
}

// effect runs a side effect, one at a time, and reports whether the agent lives.
func (c *crash) effect(what string, run func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files != nil {
		return false
	}
	run()
	c.did = append(c.did, what)
	if len(c.did) != c.after {
		return true
	}
	c.files = c.copy()
	close(c.dead)
	return false
}

func (c *crash) killed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.files != nil
}

// revive is another process of the agent, which lives on.
func (c *crash) revive() map[string][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	files := c.files
	c.files, c.after = nil, 0
	return files
}

func (c *crash) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	if c.killed() {
		return nil, errKilled
	}
	if r.Method == http.MethodGet || strings.Contains(r.URL.RawQuery, "dryRun") || strings.Contains(r.URL.Path, "authorization.k8s.io") {
		return c.next.RoundTrip(r)
	}
	send := func() { answer, err = c.next.RoundTrip(r) }
	if c.late > 0 {
		send = func() { answer, err = c.sendOrLater(r) }
	}
	if c.effect(r.Method+" "+r.URL.Path, send) {
		return answer, err
	}
	if answer != nil {
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	}
	return nil, errKilled
}

// Write writes a file. What a dead agent still writes is thrown away.
func (c *crash) Write(ctx context.Context, name string, data []byte) (err error) {
	c.effect("write "+name, func() { err = c.memory.Write(ctx, name, data) })
	return err
}

func (c *crash) Remove(ctx context.Context, name string) (err error) {
	c.effect("remove "+name, func() { err = c.memory.Remove(ctx, name) })
	return err
}

func (c *crash) noteNewest(part string) {
	c.effect("note "+part, func() { c.memory.noteNewest(part) })
}

// mortal has the rig's agent die after so many side effects.
func (r *rig) mortal(after int) *crash {
	r.t.Helper()
	r.stop()
	c := &crash{memory: r.store, after: after, dead: make(chan struct{})}
	r.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		c.next = next
		return c
	})
	r.options = append(r.options, func(o *Options) { o.State, o.NoteNewest = c, c.noteNewest })
	r.truthful()
	r.start()
	return c
}

// life is a part of the life of an agent: what happens, and what must come of it.
type life struct {
	what string
	do   func()
	// is what must be there then of the hub's: the data of ConfigMaps and the image of Jobs, by name.
	is map[string]string
	// status is of the module that says when it has come to that.
	status string
	done   func(fleet.SyncStatus) bool
}

// Wherever an agent is killed, and whether what it should do is the same when it starts again or something new: it ends with
// exactly what is wanted, what stays is never made anew, and what is not its own is as it was.
func TestKilledAnywhere(t *testing.T) { killedAnywhere(t, everyLife) }

// everyLife lives all that an agent does, beside what is not its own.
func everyLife(r *rig, live living) {
	r.judges.Store(true)
	for _, name := range []string{"foreign", "theirs"} {
		r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": r.ns},
			"data": map[string]any{"k": "theirs"}})
	}
	foreign := r.get("v1", "configmaps", "foreign").GetResourceVersion()
	seen := map[string]types.UID{"theirs": r.uidOf("v1", "configmaps", "theirs")} // of what stays
	live(r.lives(), r.ours, func(l life) {
		for _, name := range []string{"a", "moves", "kept", "theirs"} {
			u := r.get("v1", "configmaps", name)
			if was, known := seen[name]; known && (u == nil || was != u.GetUID()) && (name != "a" || l.is["a"] != "") {
				r.t.Errorf("%s: %s is not what it was", l.what, name)
			}
			if u != nil {
				seen[name] = u.GetUID()
			}
		}
	})
	if now := r.get("v1", "configmaps", "foreign").GetResourceVersion(); now != foreign {
		r.t.Error("what is not the hub's was written")
	}
}

// The same of a module with a Namespace and a kind of its own, which are there before what is in them, and go after it.
func TestKilledAnywhereWithItsKinds(t *testing.T) {
	killedAnywhere(t, func(r *rig, live func(lives []life, look func() map[string]string, then func(life))) {
		r.t.Cleanup(func() {
			_ = r.res("apiextensions.k8s.io/v1", "customresourcedefinitions", "").Delete(context.Background(), "gadgets."+r.ns+".example.com", metav1.DeleteOptions{})
			_ = r.res("v1", "namespaces", "").Delete(context.Background(), r.ns+"-own", metav1.DeleteOptions{})
		})
		own := "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-own}\n"
		kind := strictCRD("color: {type: string}")
		gadget := func(color string) string {
			return "apiVersion: $NS.example.com/v1\nkind: Gadget\nmetadata: {name: t, namespace: $NS-own}\nspec: {color: " + color + "}\n"
		}
		inside := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: $NS-own}\ndata: {k: v}\n"
		first := r.bundle("shop", nil, own, kind, gadget("red"), inside)
		second := r.bundle("shop", nil, own, kind, gadget("blue"))
		gone := r.tombstone("shop", fleet.DeleteDelete)
		live([]life{
			{"a first revision", func() { r.set([]fleet.Sync{first}) },
				map[string]string{"own": "", "kind": "", "c": "v", "t": "red"}, "shop", isReady(first)},
			{"a second one", func() { r.set([]fleet.Sync{second}) },
				map[string]string{"own": "", "kind": "", "t": "blue"}, "shop", isReady(second)},
			{"the end of the module", func() { r.set(nil, gone) },
				map[string]string{}, "shop", isRemoved},
		}, r.itsKinds, func(life) {})
	})
}

// living lives lives, looks at what came of each, and checks more then.
type living = func(lives []life, look func() map[string]string, then func(life))

// killedAnywhere lives the lives of an agent with its death after each of its side effects.
func killedAnywhere(t *testing.T, run func(r *rig, live living)) {
	config := labConfig(t)
	t.Parallel()
	mortal := func(t *testing.T, after int, next bool) *crash {
		r := newRigOn(t, rest.CopyConfig(config))
		c := r.mortal(after)
		run(r, func(lives []life, look func() map[string]string, then func(life)) { r.live(c, next, lives, look, then) })
		if t.Failed() {
			t.Logf("its side effects: %s", strings.Join(c.did, "\n"))
		}
		return c
	}
	effects := 0
	t.Run("never", func(t *testing.T) { effects = len(mortal(t, 0, false).did) })
	if effects < 10 {
		t.Fatalf("only %d side effects", effects)
	}
	all := os.Getenv("TOWLINE_SOAK") != ""        // else it goes on in one of the two ways
	for after := 1; after <= effects+2; after++ { // writes to the state share more or less
		for then, next := range map[string]bool{"the same": false, "the next": true} {
			if !all && next != (after%2 == 0) {
				continue
			}
			t.Run(fmt.Sprintf("after %d, then %s", after, then), func(t *testing.T) {
				t.Parallel()
				mortal(t, after, next)
			})
		}
	}
}

// live lives one life after the other, and looks at what came of each: of one in which the agent died, when it has started again,
// or of the next one. Where the last request of one that died is carried out late, what must be there is there once it was.
func (r *rig) live(c *crash, next bool, lives []life, look func() map[string]string, then func(life)) {
	died := c.dead
	for i, l := range lives {
		l.do()
		if !r.comes(l, look, died) {
			died = nil
			r.stop()
			r.killed(c.revive())
			if c.late > 0 {
				r.landing = 5 * time.Second
			}
			r.start()
			if next && i+1 < len(lives) {
				continue
			}
			r.m.Set(r.current, nil)
			r.comes(l, look, nil)
		}
		if died == nil && c.held {
			<-c.lands
			r.comes(l, look, nil)
		}
		then(l)
	}
}

func isReady(s fleet.Sync) func(fleet.SyncStatus) bool {
	return func(x fleet.SyncStatus) bool { return x.Ready && x.Generation == s.Generation && x.Extra() == 0 }
}

func isRemoved(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved }

// lives are all that an agent does: making, changing, adopting, making anew, leaving out, handing over, correcting, leaving behind
// and deleting.
func (r *rig) lives() []life {
	policies := []fleet.Policy{
		{Match: fleet.PolicyMatch{Names: []string{"theirs"}}, Adopt: fleet.AdoptAlways},
		{Match: fleet.PolicyMatch{Names: []string{"kept"}}, Delete: fleet.DeleteOrphan},
		{Recreate: fleet.RecreateIfImmutable},
	}
	kept, moves := configMap("kept", "k: v1"), configMap("moves", "k: v1")
	first := r.bundle("shop", policies, configMap("a", "k: v1"), configMap("b", "k: v1"), kept, moves, jobOf("x:1"))
	second := r.bundle("shop", policies, configMap("a", "k: v2"), configMap("c", "k: v2"), configMap("theirs", "k: v2"), kept, moves, jobOf("x:2"))
	third := r.bundle("shop", policies, configMap("a", "k: v2"), configMap("c", "k: v2"), kept, jobOf("x:2"))
	other := r.bundle("other", policies, moves, configMap("theirs", "k: v2"))
	gone := r.tombstone("shop", fleet.DeleteDelete)
	settled := map[string]string{"a": "v2", "c": "v2", "kept": "v1", "moves": "v1", "theirs": "v2", "once": "x:2"}
	return []life{
		{"a first revision", func() { r.set([]fleet.Sync{first}) },
			map[string]string{"a": "v1", "b": "v1", "kept": "v1", "moves": "v1", "once": "x:1"}, "shop", isReady(first)},
		{"a second one", func() { r.set([]fleet.Sync{second}) }, settled, "shop", isReady(second)},
		{"objects for another module", func() { r.set([]fleet.Sync{third, other}) }, settled, "other", isReady(other)},
		{"an edit by hand", func() {
			r.set([]fleet.Sync{third, other})
			r.patch("v1", "configmaps", "a", "somebody", `{"data":{"k":"wrong"}}`)
		}, settled, "shop", isReady(third)},
		{"the end of a module", func() { r.set([]fleet.Sync{other}, gone) },
			map[string]string{"moves": "v1", "theirs": "v2"}, "shop", isRemoved},
	}
}

// comes waits until it has come to what must be there, or until the agent has died.
func (r *rig) comes(l life, look func() map[string]string, died <-chan struct{}) (there bool) {
	r.t.Helper()
	r.eventually(l.what, func() bool {
		select {
		case <-died:
			return true
		default:
		}
		r.mu.Lock()
		s := r.statuses[fleet.ModuleRef{Project: "default", Name: l.status}]
		r.mu.Unlock()
		there = l.done(s) && maps.Equal(look(), l.is)
		return there
	})
	return there
}

// ours are the ConfigMaps and Jobs that carry the hub's label.
func (r *rig) ours() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	for resource, apiVersion := range map[string]string{"configmaps": "v1", "jobs": "batch/v1"} {
		list, err := r.res(apiVersion, resource, r.ns).List(context.Background(), metav1.ListOptions{LabelSelector: fleet.HubLabel + "=" + r.hub})
		if err != nil {
			r.t.Fatal(err)
		}
		for _, u := range list.Items {
			data, _ := u.Object["data"].(map[string]any)
			text := fmt.Sprint(data["k"])
			if resource == "jobs" {
				containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
				text = fmt.Sprint(containers[0].(map[string]any)["image"])
			}
			out[u.GetName()] = text
		}
	}
	return out
}

// itsKinds is what there is of a module that has a Namespace and a kind of its own.
func (r *rig) itsKinds() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	for name, at := range map[string][4]string{
		"own":  {"v1", "namespaces", "", r.ns + "-own"},
		"kind": {"apiextensions.k8s.io/v1", "customresourcedefinitions", "", "gadgets." + r.ns + ".example.com"},
		"c":    {"v1", "configmaps", r.ns + "-own", "c"},
		"t":    {r.ns + ".example.com/v1", "gadgets", r.ns + "-own", "t"},
	} {
		u, err := r.res(at[0], at[1], at[2]).Get(context.Background(), at[3], metav1.GetOptions{})
		if err != nil {
			continue
		}
		data, _, _ := unstructured.NestedString(u.Object, "data", "k")
		color, _, _ := unstructured.NestedString(u.Object, "spec", "color")
		out[name] = data + color
	}
	return out
}
