package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/tracker"
)

func (r *rig) data(name, key string) string {
	u := r.get("v1", "configmaps", name)
	if u == nil {
		return "<gone>"
	}
	v, _, _ := unstructured.NestedString(u.Object, "data", key)
	return v
}

func (r *rig) replicas(name string) int64 {
	n, _, _ := unstructured.NestedInt64(r.get("apps/v1", "deployments", name).Object, "spec", "replicas")
	return n
}

func (r *rig) delete(apiVersion, resource, name string) {
	r.t.Helper()
	if err := r.res(apiVersion, resource, r.ns).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func TestDriftIsCorrectedAtOnce(t *testing.T) {
	r := aloneRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: want"), configMap("b", "k: want"), deployment("web", 1))
	r.set([]fleet.Sync{s})
	r.ready(s)
	var edits, took []time.Duration
	for i := range 21 {
		began := time.Now()
		r.patch("v1", "configmaps", "a", "kubectl-edit", fmt.Sprintf(`{"data":{"k":"drift-%d"}}`, i))
		edits = append(edits, time.Since(began))
		r.eventually("value is back", func() bool { return r.data("a", "k") == "want" })
		took = append(took, time.Since(began))
	}
	slices.Sort(edits)
	slices.Sort(took)
	edit, median := edits[len(edits)/2], took[len(took)/2]
	if median > max(10*edit, 50*time.Millisecond) { // ten requests' time, on a busy machine too: nobody waits for a debounce
		t.Errorf("a correction takes %v in the median, the edit itself %v: %v", median, edit, took)
	}
	r.wait("shop", "21 corrections", func(x fleet.SyncStatus) bool { return x.Corrections == 21 && x.Ready })

	r.delete("v1", "configmaps", "b")
	r.eventually("b is back", func() bool { return r.data("b", "k") == "want" })

	r.patch("v1", "configmaps", "a", "kubectl-label", `{"metadata":{"labels":{"towline.dev/hub":null}}}`)
	r.eventually("the label is back", func() bool { return r.get("v1", "configmaps", "a").GetLabels()[fleet.HubLabel] == r.hub })

	r.patch("apps/v1", "deployments", "web", "kubectl", `{"spec":{"replicas":5}}`, "scale")
	r.eventually("what a person scaled is back", func() bool { return r.replicas("web") == 1 })

	r.patch("v1", "configmaps", "a", "other", `{"data":{"theirs":"1"}}`)
	r.patch("apps/v1", "deployments", "web", "kubectl-edit", `{"spec":{"replicas":3}}`)
	r.eventually("replicas are back", func() bool { return r.replicas("web") == 1 })
	if got := r.data("a", "theirs"); got != "1" {
		t.Errorf("a field of somebody else is %q", got)
	}
	r.eventually("an event tells", func() bool {
		list, err := r.res("v1", "events", r.ns).List(context.Background(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(list.Items, func(e unstructured.Unstructured) bool {
			message, _, _ := unstructured.NestedString(e.Object, "message")
			return strings.Contains(message, "/spec/replicas changed by kubectl-edit")
		})
	})
}

// wantDrift holds what a status says of the one object that drifts against want, reason and times aside.
func wantDrift(t *testing.T, s fleet.SyncStatus, want fleet.ObjectException) {
	t.Helper()
	if len(s.Exceptions) != 1 {
		t.Fatalf("exceptions %+v", s.Exceptions)
	}
	got := s.Exceptions[0]
	if got.First.IsZero() || got.Last.Before(got.First) {
		t.Errorf("drift of first %v, last %v", got.First, got.Last)
	}
	got.Reason, got.Message, got.Since, got.Ordinal, got.First, got.Last = "", "", time.Time{}, 0, time.Time{}, time.Time{}
	if got != want {
		t.Errorf("drift %+v, want %+v", got, want)
	}
}

// What a status says of a field that drifts: the values by list key, the marks, and nothing of a Secret.
func TestDriftingValues(t *testing.T) {
	r := newRig(t)
	report := []fleet.Policy{{Drift: fleet.DriftReport}}
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: web, namespace: $NS}\ndata: {password: bWluZQ==}"
	for _, tc := range []struct {
		name, object, apiVersion, resource, patch string
		want                                      fleet.ObjectException
	}{
		{"image", deployment("web", 1), "apps/v1", "deployments",
			`{"spec":{"template":{"spec":{"initContainers":[{"name":"first","image":"i"}],"containers":[{"name":"aside","image":"a"},{"name":"main","image":"evil:1"}]}}}}`,
			fleet.ObjectException{Field: "/spec/template/spec/containers/1/image", Want: `"nginx:1"`, Live: `"evil:1"`, ChangedBy: "ana", Seen: 1}},
		{"mark", configMap("web", "k: v"), "v1", "configmaps", `{"metadata":{"annotations":{"towline.dev/owner":"me"}}}`,
			fleet.ObjectException{Field: "/metadata/annotations/towline.dev~1owner", Want: `"` + fleet.OwnerMark(fleet.ModuleRef{Project: "default", Name: "mark"}, "uid-1", fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "web"}) + `"`, Live: `"me"`, ChangedBy: "ana", Seen: 1}},
		{"secret", secret, "v1", "secrets", `{"stringData":{"password":"theirs"}}`,
			fleet.ObjectException{Field: "/data/password", Want: "***", Live: "***", ChangedBy: "ana", Seen: 1}},
	} {
		s := r.bundle(tc.name, report, tc.object)
		r.set([]fleet.Sync{s})
		r.ready(s)
		r.patch(tc.apiVersion, tc.resource, "web", "ana", tc.patch)
		wantDrift(t, r.wait(tc.name, "drifted", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftDrifted }), tc.want)
	}
}

