package hub_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/testkit/simagent"
)

// command runs towline-hub and returns what it prints.
func command(ctx context.Context, args ...string) (string, error) {
	c := hub.Command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(ctx)
	return out.String(), err
}

// backup saves the store of the hub, which runs.
func (w *world) backup() string {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "hub.db")
	out, err := command(w.ctx, "backup", "--data-dir", w.dir, "--to", file)
	must(w.t, err)
	if !strings.Contains(out, "ca.key") {
		w.t.Errorf("what is not in the backup is not said: %s", out)
	}
	return file
}

// restore puts a backup in the place of the store of the hub, which is stopped, and starts the hub.
func (w *world) restore(file string) {
	w.t.Helper()
	out, err := command(w.ctx, "restore", "--data-dir", w.dir, "--from", file, "--replace")
	must(w.t, err)
	if !strings.Contains(out, "the store that was there is in ") || !strings.Contains(out, "revoked") || !strings.Contains(out, "towline get rollouts") {
		w.t.Errorf("restore says: %s", out)
	}
	w.start()
}

func (w *world) restored() *towlinev1.Restore {
	w.t.Helper()
	got, err := w.Store.GetRestore(w.ctx, &towlinev1.GetRestoreRequest{})
	must(w.t, err)
	return got.GetRestore()
}

func (w *world) regressed(name string) bool {
	w.t.Helper()
	said := w.cluster(name).GetStatus().GetAttention()
	return said.GetCode() == fleet.AttentionRegressed && said.GetFacts().GetDetail() != ""
}

// A backup is taken while the hub runs, and restored. Agents that have seen nothing of what came after it follow the restored store by
// themselves; the others keep what they hold until a person accepts it, once for all of them.
func TestRestoreOfABackup(t *testing.T) {
	w := newWorld(t, false)
	w.join("same", nil, nil)
	w.join("newer", nil, nil)
	w.join("later", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	file := w.backup()
	if r := w.restored(); r != nil {
		t.Errorf("a store that was never restored: %v", r)
	}
	w.stops["same"]()
	w.stops["later"]()
	w.awaitCluster("same", "Disconnected")
	w.awaitCluster("later", "Disconnected")
	w.put(module("shop", configMap("2")))
	w.until("shop", 2, func(*towlinev1.Rollout) bool { return w.held("newer", "shop").Revision == 2 })
	held := w.agents["newer"].Held()
	w.stopAll()
	w.restore(file)

	same := w.reconnect("same")
	w.reconnect("newer")
	w.eventually(func() bool { return w.regressed("newer") })
	if got := same.Held(); len(got.Syncs) == 0 {
		t.Error("an agent that has seen nothing newer holds nothing")
	}
	if now := w.agents["newer"].Held(); now.Digest != held.Digest || now.Generation != held.Generation {
		t.Errorf("an agent that is ahead was sent generation %d over %d", now.Generation, held.Generation)
	}
	if r := w.restored(); !slices.Equal(r.GetAhead(), []string{"newer"}) || r.GetAcceptedBy() != "" {
		t.Errorf("restored: %v", r)
	}

	// Nobody knows what one that is ahead has: it is not on its way, for it is told nothing.
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool {
		c := s.GetConditions()[0]
		return s.GetClusters() == 3 && s.GetHealthy() == 1 && s.GetAway() == 2 && s.GetAhead() == 1 && s.GetProgressing() == 0 &&
			c.GetStatus() == fleet.ConditionUnknown && c.GetReason() == fleet.ReadyRegressed
	})

	_, err := w.Store.AcceptRestore(w.ctx, &towlinev1.AcceptRestoreRequest{})
	must(t, err)
	w.eventually(func() bool { return w.held("newer", "shop").Revision == 1 && !w.regressed("newer") })
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { // with a cluster that is only away
		return s.GetHealthy() == 2 && s.GetAway() == 1 && s.GetAhead() == 0 && s.GetConditions()[0].GetStatus() == fleet.ConditionTrue
	})
	w.reconnect("later") // days after, as it were
	w.eventually(func() bool { return w.held("later", "shop").Revision == 1 && !w.regressed("later") })
	if r := w.restored(); len(r.GetAhead()) > 0 || r.GetAcceptedBy() == "" {
		t.Errorf("accepted: %v", r)
	}
	w.await("shop", w.put(module("shop", configMap("3"))).GetRevision())
	for _, name := range []string{"same", "newer", "later"} { // one that is connecting anew just then has it when it is back
		w.eventually(func() bool { return w.held(name, "shop").Revision == 2 })
	}
}

