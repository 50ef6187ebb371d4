package histories

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/test/lab"
)

// row is one of get objects.
type row struct {
	Cluster, Module     string
	Revision            json.Number
	Sync, Health, Drift string
	Reason, Message     string
	Extra               bool
	Object              struct{ APIVersion, Kind, Namespace, Name string }
}

func (r row) fine() bool {
	return !r.Extra && r.Sync == "Synced" && r.Health == "Healthy" && r.Drift == "InSync"
}

func (r row) key() string { return r.Object.Kind + "/" + r.Object.Name }

func (r row) String() string {
	return fmt.Sprintf("%s: %s r%s: %s is %s, %s, %s (extra %t) %s %s", r.Cluster, r.Module, r.Revision, r.key(), r.Sync, r.Health, r.Drift, r.Extra, r.Reason, r.Message)
}

// look judges what has happened, and what the hub says now. At rest it tells what is not yet as it has to be.
func (w *world) look(rest bool) (pending []string) {
	w.replay()
	var lies []string
	live := map[string]map[string]*unstructured.Unstructured{}
	rows := w.rows()
	w.revs = w.revisions()
	for _, c := range w.Clusters {
		if !w.reach(c) {
			continue
		}
		live[c.Name] = w.live(c)
		for _, name := range foreigners {
			o := live[c.Name]["ConfigMap/"+name]
			if of, _, _ := unstructured.NestedString(o.Object, "data", "of"); of != "others" || ownerOf(o) != "" {
				w.fatal("%s: ConfigMap %s of others is %q and belongs to %q", c.Name, name, of, ownerOf(o))
			}
		}
	}
	for _, r := range rows {
		if live[r.Cluster] == nil || w.down["asleep "+w.cluster(r.Cluster).Agent.Name] != nil { // which is noticed after its heartbeats are missed
			continue
		}
		w.compared++
		if err := w.compare(r, live[r.Cluster][r.key()]); r.fine() && err != nil {
			lies = append(lies, fmt.Sprintf("%s; but %v", r, err))
		}
		unsettled := r.Sync == "Unknown" || r.Reason == "Unsettled" || strings.HasPrefix(r.Message, "is not there, but a write of it")
		if r.Extra && live[r.Cluster][r.key()] == nil && !unsettled {
			lies = append(lies, fmt.Sprintf("%s; but it is not there", r))
		}
		if rest && !r.fine() {
			pending = append(pending, r.String())
		}
	}
	lies = append(append(lies, w.sums()...), w.unproven()...)
	w.lying(lies)
	if rest {
		pending = append(append(pending, lies...), w.incomplete(rows, live)...)
	}
	return pending
}

func (w *world) rows() []row {
	var list struct{ Items []row }
	r := w.CLI(w.t.Context(), "get", "objects", "-o", "json")
	must(w.t, r.Err())
	must(w.t, json.Unmarshal([]byte(r.Stdout), &list))
	return list.Items
}

// live reads what a cluster has.
func (w *world) live(c *lab.Cluster) map[string]*unstructured.Unstructured {
	out := map[string]*unstructured.Unstructured{}
	for kind, apiVersion := range map[string]string{"ConfigMap": "v1", "Deployment": "apps/v1"} {
		resource, err := c.Resource(apiVersion, kind, home)
		must(w.t, err)
		list, err := resource.List(w.t.Context(), metav1.ListOptions{})
		must(w.t, err)
		for i := range list.Items {
			out[kind+"/"+list.Items[i].GetName()] = &list.Items[i]
		}
	}
	return out
}

// revisions are the puts of each module's revisions.
func (w *world) revisions() map[string]map[int]int {
	out := map[string]map[int]int{}
	hub, err := w.Hub.Client(w.t.Context())
	must(w.t, err)
	defer hub.Close()
	for _, name := range modules {
		out[name] = map[int]int{}
		for listed, err := range hub.AllRevisions(w.t.Context(), &v1.ListRevisionsRequest{Module: name}) {
			if err != nil {
				break // a module that is deleted, or was never put
			}
			resp, err := hub.Modules.GetRevision(w.t.Context(), &v1.GetRevisionRequest{Module: name, Number: listed.GetNumber()})
			if err != nil {
				continue
			}
			_, text, _ := strings.Cut(resp.GetRevision().GetSpec().GetSource().GetInline().GetFiles()["a.yaml"], `"put":"`)
			number, _, _ := strings.Cut(text, `"`)
			out[name][int(listed.GetNumber())], _ = strconv.Atoi(number)
		}
	}
	return out
}

// compare holds an object against what a row's revision lists.
func (w *world) compare(r row, live *unstructured.Unstructured) error {
	n, _ := r.Revision.Int64()
	want, known := w.puts[w.revs[r.Module][int(n)]]
	if !known {
		return nil // it is deleted, or older than the history
	}
	object := want.objects()[r.key()]
	switch {
	case object == nil:
		return fmt.Errorf("the revision does not list it")
	case live == nil:
		return fmt.Errorf("it is not there")
	case ownerOf(live) != r.Module:
		return fmt.Errorf("it belongs to %q", ownerOf(live))
	}
	if err := lab.AsWanted(&unstructured.Unstructured{Object: object}, live); err != nil {
		return err
	}
	if r.Object.Kind != "Deployment" {
		return nil
	}
	count := func(path ...string) int64 {
		n, _, _ := unstructured.NestedInt64(live.Object, path...)
		return n
	}
	if ready, updated := count("status", "readyReplicas"), count("status", "updatedReplicas"); ready < 2 || updated < 2 {
		return fmt.Errorf("%d pods are ready and %d are updated", ready, updated)
	}
	return nil
}

