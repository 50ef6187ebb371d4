package sim

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/jointoken"
)

// asks calls the hub, which answers.
func (w *world) asks(what string, call func(context.Context) error) {
	w.t.Helper()
	must(w.t, w.insist(what, call))
}

// issue has a cluster get a join token, and puts it where its agent finds it.
func (w *world) issue(cluster string, reissue bool) {
	w.t.Helper()
	w.asks("join", func(ctx context.Context) error {
		got, err := w.Clusters.JoinCluster(ctx, &towlinev1.JoinClusterRequest{Name: cluster, Reissue: reissue})
		if err == nil {
			w.boxes[cluster].putToken(got.GetToken())
		}
		return err
	})
}

// stateOf is a cluster's.
func (w *world) stateOf(cluster string) (state string) {
	w.t.Helper()
	w.asks("get", func(ctx context.Context) error {
		got, err := w.Clusters.GetCluster(ctx, &towlinev1.GetClusterRequest{Name: cluster})
		state = got.GetCluster().GetStatus().GetState()
		return err
	})
	return state
}

// unused counts the join tokens that no agent has come with.
func (w *world) unused() (n int) {
	w.t.Helper()
	w.asks("tokens", func(ctx context.Context) error {
		got, err := w.Identity.ListTokens(ctx, &towlinev1.ListTokensRequest{})
		n = 0
		for _, x := range got.GetTokens() {
			if x.GetState() != "Used" {
				n++
			}
		}
		return err
	})
	return n
}

// TestNewTokenReachesARunningAgent: a new join token is put where the agent was started with another one, as kubectl apply puts it into the
// Secret that is mounted there. The agent is not started anew; it has left the fleet, or is refused, or is welcome. Within the token's life it
// has come with it, and follows the hub.
func TestNewTokenReachesARunningAgent(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dir, nil)
		puts := 0
		follows := func() {
			t.Helper()
			puts++
			w.judge.wish(func(x *wish) { x.modules["one"] = want{number: puts, letters: "ab"} })
			_ = w.put("one", want{number: puts, letters: "ab"}, "", false)
			if wrong := w.healthyWithin(2 * time.Minute); wrong != "" {
				t.Errorf("put %d: %s", puts, wrong)
			}
		}
		follows()
		for _, course := range []struct {
			name    string
			before  func(cluster string)
			reissue bool
		}{
			{"removed", func(cluster string) {
				w.asks("remove", func(ctx context.Context) error {
					_, err := w.Clusters.RemoveCluster(ctx, &towlinev1.RemoveClusterRequest{Name: cluster, Objects: fleet.LeaveKeep})
					return err
				})
			}, false},
			{"revoked", func(cluster string) {
				w.asks("revoke", func(ctx context.Context) error {
					_, err := w.Clusters.RevokeCluster(ctx, &towlinev1.RevokeClusterRequest{Name: cluster, Reason: "a copy is suspected"})
					return err
				})
			}, true},
			{"welcome", func(string) {}, true},
		} {
			const cluster = "east"
			course.before(cluster)
			pause(5 * time.Minute)
			w.issue(cluster, course.reissue)
			pause(3 * time.Minute)
			if state, unused := w.stateOf(cluster), w.unused(); state != string(fleet.ClusterReady) || unused > 0 {
				t.Errorf("%s: the cluster is %s, and %d tokens are unused", course.name, state, unused)
			}
			follows()
			if starts := w.boxes[cluster].starts; starts != 1 {
				t.Errorf("%s: the agent was started %d times", course.name, starts)
			}
		}
		for _, f := range w.judge.found {
			t.Error(f)
		}
	})
}

// TestTokenIsRedeemedWhereOneHubIsDown: an agent is started with a new join token and an identity that holds. The hub that it asks first is
// down; its session is with another one, and lasts. The token is redeemed all the same, before it expires.
func TestTokenIsRedeemedWhereOneHubIsDown(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dir, nil)
		pause(time.Minute)
		const cluster = "east"
		b := w.boxes[cluster]
		b.kill("to come with a new token")
		b.hubs = append([]string{"down:7443"}, slices.Repeat(b.hubs, 99)...) // a session may begin with any
		w.issue(cluster, true)
		b.again()
		pause(5 * time.Minute)
		if state, unused := w.stateOf(cluster), w.unused(); state != string(fleet.ClusterReady) || unused > 0 {
			t.Errorf("the cluster is %s, and %d tokens are unused", state, unused)
		}
		for _, f := range w.judge.found {
			t.Error(f)
		}
	})
}