// TestAcceptedRestoreOfOneThatIsAway: an agent that is ahead of a restored store and goes away is only away once a person has accepted that.
func TestAcceptedRestoreOfOneThatIsAway(t *testing.T) {
	w := newWorld(t, false)
	w.join("same", nil, nil)
	w.join("newer", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	file := w.backup()
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	w.stopAll()
	w.restore(file)

	w.reconnect("newer")
	w.eventually(func() bool { return w.regressed("newer") })
	w.stops["newer"]()
	w.awaitCluster("newer", "Disconnected")
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetAhead() == 1 })
	w.stops["same"]() // as a gate of a pipeline, which sees what is there and nothing else
	w.reconnect("same")
	_, err := w.Store.AcceptRestore(w.ctx, &towlinev1.AcceptRestoreRequest{})
	must(t, err)
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool {
		return s.GetHealthy() == 1 && s.GetAway() == 1 && s.GetAhead() == 0 && s.GetConditions()[0].GetStatus() == fleet.ConditionTrue
	})
	if w.regressed("newer") {
		t.Error("people are still told to accept what they have accepted")
	}
	w.reconnect("newer")
	w.eventually(func() bool { return w.held("newer", "shop").Revision == 1 })
}

// renew gives an agent, which is stopped, a certificate of a later second than the one that it has.
func (w *world) renew(name string) {
	w.t.Helper()
	first, err := w.ids[name].Renew(w.ctx, w.listen)
	must(w.t, err)
	w.eventually(func() bool {
		next, err := w.ids[name].Renew(w.ctx, w.listen)
		must(w.t, err)
		return next.After(first)
	})
}

