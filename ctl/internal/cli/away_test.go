package cli

import (
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
)

// What is ordered of a cluster whose agent does not hear it now is not said to be done there.
func TestWhatIsOrderedOfWhoIsAwayIsDoneLater(t *testing.T) {
	state := func(name, state string, lock *v1.ClusterLock) *fakeHub {
		hub := fullHub()
		hub.clusters = []*v1.Cluster{{Metadata: &v1.Metadata{Name: name, Uid: "u-1"}, Status: &v1.ClusterStatus{State: state, Lock: lock}}}
		hub.holds[1].Cluster = name
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
		{state("a", "Ready", nil), "cluster lock a", "cluster/a locked; let its agent in again with: towline cluster unlock a\n"},
		{state("a", "Locked", &v1.ClusterLock{}), "cluster remove a --objects=delete --yes", "cluster/a removing; it is locked, and what the modules have there is deleted when it is unlocked\n"},
		{state("a", "Revoked", nil), "cluster remove a", "cluster/a removed; its agent is told nothing any more and keeps everything there, so run this in the cluster:" + removeAgent + "\n"},
		{state("a", "Pending", nil), "cluster remove a", "cluster/a removed; no agent had joined\n"},
		{state("a", "Disconnected", nil), "cluster cordon a", "cluster/a cordoned; enters shop; leaves team/base, which removes 12 objects; its agent is away, so that is done when it is back\n"},
		{state("a", "Ready", nil), "cluster cordon a", "cluster/a cordoned; enters shop; leaves team/base, which removes 12 objects\n"},
	} {
		if got := tc.hub.run(t, run{}, strings.Fields(tc.command)...); got.code != 0 || got.out+got.err != tc.want {
			t.Errorf("%s: %d\n%s%s want\n%s", tc.command, got.code, got.out, got.err, tc.want)
		}
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