// sums: healthy, progressing, bad and away are all clusters, always; and a rollout that succeeded has done all but what it says.
func (w *world) sums() (lies []string) {
	hub, err := w.Hub.Client(w.t.Context())
	must(w.t, err)
	defer hub.Close()
	for _, name := range modules {
		resp, err := hub.Modules.GetModule(w.t.Context(), &v1.GetModuleRequest{Name: name})
		if err != nil {
			continue
		}
		if s := resp.GetModule().GetStatus(); s.GetHealthy()+s.GetProgressing()+s.GetBad()+s.GetAway() != s.GetClusters() {
			lies = append(lies, fmt.Sprintf("counts of %s do not add up: %v", name, s))
		}
	}
	return lies
}

// unproven: what a rollout has succeeded with, and for all clusters, has run in all of them.
func (w *world) unproven() (lies []string) {
	hub, err := w.Hub.Client(w.t.Context())
	must(w.t, err)
	defer hub.Close()
	resp, err := hub.Rollouts.ListRollouts(w.t.Context(), &v1.ListRolloutsRequest{})
	must(w.t, err)
	for _, r := range resp.GetRollouts() {
		n := w.revs[r.GetModule()][int(r.GetRevision())]
		s := r.GetStatus()
		if s.GetState() != "Succeeded" || s.GetSucceeded() != 2 || n == 0 || w.waved[n] != "" {
			continue
		}
		for _, c := range w.Clusters {
			if _, ok := w.logs[c.Name].proven[n]; !ok && w.reach(c) {
				lies = append(lies, fmt.Sprintf("%s has succeeded in both clusters; but %s has never run in %s", r.GetId(), w.puts[n], c.Name))
			}
		}
	}
	return lies
}

// lying fails when the hub keeps saying what is not so.
func (w *world) lying(lies []string) {
	if lie := w.lies.Kept(time.Now(), lies, lag); lie != "" {
		w.fatal("for %s the hub says what is not so: %s", lag, lie)
	}
}

// rest brings back what is down, ends what is held, puts both modules once more, and waits until all is as it has to be.
func (w *world) rest() {
	for len(w.down) > 0 {
		w.bring("")
	}
	w.putGood()
	deadline := time.Now().Add(limit)
	for calm := 0; calm < 2; {
		pending := w.look(true)
		calm++
		if len(pending) > 0 {
			calm = 0
		}
		if calm == 0 && time.Now().After(deadline) {
			w.fatal("not at rest after %s:\n  %s", limit, strings.Join(pending, "\n  "))
		}
		w.confirm()
		pause(w.t.Context(), 300*time.Millisecond)
	}
	w.settle()
}

// incomplete tells what is missing or too much, beside rows that are not fine.
func (w *world) incomplete(rows []row, live map[string]map[string]*unstructured.Unstructured) (pending []string) {
	listed := map[string]bool{}
	for _, r := range rows {
		listed[r.Cluster+"/"+r.Module+"/"+r.key()] = true
		if now, ok := w.now[r.Module]; !ok || w.revs[r.Module][number(r)] != now.number {
			pending = append(pending, fmt.Sprintf("%s; but that is not what was put last", r))
		}
	}
	for _, c := range w.Clusters {
		wanted := map[string]bool{}
		for _, name := range modules {
			for key := range w.now[name].objects() {
				wanted[key] = true
				if !listed[c.Name+"/"+name+"/"+key] {
					pending = append(pending, fmt.Sprintf("%s: %s of %s is not listed", c.Name, key, name))
				}
			}
		}
		for key, o := range live[c.Name] {
			_, name, _ := strings.Cut(key, "/")
			if !wanted[key] && !slices.Contains(foreigners, name) && name != "kube-root-ca.crt" && !w.left[c.Name+"/"+key] {
				if w.leaves {
					w.left[c.Name+"/"+key] = true
					continue
				}
				pending = append(pending, fmt.Sprintf("%s: %s is still there, of %q", c.Name, key, ownerOf(o)))
			}
		}
	}
	for _, name := range modules {
		if got := strings.TrimSpace(w.CLI(w.t.Context(), "get", "module", name, "-o", "jsonpath={.status.rolloutState}").Stdout); got != "Succeeded" {
			pending = append(pending, fmt.Sprintf("%s: the rollout is %s", name, got))
		}
	}
	return pending
}

func number(r row) int {
	n, _ := r.Revision.Int64()
	return int(n)
}

// settle holds the Deployments against those of the last quiet point: none that was listed all the time has been made anew.
func (w *world) settle() {
	w.rests++
	now := map[string]string{}
	for _, c := range w.Clusters {
		live := w.live(c)
		for _, app := range apps {
			at := c.Name + "/" + app
			now[at] = string(live["Deployment/"+app].GetUID())
			if was := w.kept[at]; was != "" && was != now[at] && !w.moved && !w.hands[at] {
				w.fatal("%s: Deployment %s was deleted and made anew, though it was listed all the time", c.Name, app)
			}
		}
	}
	w.kept = now
	w.t.Logf("at rest %d: %v", w.rests, w.done) // a run may take hours
	if n := w.confirms; n > 5 {
		w.t.Logf("%d confirms until all is at rest:\n  %s", n, strings.Join(w.journal, "\n  "))
	}
	w.confirms = 0
	w.moved, w.leaves, w.journal = false, false, nil
	clear(w.hands)
	clear(w.edited)
	clear(w.removed)
}