func TestAutoscalerIsLeftAlone(t *testing.T) {
	r := newRig(t)
	r.autoscaler("web")
	s := r.bundle("shop", nil, deployment("web", 1))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("apps/v1", "deployments", "web", "kube-controller-manager", `{"spec":{"replicas":3}}`, "scale")
	r.wait("shop", "scaled", func(x fleet.SyncStatus) bool { return x.Ready && r.replicas("web") == 3 })
	next := r.bundle("shop", nil, strings.ReplaceAll(deployment("web", 1), "nginx:1", "nginx:2"))
	r.set([]fleet.Sync{next})
	status := r.ready(next)
	if got := r.replicas("web"); got != 3 || status.Corrections != 0 || status.States[0].Drift != fleet.DriftInSync {
		t.Errorf("%d replicas after a new revision, status %+v", got, status)
	}
	r.patch("apps/v1", "deployments", "web", "kubectl-edit", `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"evil:1"}]}}}}`)
	r.wait("shop", "corrected", func(x fleet.SyncStatus) bool { return x.Corrections == 1 && x.Ready })
	if got := r.replicas("web"); got != 3 {
		t.Errorf("%d replicas after a correction", got)
	}
}

func TestDriftPolicies(t *testing.T) {
	r := newRig(t)
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"report"}}, Drift: fleet.DriftReport},
		{Match: fleet.PolicyMatch{Names: []string{"ignore"}}, Drift: fleet.DriftIgnore}}
	s := r.bundle("shop", policies, configMap("report", "k: want"), configMap("ignore", "k: want"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "report", "ana", `{"data":{"k":"other"}}`)
	r.patch("v1", "configmaps", "ignore", "ana", `{"data":{"k":"other"}}`)
	status := r.wait("shop", "drifted", func(x fleet.SyncStatus) bool {
		return x.States[0].Drift == fleet.DriftIgnored && x.States[1].Drift == fleet.DriftDrifted
	})
	wantDrift(t, status, fleet.ObjectException{Field: "/data/k", Want: `"want"`, Live: `"other"`, ChangedBy: "ana", Seen: 1})
	if r.data("report", "k") != "other" || r.data("ignore", "k") != "other" {
		t.Error("drift was corrected against the policy")
	}
	next := r.bundle("shop", policies, configMap("report", "k: want"), configMap("ignore", "k: want"), configMap("new", "k: v"))
	r.set([]fleet.Sync{next})
	r.done(next, fleet.DriftDrifted)
}