// The backup is older than the last renewals of certificates: nobody joins again for it. What was revoked in the backup stays so.
func TestRestoreOfABackupBeforeARenewal(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.join("revoked", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.stops["revoked"]()
	w.renew("revoked")
	_, err := w.Clusters.RevokeCluster(w.ctx, &towlinev1.RevokeClusterRequest{Name: "revoked"})
	must(t, err)
	file := w.backup()
	w.stops["a"]()
	w.renew("a")
	w.reconnect("a")
	w.stopAll()
	w.restore(file)

	w.reconnect("a")
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	if _, err := w.ids["a"].Renew(w.ctx, w.listen); err != nil {
		t.Errorf("the renewal after it: %v", err)
	}
	if _, err := w.ids["revoked"].Renew(w.ctx, w.listen); err == nil {
		t.Error("a cluster that was revoked in the backup is let in")
	}
}

// The same backup is restored once more: who followed the first restore is ahead of the second.
func TestBackupIsRestoredTwice(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	file := w.backup()
	w.stopAll()
	w.restore(file)
	w.reconnect("a")
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	w.stopAll()
	w.restore(file)
	w.reconnect("a")
	w.eventually(func() bool { return w.regressed("a") })
	_, err := w.Store.AcceptRestore(w.ctx, &towlinev1.AcceptRestoreRequest{})
	must(t, err)
	w.eventually(func() bool { return w.held("a", "shop").Revision == 1 })
}

// What cannot be restored is refused with what to do, and nothing that is there is touched.
func TestRestoreThatIsRefused(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	file := w.backup()
	refused := func(want string, args ...string) {
		t.Helper()
		if out, err := command(w.ctx, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q; it prints %s", args, err, want, out)
		}
	}
	data, err := os.ReadFile(file)
	must(t, err)
	cut, changed := filepath.Join(t.TempDir(), "cut"), filepath.Join(t.TempDir(), "changed")
	must(t, os.WriteFile(cut, data[:len(data)-4096], 0o600))
	data[len(data)/2] ^= 1
	must(t, os.WriteFile(changed, data, 0o600))

	refused("the file is there", "backup", "--data-dir", w.dir, "--to", file)
	refused("another process uses this directory", "restore", "--data-dir", w.dir, "--from", file, "--replace")
	w.stopAll()
	refused("--replace takes it aside", "restore", "--data-dir", w.dir, "--from", file)
	refused("is no file that can be read", "restore", "--data-dir", w.dir, "--from", w.dir, "--replace")
	refused("restore from "+cut, "restore", "--data-dir", w.dir, "--from", cut, "--replace")
	refused("restore from "+changed, "restore", "--data-dir", w.dir, "--from", changed, "--replace")
	refused("give either --from, or --etcd-endpoints", "restore", "--data-dir", w.dir)
	w.start()
	w.reconnect("a")
	if r := w.restored(); r != nil || w.module("shop").GetStatus().GetRevision() != 1 {
		t.Errorf("a restore that was refused: %v", r)
	}
	_, err = w.Store.AcceptRestore(w.ctx, &towlinev1.AcceptRestoreRequest{})
	if err == nil || !strings.Contains(err.Error(), "nothing to accept") {
		t.Errorf("a store that was not restored is accepted: %v", err)
	}
	w.stopAll()
	part, err := filepath.Glob(file + ".part-*")
	if must(t, err); len(part) > 0 {
		t.Errorf("left behind: %v", part)
	}
	// A restore that was killed after it took the store aside: a hub does not begin with an empty one.
	must(t, os.Rename(filepath.Join(w.dir, "etcd", "etcd"), filepath.Join(w.dir, "etcd", "restoring")))
	refused("a restore of the store did not end", "serve", "--data-dir", w.dir, "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0")
	out, err := command(w.ctx, "restore", "--data-dir", w.dir, "--from", file)
	if err != nil {
		t.Errorf("again: %v\n%s", err, out)
	}
	w.start()
}

// rolloutOf is the newest rollout of a module as it is now.
func (w *world) rolloutOf(name string) *towlinev1.RolloutStatus {
	w.t.Helper()
	got, err := w.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: name})
	must(w.t, err)
	return got.GetRollout().GetStatus()
}

// standing waits until the newest rollout of a module stands still because of the restore.
func (w *world) standing(name string) {
	w.t.Helper()
	w.eventually(func() bool { return w.rolloutOf(name).GetReason() == rollout.ReasonRestored })
}

// A hub that was restored stands still while a cluster is ahead of the backup, or was not heard: rollouts and removals that were under way in
// the backup do not go on, nor does what a person puts now. A person's word has all go on.
func TestRestoredStoreStandsStill(t *testing.T) {
	for name, say := range map[string]func(*world) error{
		"accepted": func(w *world) error {
			_, err := w.Store.AcceptRestore(w.ctx, &towlinev1.AcceptRestoreRequest{})
			return err
		},
		"resumed": func(w *world) error {
			_, err := w.Store.ResumeRestore(w.ctx, &towlinev1.ResumeRestoreRequest{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { restoredStoreStandsStill(t, name, say) })
	}
}

// TestRestoredStoreGivesNoOtherRevision: what a cluster could not be assigned when the backup was made may have been taken back since, so
// that it is not made up for by a label before the restore is settled.
func TestRestoredStoreGivesNoOtherRevision(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.join("gone", nil, map[string]string{"region": "us"})
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	m := module("shop", configMap("${REGION}"))
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "REGION", ClusterLabel: "region"}}
	w.put(m)
	w.awaitTracker("shop", "a", "without a value", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "CannotAssign" })
	file := w.backup()
	w.stopAll()
	w.restore(file)
	w.reconnect("a")
	w.put(listing("early", "c"))
	w.standing("early")
	w.labelled("a", map[string]string{"region": "eu"})
	w.put(listing("new", "c"))
	w.standing("new")
	if got := w.held("a", "shop").Revision; got != 1 {
		t.Errorf("it was given revision %d", got)
	}
	_, err := w.Store.AcceptRestore(w.ctx, &towlinev1.AcceptRestoreRequest{})
	must(t, err)
	w.eventually(func() bool { return w.held("a", "shop").Revision == 2 })
}

