package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/deploy"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// What is ordered of a cluster whose agent does not hear it now is not said to be done there.
func TestWhatIsOrderedOfWhoIsAwayIsDoneLater(t *testing.T) {
	state := func(name, state string, lock *v1.ClusterLock) *fakeHub {
		hub := fullHub()
		hub.clusters = []*v1.Cluster{{Metadata: &v1.Metadata{Name: name, Uid: "u-1"}, Status: &v1.ClusterStatus{State: state, Lock: lock}}}
		hub.holds[1].Cluster, hub.info.User = name, hub.holds[1].GetBy()
		return hub
	}
	for _, tc := range []struct {
		hub     *fakeHub
		command string
		want    string
	}{
		{state("a", "Disconnected", nil), "unhold freeze-1", "hold/freeze-1 ended; its agent is away: heard of there when it is back\n"},
		{state("a", "Ready", nil), "unhold freeze-1", "hold/freeze-1 ended\n"},
		{state("a", "Ready", nil), "hold cluster/a", "hold/h-9 put; end it with: towline unhold h-9\n"},
		{state("a", "Locked", &v1.ClusterLock{}), "hold cluster/a", "hold/h-9 put; end it with: towline unhold h-9\nWarning: it is locked: until it is unlocked the hold is not heard of there; the annotation towline.dev/hold holds an object at once\n"},
		{state("a", "Disconnected", nil), "hold cluster/a", "hold/h-9 put; end it with: towline unhold h-9\nWarning: its agent is away: until it is back the hold is not heard of there, what was told before goes on, and drift is corrected; the annotation towline.dev/hold holds an object at once\n"},
		{regressed(state("a", "Ready", nil)), "hold cluster/a", "hold/h-9 put; end it with: towline unhold h-9\nWarning: its agent is told nothing, for it has seen a newer store of the hub: until that is accepted the hold is not heard of there, what was told before goes on, and drift is corrected; the annotation towline.dev/hold holds an object at once\n"},
		{regressed(state("a", "Ready", nil)), "hold module/shop", "hold/h-9 put; end it with: towline unhold h-9\nWarning: 3 clusters are away, and 1 cluster is told nothing, for its agent has seen a newer store of the hub: until they are back and that is accepted the hold is not heard of there, what was told before goes on, and drift is corrected, except in one that is locked or revoked; the annotation towline.dev/hold holds an object at once\n"},
		{regressed(state("a", "Disconnected", nil)), "hold cluster/a", "hold/h-9 put; end it with: towline unhold h-9\nWarning: its agent is away: until it is back the hold is not heard of there, what was told before goes on, and drift is corrected; the annotation towline.dev/hold holds an object at once\n"},
		{regressed(state("a", "Ready", nil)), "cluster cordon a", "cluster/a cordoned; enters shop; leaves team/base, which removes 12 objects, or hands them to modules that list them; its agent is told nothing, for it has seen a newer store of the hub, so that is done when that is accepted\n"},
		{state("a", "Removing", nil), "cluster remove a --force", "cluster/a removed; its agent is told nothing any more and keeps everything there, so run this in the cluster, with the namespace that the agent has:" + removeAgent + "\n"},
		{away(state("a", "Removing", nil)), "cluster remove a --force", "cluster/a removed; its agent is told nothing any more and keeps everything there, so run this in the cluster, with the namespace that the agent has:" + removeAgent +
			"\nWarning: cluster a: its agent is away; if it was told to delete what the modules have there, it goes on with that until you have removed it\n"},
		{regressed(state("a", "Removing", nil)), "hold cluster/a", "hold/h-9 put; end it with: towline unhold h-9\nWarning: its agent is told nothing, for it has seen a newer store of the hub: until that is accepted the hold is not heard of there, what was told before goes on, and drift is corrected; the annotation towline.dev/hold holds an object at once\n"},
		{ofBefore(state("a", "Removing", nil)), "hold cluster/a", "hold/h-9 put; end it with: towline unhold h-9\nWarning: its agent is away: until it is back the hold is not heard of there, what was told before goes on, and drift is corrected; the annotation towline.dev/hold holds an object at once\n"},
		{state("a", "Ready", nil), "cluster lock a", "cluster/a locked; let its agent in again with: towline cluster unlock a\n"},
		{state("a", "Locked", &v1.ClusterLock{}), "cluster remove a --objects=delete --yes", "cluster/a removing; it is locked, and what the modules have there is deleted when it is unlocked\n"},
		{state("a", "Revoked", nil), "cluster remove a", "cluster/a removed; its agent is told nothing any more and keeps everything there, so run this in the cluster, with the namespace that the agent has:" + removeAgent + "\n"},
		{state("a", "Pending", nil), "cluster remove a", "cluster/a removed; no agent had joined\n"},
		{state("a", "Disconnected", nil), "cluster cordon a", "cluster/a cordoned; enters shop; leaves team/base, which removes 12 objects, or hands them to modules that list them; its agent is away, so that is done when it is back\n"},
		{state("a", "Ready", nil), "cluster cordon a", "cluster/a cordoned; enters shop; leaves team/base, which removes 12 objects, or hands them to modules that list them\n"},
		{asking(state("a", "Ready", nil)), "cluster cordon a", "cluster/a cordoned; enters shop; leaves team/base, which removes 12 objects, or hands them to modules that list them; that waits for a confirm: towline get holds -A\n"},
	} {
		if got := tc.hub.run(t, run{}, strings.Fields(tc.command)...); got.code != 0 || got.out+got.err != tc.want {
			t.Errorf("%s: %d\n%s%s want\n%s", tc.command, got.code, got.out, got.err, tc.want)
		}
	}
}

