//go:build unix

package hub_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// process is a hub in a process of its own.
type process struct {
	cmd    *exec.Cmd
	listen string
	*client.Client
}

var servingAt = regexp.MustCompile(`msg=serving agents=(\S+)`)

func startProcess(t *testing.T, etcd string) (*process, string) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	p := &process{cmd: exec.CommandContext(t.Context(), self, "serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0",
		"--etcd-endpoints", "unix:"+etcd, "--share-etcd", "--grace", "1ms")}
	said, err := p.cmd.StderrPipe()
	must(t, err)
	must(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	lines := bufio.NewScanner(said)
	for p.listen == "" && lines.Scan() {
		if m := servingAt.FindStringSubmatch(lines.Text()); m != nil {
			p.listen = m[1]
		}
	}
	if p.listen == "" {
		t.Fatal("the hub does not serve")
	}
	go func() {
		for lines.Scan() {
			_ = lines.Text() // a full pipe would stop it
		}
	}()
	p.Client, err = client.Dial(t.Context(), client.Options{Config: filepath.Join(dir, hub.AdminFile)})
	must(t, err)
	return p, dir
}

// A hub that leads is paused as a whole, another one goes on, and the first wakes in the belief that it leads: nothing that it does then
// counts, and no agent is given anything older than it has.
func TestHubThatLeadsIsPausedAndWakes(t *testing.T) {
	etcd := ownEtcd(t)
	paused, ca := startProcess(t, etcd)
	w := newWorldWith(t, func(o *hub.Options) { o.EtcdEndpoints, o.ShareEtcd, o.CADir = []string{"unix:" + etcd}, true, ca })
	var mu sync.Mutex
	newest := map[string]uint64{}
	joins := func(name, at string) {
		w.enroll(name, nil)
		w.newAgent(name, simagent.Options{Took: func(a fleet.Assemblage) {
			mu.Lock()
			defer mu.Unlock()
			if a.Generation < newest[name] {
				t.Errorf("cluster %s was given generation %d after %d", name, a.Generation, newest[name])
			}
			newest[name] = a.Generation
		}})
		w.agents[name].Dial(at)
		w.reconnect(name)
	}
	joins("a", w.listen)
	joins("b", paused.listen)
	if s := w.await("shop", w.put(module("shop", configMap("1"))).GetRevision()).GetStatus(); s.GetSucceeded() != 2 {
		t.Fatalf("before: %v", s)
	}
	must(t, paused.cmd.Process.Signal(syscall.SIGSTOP))
	w.awaitCluster("b", "Disconnected")
	if s := w.await("shop", w.put(module("shop", configMap("2"))).GetRevision()).GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 {
		t.Fatalf("while it is paused: %v", s)
	}
	must(t, paused.cmd.Process.Signal(syscall.SIGCONT))
	w.awaitCluster("b", "Ready")
	put, err := paused.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: module("shop", configMap("3"))})
	must(t, err)
	if s := w.await("shop", put.GetRevision()).GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 2 {
		t.Errorf("after: %v", s)
	}
	if m := w.module("shop").GetStatus(); m.GetRevision() != 3 || m.GetHealthy() != 2 {
		t.Errorf("the module is %v", m)
	}
}
