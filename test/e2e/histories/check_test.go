package histories

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

func keyOf(r e2etest.Row) string { return r.Object.Kind + "/" + r.Object.Name }

// look judges what has happened, and what the hub says now. At rest it tells what is not yet as it has to be.
func (w *world) look(rest bool) (pending []string) {
	w.replay()
	var lies []string
	live := map[string]map[string]*unstructured.Unstructured{}
	rows := w.Rows()
	w.revs = w.revisions()
	for _, c := range w.Clusters {
		if !w.Reach(c) {
			continue
		}
		live[c.Name] = w.live(c)
		for _, name := range foreigners {
			o := live[c.Name]["ConfigMap/"+name]
			if o == nil {
				w.Fatal("%s: ConfigMap %s of others is deleted", c.Name, name)
			}
			if of, _, _ := unstructured.NestedString(o.Object, "data", "of"); of != "others" || e2etest.Owner(o) != "" {
				w.Fatal("%s: ConfigMap %s of others is %q and belongs to %q", c.Name, name, of, e2etest.Owner(o))
			}
		}
	}
	for _, r := range rows {
		if live[r.Cluster] == nil || w.Asleep(w.cluster(r.Cluster).Agent) { // which is noticed after its heartbeats are missed
			continue
		}
		w.compared++
		if err := w.compare(r, live[r.Cluster][keyOf(r)]); r.Fine() && err != nil {
			lies = append(lies, fmt.Sprintf("%s; but %v", r, err))
		}
		if r.Extra && live[r.Cluster][keyOf(r)] == nil && r.Sync != "Unknown" && !r.Unsettled() {
			lies = append(lies, fmt.Sprintf("%s; but it is not there", r))
		}
		if rest && !r.Fine() {
			pending = append(pending, r.String())
		}
	}
	lies = append(append(lies, w.sums()...), w.unproven()...)
	w.Lying(lies, lag)
	if rest {
		pending = append(append(pending, lies...), w.incomplete(rows, live)...)
	}
	return pending
}

// live reads what a cluster has.
func (w *world) live(c *lab.Cluster) map[string]*unstructured.Unstructured {
	out := map[string]*unstructured.Unstructured{}
	for kind, apiVersion := range map[string]string{"ConfigMap": "v1", "Deployment": "apps/v1"} {
		resource, err := c.Resource(apiVersion, kind, home)
		w.Must(err)
		list, err := resource.List(w.T.Context(), metav1.ListOptions{})
		w.Must(err)
		for i := range list.Items {
			out[kind+"/"+list.Items[i].GetName()] = &list.Items[i]
		}
	}
	return out
}

// revisions are the puts of each module's revisions.
func (w *world) revisions() map[string]map[int]int {
	out := map[string]map[int]int{}
	hub, err := w.Hub.Client(w.T.Context())
	w.Must(err)
	defer hub.Close()
	for _, name := range modules {
		out[name] = map[int]int{}
		for listed, err := range hub.AllRevisions(w.T.Context(), &v1.ListRevisionsRequest{Module: name}) {
			if err != nil {
				break // a module that is deleted, or was never put
			}
			resp, err := hub.Modules.GetRevision(w.T.Context(), &v1.GetRevisionRequest{Module: name, Number: listed.GetNumber()})
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
func (w *world) compare(r e2etest.Row, live *unstructured.Unstructured) error {
	want, known := w.puts[w.revs[r.Module][r.Number()]]
	if !known {
		return nil // it is deleted, or older than the history
	}
	object := want.objects()[keyOf(r)]
	switch {
	case object == nil:
		return fmt.Errorf("the revision does not list it")
	case live == nil:
		return fmt.Errorf("it is not there")
	case e2etest.Owner(live) != r.Module:
		return fmt.Errorf("it belongs to %q", e2etest.Owner(live))
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
	hub, err := w.Hub.Client(w.T.Context())
	w.Must(err)
	defer hub.Close()
	for _, name := range modules {
		resp, err := hub.Modules.GetModule(w.T.Context(), &v1.GetModuleRequest{Name: name})
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
	hub, err := w.Hub.Client(w.T.Context())
	w.Must(err)
	defer hub.Close()
	resp, err := hub.Rollouts.ListRollouts(w.T.Context(), &v1.ListRolloutsRequest{})
	w.Must(err)
	for _, r := range resp.GetRollouts() {
		n := w.revs[r.GetModule()][int(r.GetRevision())]
		s := r.GetStatus()
		if s.GetState() != "Succeeded" || s.GetSucceeded() != 2 || n == 0 || w.waved[n] != "" {
			continue
		}
		for _, c := range w.Clusters {
			if _, ok := w.logs[c.Name].proven[n]; !ok && w.Reach(c) {
				lies = append(lies, fmt.Sprintf("%s has succeeded in both clusters; but %s has never run in %s", r.GetId(), w.puts[n], c.Name))
			}
		}
	}
	return lies
}

// rest brings back what is down, ends what is held, puts both modules once more, and waits until all is as it has to be.
func (w *world) rest() {
	w.repairAll()
	w.putGood()
	deadline := time.Now().Add(limit)
	for calm := 0; calm < 2; {
		pending := w.look(true)
		calm++
		if len(pending) > 0 {
			calm = 0
		}
		if calm == 0 && time.Now().After(deadline) {
			w.Fatal("not at rest after %s:\n  %s", limit, strings.Join(pending, "\n  "))
		}
		w.confirm()
		w.Pause(300 * time.Millisecond)
	}
	w.settle()
}

// incomplete tells what is missing or too much, beside rows that are not fine.
func (w *world) incomplete(rows []e2etest.Row, live map[string]map[string]*unstructured.Unstructured) (pending []string) {
	listed := map[string]bool{}
	for _, r := range rows {
		listed[r.Cluster+"/"+r.Module+"/"+keyOf(r)] = true
		if now, ok := w.now[r.Module]; !ok || w.revs[r.Module][r.Number()] != now.number {
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
				pending = append(pending, fmt.Sprintf("%s: %s is still there, of %q", c.Name, key, e2etest.Owner(o)))
			}
		}
	}
	for _, name := range modules {
		if got := strings.TrimSpace(w.CLI(w.T.Context(), "get", "module", name, "-o", "jsonpath={.status.rolloutState}").Stdout); got != "Succeeded" {
			pending = append(pending, fmt.Sprintf("%s: the rollout is %s", name, got))
		}
	}
	return pending
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
				w.Fatal("%s: Deployment %s was deleted and made anew, though it was listed all the time", c.Name, app)
			}
		}
	}
	w.kept = now
	w.T.Logf("at rest %d: %v", w.rests, w.Done) // a run may take hours
	if n := w.confirms; n > 5 {
		w.T.Logf("%d confirms until all is at rest, %s", n, w.Journal())
	}
	w.confirms = 0
	w.moved, w.leaves = false, false
	w.Quiet()
	clear(w.hands)
	clear(w.edited)
	clear(w.removed)
}