// ofBefore is the answer of a hub that tells only by what it knew last that a cluster is away.
func ofBefore(h *fakeHub) *fakeHub {
	h.clusters[0].Status.WasHealthy = 2
	return h
}

// regressed is the answer of a hub whose store was put back, and is older than what the agent has seen.
func regressed(h *fakeHub) *fakeHub {
	h.clusters[0].Status.Attention = &v1.Note{Code: fleet.AttentionRegressed}
	h.trackers = []*v1.Tracker{{Cluster: "a", Reason: fleet.TrackerCannotAssign}} // a reason of its own goes over that
	for _, m := range h.modules {
		m.Status.Away++ // it is counted with those of which nothing is known
		m.Status.Ahead++
	}
	return h
}

// TestWhoIsAheadIsNotSaidToBeAway: agents that have seen a newer store of the hub are there, and what ends it is no return of theirs.
func TestWhoIsAheadIsNotSaidToBeAway(t *testing.T) {
	m := &v1.Module{Metadata: &v1.Metadata{Name: "shop", Project: "default"}, Spec: &v1.ModuleSpec{}, Status: &v1.ModuleStatus{Clusters: 3, Healthy: 0, Away: 3, Ahead: 3, Objects: 36,
		Conditions: []*v1.Condition{{Type: "Ready", Status: fleet.ConditionUnknown, Reason: fleet.ReadyRegressed}}}}
	all := &fakeHub{modules: []*v1.Module{m}}
	one := &fakeHub{modules: []*v1.Module{proto.CloneOf(m)}}
	one.modules[0].Status.Ahead = 1
	goes := &fakeHub{modules: []*v1.Module{proto.CloneOf(m)}}
	goes.modules[0].Metadata.DeletionTimestamp = ago(time.Minute)
	some := &fakeHub{modules: []*v1.Module{proto.CloneOf(goes.modules[0])}}
	some.modules[0].Status.Ahead = 1
	for _, tc := range []struct {
		hub           *fakeHub
		command, want string
		not           string
	}{
		{all, "describe module shop", "3: 0 healthy, 0 progressing, 0 bad, 0 away, 3 ahead of the hub's store; 0 updated", ""},
		{one, "describe module shop", "3: 0 healthy, 0 progressing, 0 bad, 2 away, 1 ahead of the hub's store; 0 updated", ""},
		{all, "describe module shop", "3 of 3 clusters have seen a newer store of the hub than there is, and are told nothing until that is accepted (towline restore accept), or they join again: how the module stands is not known", "3 away"},
		{one, "describe module shop", "1 of 3 clusters have seen a newer store of the hub than there is, and are told nothing until that is accepted (towline restore accept), or they join again: how the module stands is not known, 2 away", ""},
		{all, "explain module shop", "0 bad, 0 away, 3 ahead of the hub's store", ""},
		{all, "explain module shop", "until that is accepted (towline restore accept)", ""},
		{goes, "get modules", "Deleting: 36 objects in 3 clusters, 3 ahead of the hub's store: towline restore accept", "away cluster"},
		{some, "get modules", "Deleting: 36 objects in 3 clusters, 2 away, 1 ahead of the hub's store: towline restore accept", "away cluster"},
	} {
		out := tc.hub.run(t, run{}, strings.Fields(tc.command)...).out
		if said := strings.Join(strings.Fields(out), " "); !strings.Contains(said, tc.want) || tc.not != "" && strings.Contains(said, tc.not) {
			t.Errorf("%s: want %q, not %q:\n%s", tc.command, tc.want, tc.not, out)
		}
	}
}

