package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "towline.dev/towline/gen/towline/v1"
)

// These outputs are those of the design: columns, widths and alignment to the letter.

func same(t *testing.T, got, want string) {
	t.Helper()
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestSurfaceGetModules(t *testing.T) {
	hub := &fakeHub{modules: surfaceModules()}
	got := hub.run(t, run{}, "get", "modules")
	same(t, got.out, `
NAME      REVISION      CLUSTERS  UPDATED  HEALTHY  PROGR  BAD  AWAY  DRIFT  ROLLOUT                                  SINCE
base      r17                300      297      297      0    0     3      1  Succeeded, 3 deferred                    2d
edge-lb   r5                   3        -        0      0    0     3      -  Deleting: 36 objects in 3 away clusters  41m
payments  r7 (spec r8)       120      120      119      0    0     1      0  RolledBack payments/12 by maria          3h
shop      r41 → r42          300        3      295      1    1     3      3  Progressing shop/57: canary 1/2          6m12s
`)
	if got.err != "" || got.code != 0 {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
}

func TestSurfaceGetClusters(t *testing.T) {
	hub := &fakeHub{clusters: surfaceClusters(), info: &v1.GetServerInfoResponse{Version: "v1.4.2"}}
	same(t, hub.run(t, run{}, "get", "cl").out, `
NAME        STATE         LAST SEEN  MODULES    HEALTHY  DRIFT  HOLD                         AGENT     KUBERNETES
edge-112    Disconnected  14m ago          8  ? (was 8)      ?  -                            v1.3.0 !  v1.34.9
edge-113    Pending       never            0          -      -  token expires in 9m          -         -
prod-eu-01  Ready         now             12         12      0  -                            v1.4.2    v1.36.3
prod-eu-11  Ready         now             12         12      2  shop pinned r41 until 07-03  v1.4.2    v1.36.3
`)
}

func TestSurfaceRolloutStatus(t *testing.T) {
	hub := &fakeHub{rollouts: []*v1.Rollout{surfaceRollout()}}
	same(t, hub.run(t, run{}, "rollout", "status", "shop", "--watch=false").out, `
Rollout shop/57   r41 → r42   Progressing   6m12s   started by ci-shop: "shop 1.5.0 (PR 812)"
Failures 1, tolerated 1: one more rolls back 5 moved clusters.   Deadline 10m a cluster.   onFailure Rollback

STAGE      STATE        DONE   RUNNING  FAILED  DEFERRED  TO GO  LIMIT  PROGRESS
1 canary   Progressing    3/6        1       1         1      0    all  [###=x-]
  └ after  Pending                                                      soak 5m, then approval (0 of 1)
2 rest     Waiting      0/294        0       0         0    294     73  [......] needs stage canary

CLUSTER     STAGE   STATE        REV  FOR    WHAT
prod-eu-07  canary  Failed       r42  1m02s  Deployment shop/web: 0 of 3 ready; pod web-7d9f: ImagePullBackOff shop:1.5.0
prod-us-02  canary  Progressing  r42  4m41s  Deployment shop/web: 2 of 3 ready; deadline in 5m19s
edge-112    canary  Deferred     r41  14m    Disconnected; moves when it is back, through the same checks

Next   towline rollout rollback shop/57 --clusters failed     towline explain rollout shop
`)
}

func TestSurfaceExplainRollout(t *testing.T) {
	hub := &fakeHub{rollouts: []*v1.Rollout{surfaceRollout()}, reasons: surfaceReasons()}
	same(t, hub.run(t, run{}, "why", "rollout/shop").out, `
shop/57 is Progressing, in stage canary for 6m12s. It does not move on because:
  1  Stage canary is not done: 3 of 6 succeeded, 1 running, 1 failed, 1 deferred
     ├ prod-eu-07  Failed       ImagePullBackOff   since 03:13:13  image shop:1.5.0: not found
     ├ prod-us-02  Progressing  RolloutInProgress  since 03:08:03  2 of 3 pods ready            fails at 03:19:34
     └ edge-112    Deferred     Disconnected       since 03:00:15                               does not block
  2  then: soak 5m         starts when no cluster of canary is running
  3  then: approval (0/1)  not by ci-shop, who started it
  4  then: stage rest      294 clusters, 73 at a time (25% of 294, rounded down)
Budget    failures 1 of 1 tolerated, used by prod-eu-07. One more rolls back 5 moved clusters.
Next look 03:19:34 (deadline of prod-us-02), or at any report.
You can   towline rollout retry shop --cluster prod-eu-07      after the image is there
          towline rollout skip shop --cluster prod-us-02 -m …  go on without it; does not count as done
`)
}
