package sim

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// damagesIdentity changes a bit of the Secret that has the agent's identity, or deletes it.
func (b *box) damagesIdentity(gone bool) {
	b.w.t.Helper()
	d := fleet.DigestOf([]byte("identity"))
	name := "towline-state-" + hex.EncodeToString(d[:16])
	secret := b.server.Get("secrets", agent.DefaultNamespace, name)
	data, _, _ := unstructured.NestedString(secret.Object, "data", "data")
	raw, err := base64.StdEncoding.DecodeString(data)
	must(b.w.t, err)
	if gone {
		b.server.Drop("secrets", agent.DefaultNamespace, name)
		return
	}
	raw[len(raw)/2] ^= 1
	must(b.w.t, unstructured.SetNestedField(secret.Object, base64.StdEncoding.EncodeToString(raw), "data", "data"))
	b.server.Replace("secrets", secret)
}

// TestAgentGoesOnWithoutItsIdentity: an agent starts whose identity is damaged, or gone; the rest of its state is whole. It keeps its cluster as it
// was told last, unless it was refused, and comes back with a new join token, for which it need not be started anew.
func TestAgentGoesOnWithoutItsIdentity(t *testing.T) {
	for name, c := range map[string]struct{ gone, revoked bool }{"damaged": {}, "gone": {gone: true}, "damaged, and revoked": {revoked: true}} {
		dir := t.TempDir()
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, dir, nil)
				w.judge.wish(func(x *wish) { x.modules["one"] = want{number: 1, letters: "ab"} })
				_ = w.put("one", want{number: 1, letters: "ab"}, "", false)
				w.rests()
				const cluster = "east"
				b := w.boxes[cluster]
				if c.revoked {
					w.asks("revoke", func(ctx context.Context) error {
						_, err := w.Clusters.RevokeCluster(ctx, &towlinev1.RevokeClusterRequest{Name: cluster})
						return err
					})
					pause(time.Minute)
				}
				b.kill("to lose its identity")
				<-b.process().ended
				b.damagesIdentity(c.gone)
				b.server.Drop("configmaps", "default", "a")
				b.again()
				pause(10 * time.Minute)
				if there := b.server.Get("configmaps", "default", "a") != nil; there == c.revoked {
					t.Errorf("what somebody deleted is there: %v", there)
				}
				w.issue(cluster, true)
				pause(3 * time.Minute)
				if state, unused := w.stateOf(cluster), w.unused(); state != string(fleet.ClusterReady) || unused > 0 || b.starts != 2 {
					t.Errorf("the cluster is %s, %d tokens are unused, and the agent was started %d times", state, unused, b.starts)
				}
				if wrong := w.healthyWithin(2 * time.Minute); wrong != "" {
					t.Error(wrong)
				}
				for _, f := range w.judge.found {
					t.Error(f)
				}
			})
		})
	}
}

// TestAgentWithoutItsIdentityLeaves: a cluster is to leave, its agent has begun to delete what it has, and starts anew with an identity that is damaged and the
// join token that it came with, which no hub takes again. It deletes all that it was told to, and goes on running.
func TestAgentWithoutItsIdentityLeaves(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dir, nil)
		w.judge.wish(func(x *wish) { x.modules["one"] = want{number: 1, letters: "ab"} })
		_ = w.put("one", want{number: 1, letters: "ab"}, "", false)
		w.rests()
		const cluster = "east"
		b := w.boxes[cluster]
		b.deny(true)
		w.leave(cluster, false)
		pause(time.Minute)
		b.kill("to lose its identity")
		<-b.process().ended
		b.damagesIdentity(false)
		b.deny(false)
		b.again()
		pause(10 * time.Minute)
		for _, name := range []string{"a", "b"} {
			if b.server.Get("configmaps", "default", name) != nil {
				t.Errorf("%s is there", name)
			}
		}
		select {
		case <-b.process().ended:
			t.Error("the agent has ended by itself")
		default:
		}
		for _, f := range w.judge.found {
			t.Error(f)
		}
	})
}