// asking is the answer of a hub that asks a person before a module leaves a cluster.
func asking(h *fakeHub) *fakeHub {
	h.putPlan = proto.CloneOf(h.putPlan)
	h.putPlan.Asks = h.putPlan.GetLeaves()
	return h
}

func away(h *fakeHub) *fakeHub {
	h.clusters[0].Status.Away = true
	return h
}

// What is known of a cluster whose agent is not there, or of which nobody knows, is no number as of now.
func TestWhatIsKnownOfWhoIsAway(t *testing.T) {
	cluster := func(name string, s *v1.ClusterStatus) *v1.Cluster {
		s.Modules, s.LastSeen = 2, ago(10*time.Second)
		return &v1.Cluster{Metadata: &v1.Metadata{Name: name}, Spec: &v1.ClusterSpec{}, Status: s}
	}
	trouble := []*v1.Condition{{Type: "StateWritable", Status: "False", Reason: "ReadOnly", LastTransitionTime: ago(time.Hour)}}
	expected := &v1.Note{Code: fleet.AttentionStrays, Facts: &v1.Facts{Count: 2}}
	hub := &fakeHub{clusters: []*v1.Cluster{
		cluster("damaged", &v1.ClusterStatus{State: "Damaged"}),
		cluster("gone", &v1.ClusterStatus{State: "Disconnected", Away: true, Conditions: trouble, Attention: expected}),
		cluster("leaves", &v1.ClusterStatus{State: "Removing", Away: true}),
		cluster("new", &v1.ClusterStatus{State: "Ready", WasHealthy: 2}),
		cluster("stranger", &v1.ClusterStatus{State: "Unregistered"}),
	}}
	same(t, hub.run(t, run{}, "get", "clusters").out, `
NAME      STATE         LAST SEEN  MODULES    HEALTHY  DRIFT  HOLD                                                                 AGENT  KUBERNETES
damaged   Damaged       now              2          ?      ?  -                                                                    -      -
gone      Disconnected  10s ago          2  ? (was 0)      ?  2 stray syncs; as last heard: StateWritable is False: ReadOnly (1h)  -      -
leaves    Removing      10s ago          2  ? (was 0)      ?  -                                                                    -      -
new       Ready         now              2  ? (was 2)      ?  -                                                                    -      -
stranger  Unregistered  now              2          ?      ?  -                                                                    -      -
`)
	ahead := &fakeHub{clusters: []*v1.Cluster{cluster("ahead", &v1.ClusterStatus{State: "Ready", Attention: &v1.Note{Code: fleet.AttentionRegressed}})}}
	if row := strings.Join(strings.Fields(ahead.run(t, run{}, "get", "clusters", "--no-headers").out), " "); !strings.HasPrefix(row, "ahead Ready now 2 ? ? ") {
		t.Errorf("one that is ahead of the hub's store: %s", row)
	}
	if out := ahead.run(t, run{}, "explain", "cluster", "ahead").out; !strings.Contains(out, "of its 2 modules nothing is known") {
		t.Errorf("explain of one that is ahead of the hub's store: %s", out)
	}
	if out := hub.run(t, run{}, "explain", "cluster", "gone").out; !strings.Contains(out, "as last heard: StateWritable is False") {
		t.Errorf("explain: %s", out)
	}
}

