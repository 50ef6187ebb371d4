package sim

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

func pick[T any](w *world, from []T) T { return from[w.rnd.IntN(len(from))] }

func (w *world) chance(oneIn int) bool { return w.rnd.IntN(oneIn) == 0 }

// between is a time between two.
func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.rnd.Int64N(int64(b-a)))
}

func spec(name string, m want) *towlinev1.Module {
	var out strings.Builder
	for _, o := range m.letters {
		fmt.Fprintf(&out, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %q, namespace: default}\ndata: {v: \"%s/%d\", x%d: \"1\"}\n", string(o), name, m.number, m.number%3)
	}
	s := &towlinev1.ModuleSpec{Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"all.yaml": out.String()}}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}
	if m.zone != "" {
		s.Placement.Selector.MatchLabels = map[string]string{"zone": m.zone}
	}
	return &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: name}, Spec: s}
}

// put makes a module what is wanted. A refusal ends the wish.
func (w *world) put(name string, m want, batch string, more bool) error {
	what := fmt.Sprintf("put %s %s/%d in %q, batch %q", name, m.letters, m.number, m.zone, batch)
	err := w.insist(what, func(ctx context.Context) error {
		got, err := w.Modules.PutModule(ctx, &towlinev1.PutModuleRequest{Module: spec(name, m), Batch: batch, More: more})
		if err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.judge.revs[name] == nil {
				w.judge.revs[name] = map[int64]want{}
			}
			w.judge.revs[name][got.GetRevision()] = m
		}
		return err
	})
	if err != nil {
		w.note("    refused: %v", err)
		if !comesTooLate(err) {
			w.judge.wish(func(x *wish) { delete(x.modules, name) })
		}
	}
	return err
}

// comesTooLate reports that a put was refused because those before it in its batch did not begin without it.
func comesTooLate(err error) bool {
	return err != nil && strings.Contains(err.Error(), "it comes too late")
}

// together puts two modules as one batch, and both again where that was broken off before the second one came.
func (w *world) together(one, two string, m map[string]want, batch string) {
	for {
		_ = w.put(one, m[one], batch, true)
		err := w.put(two, m[two], batch, false)
		switch {
		case err == nil:
			return
		case !comesTooLate(err):
			_ = w.put(one, m[one], batch+"again", false)
			return
		}
		batch = strconv.FormatUint(w.rnd.Uint64(), 36)
	}
}

// number is a new one, greater than all before.
func (w *world) number() int {
	w.numbers++
	return w.numbers
}

// free are the letters that no other module has.
func (w *world) free(name string) []string {
	now, out := w.judge.now(), []string{}
	for _, o := range letters {
		if !slices.ContainsFunc(moduleNames, func(m string) bool { return m != name && strings.Contains(now.modules[m].letters, o) }) {
			out = append(out, o)
		}
	}
	return out
}

func (w *world) puts() {
	name := pick(w, moduleNames)
	free := w.free(name)
	m := want{number: w.number(), zone: pick(w, []string{"", "", "x", "y"})}
	for _, o := range free {
		if !w.chance(3) {
			m.letters += o
		}
	}
	if m.letters == "" {
		if len(free) == 0 {
			return
		}
		m.letters = free[0]
	}
	w.judge.wish(func(x *wish) { x.modules[name] = m })
	_ = w.put(name, m, "", false)
}

// moves has an object of one module be another one's, in one batch.
func (w *world) moves() {
	now := w.judge.now()
	from, to := pick(w, moduleNames), pick(w, moduleNames)
	a, b := now.modules[from], now.modules[to]
	if from == to || len(a.letters) < 2 || b.letters == "" {
		return
	}
	o := a.letters[w.rnd.IntN(len(a.letters)):][:1]
	a.letters, b.letters = strings.ReplaceAll(a.letters, o, ""), b.letters+o
	a.number, b.number = w.number(), w.number()
	w.judge.wish(func(x *wish) { x.modules[from], x.modules[to] = a, b })
	batch := strconv.FormatUint(w.rnd.Uint64(), 36)
	if w.wild && w.chance(3) { // for some time both list it
		w.judge.wish(func(x *wish) { x.modules[from] = now.modules[from] })
		_ = w.put(to, b, "", false)
		pause(w.between(time.Millisecond, time.Minute))
		w.judge.wish(func(x *wish) { x.modules[from] = a })
		_ = w.put(from, a, "", false)
		return
	}
	both := map[string]want{from: a, to: b}
	if w.chance(2) {
		w.together(from, to, both, batch)
		return
	}
	w.together(to, from, both, batch)
}