// done waits until the sync is applied and counts as done for a rollout, although something drifts, and is seen to.
func (r *rig) done(s fleet.Sync, drift fleet.Drift) {
	r.t.Helper()
	status := r.wait(s.Module.Name, "done, with drift", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Ready && slices.ContainsFunc(x.States, func(o fleet.ObjectState) bool {
			return o.Drift == drift && o.Sync == fleet.SyncOutOfSync
		})
	})
	got := tracker.Fold(tracker.Input{Connected: true, Desired: &s, Observed: &status})
	if !got.Ready || got.Sync != fleet.SyncOutOfSync || got.Counts.Drifted != 1 {
		r.t.Errorf("the hub makes of it: %+v", got)
	}
}

func TestTwoWritersStop(t *testing.T) {
	r := aloneRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: want"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_, _ = r.res("v1", "configmaps", r.ns).Patch(ctx, "a", types.MergePatchType, []byte(`{"data":{"k":"mine"}}`), metav1.PatchOptions{FieldManager: "keda"})
			}
		}
	}()
	status := r.wait("shop", "in conflict", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftConflict })
	wantDrift(t, status, fleet.ObjectException{Field: "/data/k", Want: `"want"`, Live: `"mine"`, ChangedBy: "keda", Seen: plan.FlapLimit + 1})
	if status.Exceptions[0].Reason != "TwoWriters" {
		t.Errorf("exceptions %+v", status.Exceptions)
	}
	if status.Phase != fleet.PhaseApplied {
		t.Errorf("phase %s: drift that cannot be corrected is no failed module", status.Phase)
	}
	if x := status.Exceptions[0]; x.ChangedBy != "keda" || x.First.IsZero() || !x.Last.After(x.First) {
		t.Errorf("changed by %s, first %v, last %v", x.ChangedBy, x.First, x.Last)
	}
	next := r.bundle("shop", nil, configMap("a", "k: want"), configMap("b", "k: want"))
	r.set([]fleet.Sync{next})
	r.done(next, fleet.DriftConflict)
}

func TestHoldAndFreeze(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: want"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	held := s
	held.Hold = true
	r.set([]fleet.Sync{held})
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"other"}}`)
	status := r.wait("shop", "drift held", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftHeld })
	wantDrift(t, status, fleet.ObjectException{Field: "/data/k", Want: `"want"`, Live: `"other"`, ChangedBy: "ana", Seen: 1})
	if r.data("a", "k") != "other" {
		t.Error("written under a hold")
	}
	r.set([]fleet.Sync{s})
	r.eventually("value is back", func() bool { return r.data("a", "k") == "want" })

	r.m.Freeze(true, "certificate revoked")
	r.wait("shop", "frozen", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"other"}}`)
	r.wait("shop", "drift held", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftHeld })
	r.m.Freeze(false, "")
	r.eventually("value is back", func() bool { return r.data("a", "k") == "want" })
}

// TestLeftSoUnderAHold: what a policy leaves changed, or deleted, is no more than that while the cluster is held, or its windows for changes are
// closed: it does as well as without. What is changed there that nobody leaves so is held.
func TestLeftSoUnderAHold(t *testing.T) {
	for name, shut := range map[string]func(r *rig, s *fleet.Sync){
		"hold": func(r *rig, s *fleet.Sync) {
			s.Hold = true
			r.set([]fleet.Sync{*s})
		},
		"window": func(r *rig, _ *fleet.Sync) { r.accept("windows: {deny: [{cron: '* * * * *', duration: 1h}]}") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"changed", "deleted"}}, Drift: fleet.DriftReport}}
			s := r.bundle("shop", policies, configMap("changed", "k: want"), configMap("deleted", "k: want"), configMap("other", "k: want"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.patch("v1", "configmaps", "changed", "ana", `{"data":{"k":"mine"}}`)
			r.delete("v1", "configmaps", "deleted")
			leftSo := func(x fleet.SyncStatus) bool {
				return len(x.States) == 3 && x.States[0].Drift == fleet.DriftDrifted && x.States[1].LeftMissing()
			}
			r.wait("shop", "left so", func(x fleet.SyncStatus) bool { return x.Ready && leftSo(x) })
			shut(r, &s)
			hub := func(x fleet.SyncStatus) tracker.Tracker {
				return tracker.Fold(tracker.Input{Connected: true, Desired: &s, Observed: &x})
			}
			r.wait("shop", "held, and left so", func(x fleet.SyncStatus) bool {
				return x.Phase == fleet.PhaseHeld && leftSo(x) && hub(x).DoesWell() && hub(x).Fine()
			})
			r.patch("v1", "configmaps", "other", "ana", `{"data":{"k":"mine"}}`)
			r.wait("shop", "changed under the hold", func(x fleet.SyncStatus) bool {
				return x.States[2].Drift == fleet.DriftHeld && !hub(x).DoesWell()
			})
		})
	}
}