// A list of what is in some state now says of how many clusters nobody knows that, also when it is empty.
func TestListsByStateSayWhoIsAway(t *testing.T) {
	for command, want := range map[string]string{
		"get objects --health Degraded":  "No objects in project default; 3 clusters away: unknown.\n",
		"get objects --reason OOMKilled": "No objects in project default; 3 clusters away: unknown.\n",
		"get trackers --health Degraded": "No trackers in project default; 3 clusters away: unknown.\n",
		"get trackers":                   "No trackers in project default.\n",
	} {
		hub := fullHub()
		hub.objects, hub.trackers = nil, nil
		if got := hub.run(t, run{}, strings.Fields(command)...); got.out+got.err != want {
			t.Errorf("%s: %s%s want %s", command, got.out, got.err, want)
		}
	}
	for command, want := range map[string]string{
		"get objects --health Degraded":  "2 objects in 2 clusters; 3 clusters away: unknown.",
		"get objects --drift=Conflict":   "2 objects in 2 clusters; 3 clusters away: unknown.",
		"get objects":                    "2 objects in 2 clusters; 3 clusters away: as last heard.",
		"get trackers --health Degraded": "3 trackers; 3 clusters away: unknown.",
	} {
		if got := fullHub().run(t, run{terminal: true, columns: 110}, strings.Fields(command)...); !strings.Contains(got.err, want) {
			t.Errorf("%s: %s want %s", command, got.err, want)
		}
	}
}

// TestWhatIsLeftIsNotSaidToGo: of a module that leaves its objects, whose agent has not taken that yet, nothing is said to go.
func TestWhatIsLeftIsNotSaidToGo(t *testing.T) {
	a := &app{}
	for reason, want := range map[string]string{
		fleet.TrackerRemoving:  "goes, or stays as its policy says, when its agent takes the removal",
		fleet.TrackerReleasing: "stays, without our marks, when its agent takes the removal",
	} {
		if got := a.objectSays(&v1.Object{Extra: true, Reason: reason}); got != want {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
	if got := partSays(&v1.Tracker{}, &v1.TrackerRevision{Leaving: 3, Reason: fleet.TrackerReleasing}); got != "3 to stay, without our marks" {
		t.Errorf("the revision: %q", got)
	}
}

// TestRemoveAgentLeavesTheNamespace: the lines that a person pastes into a cluster delete what the agent's installation has, by name, and nothing
// else: a hub may live in the namespace.
func TestRemoveAgentLeavesTheNamespace(t *testing.T) {
	if strings.Contains(removeAgent, "delete namespace") {
		t.Errorf("deletes the namespace:%s", removeAgent)
	}
	for _, o := range []deploy.AgentOptions{{}, {Restricted: true}, {DaemonSet: true}} {
		o.Hubs, o.Token = []string{"hub:7443"}, "t"
		objects, err := deploy.AgentObjects(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			if object.GetKind() != "Namespace" && !slices.ContainsFunc(strings.Split(removeAgent, "\n"), func(line string) bool { return deletes(line, object) }) {
				t.Errorf("leaves %s %s:%s", object.GetKind(), object.GetName(), removeAgent)
			}
		}
	}
}

// deletes reports that a line of kubectl deletes the object by its name.
func deletes(line string, object *unstructured.Unstructured) bool {
	words := strings.Fields(line)
	verb := slices.Index(words, "delete")
	if verb < 0 || verb+2 >= len(words) || slices.Contains(words, "-n") != (object.GetNamespace() != "") {
		return false
	}
	return slices.Contains(strings.Split(words[verb+1], ","), strings.ToLower(object.GetKind())) && slices.Contains(words[verb+2:], object.GetName())
}

// What is listed without being a cluster of the hub is not made one by a word that is to change a cluster: nobody has given it labels, and it is
// to join.
func TestWhatIsUnregisteredIsNotChanged(t *testing.T) {
	hub := &fakeHub{putPlan: &v1.PutClusterResponse{Result: "created"}, clusters: []*v1.Cluster{{Metadata: &v1.Metadata{Name: "stranger"}, Status: &v1.ClusterStatus{State: stateUnregistered}}}}
	for _, command := range []string{"cluster label stranger env=prod --yes", "cluster cordon stranger", "cluster uncordon stranger", "cluster join stranger --reissue"} {
		got := hub.run(t, run{}, strings.Fields(command)...)
		if put := asked[*v1.PutClusterRequest](hub); got.code != exitFailed || put != nil || asked[*v1.JoinClusterRequest](hub) != nil || !strings.Contains(got.err, "cluster stranger: its agent comes") || !strings.Contains(got.err, "towline cluster join stranger") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; the hub was asked %v", command, got.code, got.out, got.err, put)
		}
	}
}