func (w *world) deletes() {
	name := pick(w, moduleNames)
	if _, ok := w.judge.now().modules[name]; !ok {
		return
	}
	w.judge.wish(func(x *wish) { delete(x.modules, name) })
	_ = w.insist("delete "+name, func(ctx context.Context) error {
		_, err := w.Modules.DeleteModule(ctx, &towlinev1.DeleteModuleRequest{Name: name, Force: true})
		return err
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.judge.revs, name)
}

// says says a word to the rollout of a module.
func (w *world) says(name, verb string) error {
	word := client.Word{Module: name, Verb: verb, Reason: "because", RequestID: strconv.FormatUint(w.rnd.Uint64(), 36)}
	return w.insist(verb+" "+name, func(ctx context.Context) error {
		_, err := w.Steer(ctx, word)
		return err
	})
}

func (w *world) steers() {
	name, verb := pick(w, moduleNames), pick(w, []string{"pause", "resume", "rollback", "abort", "retry"})
	if _, ok := w.judge.now().modules[name]; !ok {
		return
	}
	w.mu.Lock()
	w.judge.steered = true
	w.judge.back[name] = w.judge.back[name] || verb == "rollback"
	w.mu.Unlock()
	_ = w.says(name, verb)
}

func (w *world) holds() {
	h := &towlinev1.PutHoldRequest{Cluster: pick(w, clusterNames), Module: pick(w, moduleNames)}
	switch w.rnd.IntN(3) {
	case 0:
		h.Module = ""
	case 1:
		h.Cluster = ""
	}
	_ = w.insist(fmt.Sprintf("hold %q in %q", h.GetModule(), h.GetCluster()), func(ctx context.Context) error {
		_, err := w.Modules.PutHold(ctx, h)
		return err
	})
}

// confirms lets everything go on that waits for a word.
func (w *world) confirms() {
	var got *towlinev1.ListHoldsResponse
	_ = w.insist("? list holds", func(ctx context.Context) (err error) {
		got, err = w.Modules.ListHolds(ctx, &towlinev1.ListHoldsRequest{})
		return err
	})
	for _, h := range got.GetHolds() {
		_ = w.insist(fmt.Sprintf("confirm %s %s", h.GetModule(), h.GetReason()), func(ctx context.Context) error {
			_, err := w.Modules.ConfirmHold(ctx, &towlinev1.ConfirmHoldRequest{Id: h.GetId()})
			return err
		})
	}
}

func (w *world) relabels() {
	name := pick(w, clusterNames)
	p := w.judge.now().clusters[name]
	if p.gone {
		return
	}
	p.zone = pick(w, []string{"x", "y"})
	w.judge.wish(func(x *wish) { x.clusters[name] = p })
	_ = w.insist("label "+name+" "+p.zone, func(ctx context.Context) error {
		_, err := w.Clusters.PutCluster(ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Spec: &towlinev1.ClusterSpec{},
			Metadata: &towlinev1.Metadata{Name: name, Labels: map[string]string{"zone": p.zone}}}})
		return err
	})
}

// leaves has a cluster leave the fleet.
func (w *world) leaves() {
	w.leave(pick(w, clusterNames), w.wild && w.chance(2))
}

// leave has a cluster leave, with its objects or without.
func (w *world) leave(name string, keep bool) {
	p := w.judge.now().clusters[name]
	if p.gone {
		return
	}
	p.gone, p.keep = true, keep
	w.judge.wish(func(x *wish) { x.clusters[name] = p })
	remove := func(objects string) error {
		return w.insist("remove "+name, func(ctx context.Context) error {
			_, err := w.Clusters.RemoveCluster(ctx, &towlinev1.RemoveClusterRequest{Name: name, Objects: objects})
			return err
		})
	}
	if !p.keep {
		_ = remove(fleet.LeaveDelete)
		return
	}
	if err := remove(fleet.LeaveKeep); status.Code(err) == codes.FailedPrecondition { // a module that is being deleted is not gone there
		p.keep = false
		w.judge.wish(func(x *wish) { x.clusters[name] = p })
		_ = remove(fleet.LeaveDelete)
	}
}

// admits has a cluster that left join again, once it has left.
func (w *world) admits(name string) {
	b := w.boxes[name]
	for range 600 {
		w.revive()
		b.again()
		state := "?"
		err := w.insist("? is "+name+" gone", func(ctx context.Context) error {
			got, err := w.Clusters.GetCluster(ctx, &towlinev1.GetClusterRequest{Name: name})
			state = got.GetCluster().GetStatus().GetState()
			return err
		})
		if status.Code(err) == codes.NotFound || state == "Unregistered" {
			b.kill("it joins again")
			<-b.agent.ended
			b.clean()
			w.judge.wish(func(x *wish) { x.clusters[name] = place{zone: x.clusters[name].zone} })
			w.enroll(name)
			return
		}
		w.confirms()
		pause(10 * time.Second)
	}
	w.judge.finds("I5: %s does not leave the fleet", name)
}

// edited is what somebody writes into an object of a module.
const edited = "edited"

// edits changes or deletes an object in a cluster, as somebody who does not know of Towline.
func (w *world) edits() {
	b := w.boxes[pick(w, clusterNames)]
	if o := pick(w, letters); w.chance(2) && b.server.Get("configmaps", metav1.NamespaceDefault, o) == nil {
		b.server.Replace("configmaps", foreign(o)) // in the way of whoever wants it
		return
	}
	all := b.server.All("configmaps")
	o := pick(w, all).DeepCopy()
	if !ours(o) {
		return
	}
	if w.chance(2) {
		b.server.Drop("configmaps", o.GetNamespace(), o.GetName())
		return
	}
	_ = unstructured.SetNestedField(o.Object, edited, "data", "v")
	b.server.Replace("configmaps", o)
}

// foreign is an object that is nobody's.
func foreign(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"w": "theirs"}}}
	o.SetName(name)
	o.SetNamespace(metav1.NamespaceDefault)
	return o
}

// clean takes away what a cluster has kept that is not wanted any more, or that somebody edited: that is theirs now.
func (b *box) clean() {
	now := b.w.judge.now()
	p := now.clusters[b.name]
	p.gone = false
	now = now.with(func(x *wish) { x.clusters[b.name] = p })
	for _, o := range letters {
		u := b.server.Get("configmaps", metav1.NamespaceDefault, o)
		if u == nil {
			continue
		}
		if text, _, _ := contentOf(u); now.owner(b.name, o) == "" || text == edited {
			b.server.Drop("configmaps", metav1.NamespaceDefault, o)
		}
	}
}

// vacate takes what is nobody's out of the way of modules.
func (b *box) vacate() {
	for _, o := range letters {
		if u := b.server.Get("configmaps", metav1.NamespaceDefault, o); u != nil && !ours(u) {
			b.server.Drop("configmaps", metav1.NamespaceDefault, o)
		}
	}
}
