package cli

import (
	"strings"
	"testing"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// What an agent says of its cluster as a whole stands under HOLD; one that does not see its cluster knows nothing as of now.
func TestConditionsOfClusters(t *testing.T) {
	cluster := func(name string, attention *v1.Note, conditions ...*v1.Condition) *v1.Cluster {
		return &v1.Cluster{Metadata: &v1.Metadata{Name: name}, Spec: &v1.ClusterSpec{}, Status: &v1.ClusterStatus{State: "Ready", LastSeen: ago(time.Second),
			Modules: 12, Healthy: 11, WasHealthy: 11, Drift: 1, Attention: attention, AgentVersion: "v1.4.2", KubernetesVersion: "v1.36.3", Conditions: conditions}}
	}
	blind := &v1.Condition{Type: "APIServerReachable", Status: "False", Reason: "NoAnswer", LastTransitionTime: ago(3 * time.Minute),
		Message: "the API server does not answer: connection refused"}
	hub := &fakeHub{info: &v1.GetServerInfoResponse{Version: "v1.4.2"}, clusters: []*v1.Cluster{
		cluster("blind", nil, blind),
		cluster("readonly", &v1.Note{Code: "StraySyncs", Facts: &v1.Facts{Count: 2}}, &v1.Condition{Type: "StateWritable", Status: "False", Reason: "ReadOnly", LastTransitionTime: ago(time.Hour)}),
	}}
	same(t, hub.run(t, run{}, "get", "clusters").out, `
NAME      STATE  LAST SEEN  MODULES     HEALTHY  DRIFT  HOLD                                                     AGENT   KUBERNETES
blind     Ready  now             12  ? (was 11)      ?  the API server does not answer: connection refused (3m)  v1.4.2  v1.36.3
readonly  Ready  now             12          11      1  StateWritable is False: ReadOnly (1h); 2 stray syncs     v1.4.2  v1.36.3
`)
	if out := hub.run(t, run{terminal: true, columns: 200}, "get", "clusters").out; !strings.Contains(out, "\x1b[31mthe API server does not answer") {
		t.Errorf("not in red: %q", out)
	}
	if out := hub.run(t, run{}, "explain", "cluster", "blind").out; !strings.Contains(out, "the API server does not answer: connection refused, since") {
		t.Errorf("explain: %s", out)
	}
}

// A policy of the cluster's own is told where one asks for the cluster; it is no matter for a person before it stops everything.
func TestLocalPolicyOfClusters(t *testing.T) {
	cluster := func(name string, c *v1.Condition) *v1.Cluster {
		c.Type, c.LastTransitionTime = "LocalPolicy", ago(time.Hour)
		return &v1.Cluster{Metadata: &v1.Metadata{Name: name}, Spec: &v1.ClusterSpec{}, Status: &v1.ClusterStatus{State: "Ready", LastSeen: ago(time.Second),
			AgentVersion: "v1.4.2", KubernetesVersion: "v1.36.3", Conditions: []*v1.Condition{c}}}
	}
	hub := &fakeHub{info: &v1.GetServerInfoResponse{Version: "v1.4.2"}, clusters: []*v1.Cluster{
		cluster("broken", &v1.Condition{Status: "False", Reason: "Broken", Message: "the cluster's own policy cannot be gone by"}),
		cluster("fine", &v1.Condition{Status: "True", Reason: "InForce", Message: "policy sha256:aa is in force"}),
	}}
	same(t, hub.run(t, run{}, "get", "clusters").out, `
NAME    STATE  LAST SEEN  MODULES  HEALTHY  DRIFT  HOLD                                             AGENT   KUBERNETES
broken  Ready  now              0        0      0  the cluster's own policy cannot be gone by (1h)  v1.4.2  v1.36.3
fine    Ready  now              0        0      0  -                                                v1.4.2  v1.36.3
`)
	if out := hub.run(t, run{}, "describe", "cluster", "fine").out; !strings.Contains(out, "policy sha256:aa is in force (1h)") {
		t.Errorf("describe: %s", out)
	}
	if out := hub.run(t, run{}, "get", "cluster", "fine", "-o", "yaml").out; !strings.Contains(out, "message: policy sha256:aa is in force") || !strings.Contains(out, "type: LocalPolicy") {
		t.Errorf("yaml: %s", out)
	}
	if out := hub.run(t, run{}, "explain", "cluster", "fine").out; strings.Contains(out, "policy") {
		t.Errorf("explain: %s", out)
	}
}

// Who is cordoned is connected, or it would be Disconnected: a watch, whose rows do not change with each heartbeat, says so, too.
func TestCordonedClusterIsSeenNow(t *testing.T) {
	a := &app{Streams: Streams{Now: func() time.Time { return now }, Zone: time.UTC}}
	if got := a.lastSeen(&v1.ClusterStatus{State: "Cordoned", LastSeen: ago(5 * time.Hour)}); got != "now" {
		t.Errorf("a cordoned cluster was seen last %s", got)
	}
}

// TestClusterThatIsNotThereIsNotFine: that no module and no condition speaks of a cluster does not say that nothing holds it back.
func TestClusterThatIsNotThereIsNotFine(t *testing.T) {
	cluster := func(name, state string) *v1.Cluster {
		return &v1.Cluster{Metadata: &v1.Metadata{Name: name}, Spec: &v1.ClusterSpec{}, Status: &v1.ClusterStatus{State: state}}
	}
	hub := &fakeHub{clusters: []*v1.Cluster{cluster("a", "Pending"), cluster("b", "Revoked"), cluster("c", "Removing")}}
	for name, want := range map[string]string{"a": "no agent has joined, and there is no token for one", "b": "its identity is revoked", "c": "it is forgotten when its agent has confirmed"} {
		if out := hub.run(t, run{}, "explain", "cluster", name).out; !strings.Contains(out, want) || strings.Contains(out, "Nothing holds it back") {
			t.Errorf("explain does not say %q: %s", want, out)
		}
	}
	if out := hub.run(t, run{}, "get", "clusters").out; !strings.Contains(out, "there is no token for one") {
		t.Errorf("get: %s", out)
	}
	if out := (&fakeHub{clusters: []*v1.Cluster{cluster("d", "Ready")}}).run(t, run{}, "explain", "cluster", "d").out; !strings.Contains(out, "Nothing holds it back") {
		t.Errorf("explain: %s", out)
	}
}

// A cluster that is cordoned and away, or not joined yet, is in that state, and its cordon, by which it will get nothing new, is among what keeps it.
func TestCordonOfAClusterInAnotherStateIsListed(t *testing.T) {
	cluster := func(state fleet.ClusterState, cordoned bool) *v1.Cluster {
		return &v1.Cluster{Metadata: &v1.Metadata{Name: strings.ToLower(string(state))}, Spec: &v1.ClusterSpec{Cordoned: new(cordoned)},
			Status: &v1.ClusterStatus{State: string(state), LastSeen: ago(time.Hour), Modules: 1, Away: true}}
	}
	for state, want := range map[fleet.ClusterState]bool{fleet.ClusterDisconnected: true, fleet.ClusterPending: true, fleet.ClusterCordoned: false} {
		hub := &fakeHub{info: &v1.GetServerInfoResponse{Version: "v1.4.2"}, clusters: []*v1.Cluster{cluster(state, true)}}
		if out := hub.run(t, run{}, "get", "clusters").out; strings.Contains(out, " cordoned  ") != want {
			t.Errorf("%s:\n%s", state, out)
		}
		hub.clusters = []*v1.Cluster{cluster(state, false)}
		if out := hub.run(t, run{}, "get", "clusters").out; strings.Contains(out, " cordoned  ") {
			t.Errorf("not cordoned:\n%s", out)
		}
	}
}