// TestDeletedUnderReport: what somebody deletes under a policy that leaves drift as it is stays deleted, which fails nothing,
// until a new revision lists it.
func TestDeletedUnderReport(t *testing.T) {
	for _, policy := range []string{fleet.DriftReport, fleet.DriftIgnore} {
		t.Run(policy, func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"a"}}, Drift: policy}}
			s := r.bundle("shop", policies, configMap("a", "k: v"), configMap("b", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.delete("v1", "configmaps", "a")
			left := func(x fleet.SyncStatus) bool {
				fold := tracker.Fold(tracker.Input{Desired: &s, Observed: &x, Connected: true})
				return len(x.States) == 2 && x.States[0].Health == fleet.HealthMissing && x.Ready && fold.Ready && fold.Health == fleet.HealthMissing
			}
			r.wait("shop", "ready without a", left)
			r.stop()
			r.statuses = map[fleet.ModuleRef]fleet.SyncStatus{}
			r.start()
			r.set([]fleet.Sync{s})
			r.wait("shop", "ready without a after a restart", left)
			if r.get("v1", "configmaps", "a") != nil {
				t.Fatal("made again by the same revision")
			}
			next := r.bundle("shop", policies, configMap("a", "k: v"), configMap("b", "k: w"))
			next.Revision = 2
			r.set([]fleet.Sync{next})
			r.wait("shop", "ready with all", func(x fleet.SyncStatus) bool {
				return x.Generation == next.Generation && x.Ready && x.States[0].Fine() && x.States[1].Fine()
			})
			if r.data("a", "k") != "v" {
				t.Error("a is not there")
			}
			s = r.bundle("shop", policies, configMap("a", "k: v"), configMap("b", "k: x"))
			s.Revision = 3
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.delete("v1", "configmaps", "a")
			r.wait("shop", "ready without what was there when the revision came", left)
			if r.get("v1", "configmaps", "a") != nil {
				t.Error("made again by a revision that had found it")
			}
		})
	}
}

// TestDeletedUnderReportWhileAnotherProgresses: what a policy leaves deleted is not why a module is not ready.
func TestDeletedUnderReportWhileAnotherProgresses(t *testing.T) {
	r := newRig(t)
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"a"}}, Drift: fleet.DriftReport}}
	s := r.bundle("shop", policies, configMap("a", "k: v"), // nobody gives the Service an address
		"apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: $NS}\nspec: {type: LoadBalancer, ports: [{port: 80}]}\n")
	r.set([]fleet.Sync{s})
	progressing := func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseApplied && len(x.States) == 2 && x.States[1].Health == fleet.HealthProgressing
	}
	r.wait("shop", "applied", progressing)
	r.delete("v1", "configmaps", "a")
	r.wait("shop", "progressing without a", func(x fleet.SyncStatus) bool {
		if !progressing(x) || !x.States[0].LeftMissing() {
			return false
		}
		fold := tracker.Fold(tracker.Input{Desired: &s, Observed: &x, Connected: true})
		if fold.Ready || tracker.Classify(fold) != tracker.Progressing {
			t.Errorf("%+v by %+v", fold, x)
		}
		return true
	})
}
