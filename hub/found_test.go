package hub_test

import (
	"errors"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/testkit/simagent"
)

// What people who used a hub found wrong, held through the API and the command line of a running one.

const found = `{apiVersion: towline.dev/v1, kind: Module, metadata: {name: shop}, spec: {placement: {selector: {matchLabels: {env: dev}}},
  rollout: {stages: [{name: all}]}, source: {inline: {files: {a.yaml: "{apiVersion: v1, kind: ConfigMap, metadata: {name: web, namespace: default}}"}}}}}`

// exits is the exit code of a command that has run.
func exits(t *testing.T, err error) int {
	t.Helper()
	var e *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &e):
		t.Fatal(err)
	}
	return e.ExitCode()
}

// TestPutThatReachesNobodyWaits: a rollout in which nothing has run has not succeeded, whether its only cluster has not joined
// yet or is away. Whoever waits is told for whom, and it goes on when that cluster is there.
func TestPutThatReachesNobodyWaits(t *testing.T) {
	w := newWorld(t, true)
	towline := w.cli()
	w.enroll("a", map[string]string{"env": "dev"})
	out, err := towline(found, "apply", "-f", "-", "--wait", "--fail-on-wait", "--timeout", "30s")
	if exits(t, err) != 3 || !strings.Contains(out, "no cluster of stage all has shown that r1 works: a deferred") {
		t.Errorf("%v\n%s", err, out)
	}
	s := w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" }).GetStatus()
	if s.GetReason() != rollout.ReasonAllDeferred || len(s.GetFacts().GetClusters()) != 1 || s.GetFacts().GetClusters()[0] != "a" || s.GetEnded() != nil {
		t.Errorf("before it has joined: %v", s)
	}
	w.connect("a", nil)
	w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Succeeded" })
	w.leaves("a")
	out, err = towline(strings.Replace(found, "name: web", "name: other", 1), "apply", "-f", "-", "--wait", "--fail-on-wait", "--timeout", "30s")
	if exits(t, err) != 3 || !strings.Contains(out, "AllDeferred") && !strings.Contains(out, "r2 works: a deferred") {
		t.Errorf("with all of them away: %v\n%s", err, out)
	}
}

// TestWaitOfWhatIsNotDelivered: a put that selects nobody, and one whose deletions wait for a person, are no success of the
// command that waits; what it prints releases them.
func TestWaitOfWhatIsNotDelivered(t *testing.T) {
	w := newWorld(t, true)
	towline := w.cli()
	out, err := towline(found, "apply", "-f", "-", "--wait", "--timeout", "30s")
	if exits(t, err) != 1 || !strings.Contains(out, "the placement selects no cluster") {
		t.Errorf("no cluster: %v\n%s", err, out)
	}
	w.join("a", func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		if s.Revision == 2 && !s.PruneConfirmed {
			st.Extras = []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "web"}, Version: "v1", Held: true}}
		}
		return st
	}, map[string]string{"env": "dev"})
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 1 })
	if out, err = towline(strings.Replace(found, "name: web", "name: other", 1), "apply", "-f", "-", "--wait", "--timeout", "30s"); exits(t, err) != 3 || !strings.Contains(out, "towline confirm prune-") {
		t.Errorf("deletions wait: %v\n%s", err, out)
	}
	ids, err := towline("", "get", "holds", "-o", "name")
	must(t, err)
	if out, err := towline("", "confirm", strings.TrimSpace(ids), "--yes"); err != nil {
		t.Errorf("confirm %s: %v\n%s", ids, err, out)
	}
	w.eventually(func() bool { return w.held("a", "shop").PruneConfirmed })
}

// TestWhatIsNotMeantIsRefused: a field that the hub does not know, a pin of a cluster that there is not.
func TestWhatIsNotMeantIsRefused(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	req := &towlinev1.GetModuleRequest{Name: "shop"}
	req.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1))
	if _, err := w.Modules.GetModule(w.ctx, req); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a field that there is not: %v", err)
	}
	if _, err := w.Rollouts.PinClusters(w.ctx, &towlinev1.PinClustersRequest{Module: "shop", Clusters: []string{"b"}}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("a pin of no cluster: %v", err)
	}
}

// TestStopsAreListed: what somebody stopped in a cluster stands in the lists that people look at.
func TestStopsAreListed(t *testing.T) {
	w := newWorld(t, true)
	towline := w.cli()
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	for _, args := range [][]string{{"hold", "cluster/a", "-m", "night"}, {"rollout", "pin", "shop", "--cluster", "a"}, {"cluster", "cordon", "a"}} {
		if out, err := towline("", args...); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	for want, args := range map[string][]string{
		"Cordoned":           {"get", "clusters"},
		"held by admin":      {"get", "clusters"},
		"shop pinned r1":     {"get", "clusters"},
		"night":              {"get", "holds"},
		"held in 1 cluster":  {"get", "modules"},
		"no new revisions":   {"explain", "cluster", "a"},
		"towline unhold fre": {"explain", "cluster", "a"},
	} {
		if out, err := towline("", args...); err != nil || !strings.Contains(out, want) {
			t.Errorf("%v does not say %q: %v\n%s", args, want, err, out)
		}
	}
}

// wireTap lies between agents and a hub. Once it is cut nothing gets through, and no end is told it.
type wireTap struct {
	listener net.Listener
	cut      chan struct{}
	once     sync.Once
}

func tap(t *testing.T, to string) *wireTap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	x := &wireTap{listener: l, cut: make(chan struct{})}
	var open sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); x.silence(); open.Wait() })
	open.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			t.Cleanup(func() { _, _ = in.Close(), out.Close() })
			go x.pass(in, out)
			go x.pass(out, in)
		}
	})
	return x
}

func (x *wireTap) silence() { x.once.Do(func() { close(x.cut) }) }

// pass copies until the tap is cut, and leaves the connections open then.
func (x *wireTap) pass(from io.Reader, to io.Writer) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		select {
		case <-x.cut:
			return
		default:
		}
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// TestLastSeenIsOfTheLastWord: who falls silent was seen last when it said its last word, not when that was noticed. And after a
// restart an agent that is there is seen now.
func TestLastSeenIsOfTheLastWord(t *testing.T) {
	const beat = time.Second
	w := newWorldWith(t, func(o *hub.Options) { o.Memory, o.Heartbeat = false, beat })
	w.enroll("a", nil)
	x := tap(t, w.listen)
	a := simagent.New(simagent.Options{Hub: x.listener.Addr().String(), Identity: w.ids["a"], Fetch: true, Reconnect: time.Hour})
	w.agents["a"], w.stops["a"] = a, w.run(a)
	w.awaitCluster("a", "Ready")
	x.silence()
	said := time.Now()
	w.awaitCluster("a", "Disconnected")
	noticed := time.Since(said)
	if seen := w.cluster("a").GetStatus().GetLastSeen().AsTime(); noticed < beat || seen.After(said.Add(beat/2)) {
		t.Errorf("silent since %s, which was noticed after %s: seen last %s later", said, noticed, seen.Sub(said))
	}
	w.stops["a"]()

	w.stopHub()
	w.start()
	back := time.Now()
	w.connect("a", nil)
	if seen := w.cluster("a").GetStatus().GetLastSeen().AsTime(); seen.Before(back) {
		t.Errorf("it is there since %s, and was seen last %s before", back, back.Sub(seen))
	}
}