// TestAgentThatCannotRedeemItsTokenStaysConnected: an agent that has an identity gets a new join token while it cannot write its state, so that it
// cannot redeem it. It goes on with what it has, and redeems the token when it can.
func TestAgentThatCannotRedeemItsTokenStaysConnected(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dir, nil)
		pause(time.Minute)
		const cluster = "east"
		w.boxes[cluster].fill(true)
		w.issue(cluster, true)
		pause(3 * time.Minute)
		if state, unused := w.stateOf(cluster), w.unused(); state != string(fleet.ClusterReady) || unused != 1 {
			t.Errorf("without a state the cluster is %s, and %d tokens are unused", state, unused)
		}
		w.boxes[cluster].fill(false)
		pause(10 * time.Minute)
		if state, unused := w.stateOf(cluster), w.unused(); state != string(fleet.ClusterReady) || unused != 0 {
			t.Errorf("then the cluster is %s, and %d tokens are unused", state, unused)
		}
		for _, f := range w.judge.found {
			t.Error(f)
		}
	})
}

// TestTokenFileIsEmptied: somebody empties the file with the join token of an agent that has joined. It starts anew with the identity that it has.
func TestTokenFileIsEmptied(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dir, nil)
		pause(time.Minute)
		b := w.boxes["east"]
		b.kill("to start with an empty token file")
		b.putToken("")
		b.again()
		w.judge.wish(func(x *wish) { x.modules["one"] = want{number: 1, letters: "ab"} })
		_ = w.put("one", want{number: 1, letters: "ab"}, "", false)
		if wrong := w.healthyWithin(2 * time.Minute); wrong != "" {
			t.Error(wrong)
		}
		for _, f := range w.judge.found {
			t.Error(f)
		}
	})
}

// TestAnswerToAJoinIsLost: an agent that is welcome gets a new join token, the hub redeems it, which ends the identity that the agent has, and the answer
// does not arrive; or it does, and the agent cannot write its state just then. The agent comes with the new identity and not with the other one, by
// which it would be refused: it keeps its cluster, and the hub tells nobody to stop it.
func TestAnswerToAJoinIsLost(t *testing.T) {
	const cluster = "east"
	for name, loses := range map[string]func(w *world){
		"lost": func(w *world) { w.net.Cut(cluster, agentsAddress) },
		"not saved": func(w *world) {
			w.boxes[cluster].fill(true)
			pause(10 * time.Second)
			w.boxes[cluster].fill(false)
		},
	} {
		dir := t.TempDir()
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, dir, nil)
				w.judge.wish(func(x *wish) { x.modules["one"] = want{number: 1, letters: "ab"} })
				_ = w.put("one", want{number: 1, letters: "ab"}, "", false)
				w.rests()
				back := Link{From: agentsAddress, To: cluster}
				w.net.Set(back, Condition{Delay: 2 * time.Second}) // so that the answer is under way when the token is seen as used
				w.issue(cluster, true)
				for n := 0; w.unused() > 0; n++ {
					if n > 600 {
						t.Fatal("the token is not redeemed")
					}
					pause(100 * time.Millisecond)
				}
				loses(w)
				w.net.Set(back, Condition{})
				w.boxes[cluster].server.Drop("configmaps", "default", "a")
				pause(15 * time.Second)
				if w.boxes[cluster].server.Get("configmaps", "default", "a") == nil {
					t.Error("what somebody deleted is not there again")
				}
				pause(2 * time.Minute)
				w.asks("get", func(ctx context.Context) error {
					got, err := w.Clusters.GetCluster(ctx, &towlinev1.GetClusterRequest{Name: cluster})
					if s := got.GetCluster().GetStatus(); err == nil && (s.GetAttention().GetCode() != "" || s.GetState() != string(fleet.ClusterReady)) {
						t.Errorf("the cluster is %s, and says %v", s.GetState(), s.GetAttention())
					}
					return err
				})
				for _, f := range w.judge.found {
					t.Error(f)
				}
			})
		})
	}
}

// TestTokenOfAnotherHubLeavesTheSession: somebody puts a join token that another hub made where an agent runs that is welcome, as one that is kept with its
// manifests. It is tried some times, and then the session is left alone. The next token, of the right hub, is redeemed as any.
func TestTokenOfAnotherHubLeavesTheSession(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dir, nil)
		const cluster = "east"
		epoch := func() (epoch uint64) {
			w.asks("get", func(ctx context.Context) error {
				got, err := w.Clusters.GetCluster(ctx, &towlinev1.GetClusterRequest{Name: cluster})
				epoch = got.GetCluster().GetStatus().GetEpoch()
				return err
			})
			return epoch
		}
		pause(time.Minute)
		first := epoch()
		w.boxes[cluster].putToken(jointoken.New(cluster, [32]byte{1}).String())
		pause(time.Hour)
		tried := epoch()
		pause(2 * time.Hour)
		if got := epoch(); tried == first || got != tried {
			t.Errorf("the epoch was %d, is %d after an hour, and %d after another two", first, tried, got)
		}
		w.issue(cluster, true)
		pause(3 * time.Minute)
		if state, unused := w.stateOf(cluster), w.unused(); state != string(fleet.ClusterReady) || unused > 0 {
			t.Errorf("the cluster is %s, and %d tokens are unused", state, unused)
		}
		for _, f := range w.judge.found {
			t.Error(f)
		}
	})
}