// TestRestoredStoreMixesNoVariants: a label that a person gives while a restored store stands counts at once, but where it selects another
// variant, too, the variant and the values come together when all goes on: in what was rendered for other labels the values are nobody's.
func TestRestoredStoreMixesNoVariants(t *testing.T) {
	w := newWorld(t, false)
	eu, us := map[string]string{"region": "eu"}, map[string]string{"region": "us"}
	w.join("a", nil, eu)
	w.join("gone", nil, eu)
	in := func(m *towlinev1.Module) *towlinev1.Module {
		m.Spec.Bindings = []*towlinev1.Binding{{Name: "CLUSTER", ClusterLabel: "region"}}
		return m
	}
	shop := in(overriding("region=us: a=us b"))
	shop.Spec.Overrides[0].AllowEmpty = true
	w.await("shop", w.put(shop).GetRevision())
	w.await("where", w.put(in(module("where", configMap("${CLUSTER}")))).GetRevision())
	had := w.held("a", "shop")
	file := w.backup()
	w.stopAll()
	w.restore(file)
	w.reconnect("a")
	for _, l := range []map[string]string{us, {"region": "asia"}, us} {
		w.labelled("a", l)
		w.eventually(func() bool { return w.held("a", "where").Values["CLUSTER"] == l["region"] })
		if s := w.held("a", "shop"); s.Bundle == had.Bundle && s.Values["CLUSTER"] == "us" {
			t.Errorf("it has what was rendered for eu, with the values %v", s.Values)
		}
	}
	_, err := w.Store.AcceptRestore(w.ctx, &towlinev1.AcceptRestoreRequest{})
	must(t, err)
	w.eventually(func() bool {
		s := w.held("a", "shop")
		return s.Bundle != had.Bundle && s.Values["CLUSTER"] == "us" && s.Revision == 1
	})
}

func restoredStoreStandsStill(t *testing.T, how string, say func(*world) error) {
	w := newWorld(t, false)
	strategy := canaryThenRest()
	strategy.Stages[1].MaxConcurrency = "" // who is ahead takes nothing, and nobody waits for it
	var ready atomic.Bool
	w.join("canary", func(s fleet.Sync) fleet.SyncStatus {
		if s.Module.Name == "shop" && s.Revision == 2 && !ready.Load() {
			return applying(s)
		}
		return simagent.Ready(s)
	}, labels("canary"))
	w.join("ahead", nil, nil)
	w.join("gone", nil, nil)
	w.join("late", nil, nil)
	w.await("old", w.put(listing("old", "a")).GetRevision())
	w.await("shop", w.put(staged("shop", "1", strategy)).GetRevision())
	w.stops["late"]()
	w.awaitCluster("late", "Disconnected")
	_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "old"})
	must(t, err)
	for _, name := range []string{"ahead", "gone", "canary"} { // an end of a removal that the backup does not have would be something newer
		w.eventually(func() bool { return w.held(name, "old").Revision == 0 && len(w.agents[name].Held().Tombstones) == 0 })
	}
	w.put(staged("shop", "2", strategy))
	w.eventually(func() bool { return w.held("canary", "shop").Revision == 2 })
	file := w.backup()
	w.stops["gone"]()
	w.stops["canary"]()
	w.awaitCluster("canary", "Disconnected")
	w.put(listing("other", "b"))
	w.eventually(func() bool { return w.held("ahead", "other").Revision == 1 })
	w.stopAll()
	w.restore(file)

	ready.Store(true)
	w.reconnect("canary")
	late := w.reconnect("late")
	w.reconnect("ahead")
	w.standing("shop")
	w.eventually(func() bool { return w.regressed("ahead") })
	w.eventually(func() bool { return len(late.Held().Tombstones) == 1 && w.rolloutOf("shop").GetSucceeded() == 1 })
	if r := w.restored(); !r.GetStands() || !slices.Equal(r.GetAhead(), []string{"ahead"}) || !slices.Equal(r.GetUnheard(), []string{"gone"}) {
		t.Errorf("restored: %v", r)
	}
	put := w.put(listing("new", "c"))
	if !slices.ContainsFunc(put.GetWarnings(), func(n *towlinev1.Note) bool { return n.GetCode() == fleet.WarnRestored }) {
		t.Errorf("a put is not warned: %v", put.GetWarnings())
	}
	w.standing("new")
	if x := late.Held().Tombstones[0]; !x.Hold {
		t.Errorf("a module is removed: %+v", x)
	}
	if w.held("late", "shop").Revision != 1 || w.held("canary", "new").Revision != 0 {
		t.Errorf("it moved on: %+v", late.Held().Syncs)
	}

	must(t, say(w))
	w.eventually(func() bool { return w.held("late", "shop").Revision == 2 && w.held("canary", "new").Revision == 1 })
	w.eventually(func() bool { return len(late.Held().Tombstones) == 0 })
	if how == "accepted" { // between the two it is on its way back, and not heard
		w.eventually(func() bool { return w.held("ahead", "shop").Revision == 2 && !w.regressed("ahead") })
	}
	r := w.restored()
	if r.GetStands() || r.GetSettledBy() == "" || !slices.Equal(r.GetUnheard(), []string{"gone"}) {
		t.Errorf("%s: %v", how, r)
	}
	if how == "resumed" && (!slices.Equal(r.GetAhead(), []string{"ahead"}) || !w.regressed("ahead")) {
		t.Errorf("who is ahead was told to go on: %v", r)
	}
}

// A restore is settled by itself when every cluster was heard and none is ahead; those that are ahead, or away for good, may be accepted one
// by one.
func TestRestoreSettlesByItself(t *testing.T) {
	w := newWorld(t, false)
	w.join("same", nil, nil)
	w.join("ahead", nil, nil)
	w.join("gone", nil, nil)
	_, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "never"})
	must(t, err)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	file := w.backup()
	w.stops["same"]()
	w.stops["gone"]()
	w.awaitCluster("same", "Disconnected")
	w.awaitCluster("gone", "Disconnected")
	w.put(module("shop", configMap("2")))
	w.eventually(func() bool { return w.held("ahead", "shop").Revision == 2 })
	w.stopAll()
	w.restore(file)
	w.reconnect("ahead")
	w.reconnect("same")
	w.eventually(func() bool { return w.regressed("ahead") })
	accept := func(names ...string) *towlinev1.Restore {
		t.Helper()
		got, err := w.Store.AcceptRestore(w.ctx, &towlinev1.AcceptRestoreRequest{Clusters: names})
		must(t, err)
		return got.GetRestore()
	}
	if _, err := w.Store.AcceptRestore(w.ctx, &towlinev1.AcceptRestoreRequest{Clusters: []string{"nobody"}}); status.Code(err) != codes.NotFound {
		t.Errorf("a cluster that there is not: %v", err)
	}
	if r := accept("ahead"); !r.GetStands() || r.GetAcceptedBy() != "" || !slices.Equal(r.GetAcceptedClusters(), []string{"ahead"}) {
		t.Errorf("one accepted: %v", r)
	}
	w.eventually(func() bool { return w.held("ahead", "shop").Revision == 1 && !w.regressed("ahead") })
	if r := w.restored(); !r.GetStands() || !slices.Contains(r.GetUnheard(), "gone") || len(r.GetAhead()) > 0 {
		t.Errorf("one is left: %v", r)
	}
	// The hub is started anew meanwhile.
	w.stopAll()
	w.start()
	w.put(module("shop", configMap("3")))
	w.standing("shop")
	w.reconnect("same")
	accept("gone")
	w.eventually(func() bool { return !w.restored().GetStands() })
	w.eventually(func() bool { return w.held("same", "shop").Revision == 2 })
	if r := w.restored(); r.GetSettled() == nil || r.GetSettledBy() != "" {
		t.Errorf("settled: %v", r)
	}
	w.reconnect("gone")
	w.reconnect("ahead")
	w.eventually(func() bool { return w.held("gone", "shop").Revision == 2 && w.held("ahead", "shop").Revision == 2 })
}
