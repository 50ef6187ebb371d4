package hub_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// outsider is what a program that is not ours gets: an address, the hub's CA and a bearer token.
type outsider struct {
	address, caFile, token string
	ca                     []byte
}

func (w *world) outsider(name, role string) outsider {
	w.t.Helper()
	user, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: name, Role: role})
	must(w.t, err)
	data, err := os.ReadFile(filepath.Join(w.dir, hub.AdminFile))
	must(w.t, err)
	var config struct{ Contexts []struct{ CAData string } }
	must(w.t, yaml.Unmarshal(data, &config))
	ca, err := base64.StdEncoding.DecodeString(config.Contexts[0].CAData)
	must(w.t, err)
	file := filepath.Join(w.t.TempDir(), "ca.pem")
	must(w.t, os.WriteFile(file, ca, 0o600))
	return outsider{address: w.apiAddr, caFile: file, token: user.GetToken(), ca: ca}
}

// midway is a hub with its store on disk and a rollout whose first of two clusters is on its way until finish is called.
func midway(t *testing.T) (w *world, finish func()) {
	t.Helper()
	w = newWorld(t, false)
	w.grace = 20 * time.Second // after the restart it waits for the agents
	var done atomic.Bool
	report := func(s fleet.Sync) fleet.SyncStatus {
		if s.Revision == 2 && !done.Load() {
			return fleet.SyncStatus{}
		}
		return simagent.Ready(s)
	}
	w.join("a", report, labels("canary"))
	w.join("b", report, labels("rest"))
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	put := w.put(staged("shop", "2", canaryThenRest()))
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return running(r) == "a" })
	return w, func() {
		done.Store(true)
		go func() {
			often := time.NewTicker(50 * time.Millisecond)
			defer often.Stop()
			for w.ctx.Err() == nil {
				for _, c := range []string{"a", "b"} {
					_ = w.agents[c].Again() // an agent that is not back yet tells later
				}
				<-often.C
			}
		}()
	}
}

func running(r *towlinev1.Rollout) string {
	var out []string
	for _, c := range r.GetStatus().GetClusters() {
		if c.GetState() == "Progressing" {
			out = append(out, c.GetCluster())
		}
	}
	return strings.Join(out, " ")
}

func (w *world) restart() {
	w.t.Helper()
	w.stopHub()
	w.start()
}

// TestGoProgramWatchesARolloutThroughARestart: pkg/client in a program with a viewer's token. Nothing is missed and
// nothing comes twice: each change of a subject begins where the one before ended.
func TestGoProgramWatchesARolloutThroughARestart(t *testing.T) {
	begun := time.Now()
	w, finish := midway(t)
	me := w.outsider("dashboard", "viewer")
	broke := make(chan struct{}, 10)
	c, err := client.Dial(w.ctx, client.Options{Server: me.address, CA: me.ca, Token: me.token, OnBreak: func(error) { broke <- struct{}{} }})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	at := map[string]string{}
	first := make(chan struct{})
	ended := make(chan error, 1)
	var last *towlinev1.Rollout
	go func() {
		ended <- c.WatchRollout(w.ctx, &towlinev1.WatchRolloutRequest{Module: "shop"}, func(r *towlinev1.WatchRolloutResponse) error {
			if last == nil {
				close(first)
			} else if proto.Equal(last.GetStatus(), r.GetRollout().GetStatus()) {
				t.Errorf("came twice: %v", last.GetStatus())
			}
			last = r.GetRollout()
			for _, e := range r.GetEvents() {
				of := e.GetSubject().GetKind() + "/" + e.GetSubject().GetName() + e.GetSubject().GetPosition()
				if e.GetSubject().GetKind() == "Rollout" {
					of = "Rollout" // of one
				}
				if at[of] != e.GetFrom() || e.GetFrom() == e.GetTo() {
					t.Errorf("%s was %q, and now goes from %q to %q", of, at[of], e.GetFrom(), e.GetTo())
				}
				at[of] = e.GetTo()
				if at := e.GetAt().AsTime(); e.GetTo() == "Succeeded" && (at.Before(begun) || at.After(time.Now())) {
					t.Errorf("%s is %s at %s", e.GetSubject(), e.GetTo(), at)
				}
			}
			return nil
		})
	}()
	<-first
	w.restart()
	<-broke
	finish()
	must(t, <-ended)
	if s := last.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 2 {
		t.Errorf("ended as %v", s)
	}
	for subject, want := range map[string]string{"Rollout": "Succeeded", "Stage/canary": "Succeeded", "Stage/rest": "Succeeded",
		"Cluster/a": "Succeeded", "Cluster/b": "Succeeded"} {
		if at[subject] != want {
			t.Errorf("the events of %s end with %s", subject, at[subject])
		}
	}
}

// grpcurl is the tool, built if it is not there.
func grpcurl(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("..")
	must(t, err)
	path := filepath.Join(root, "bin", "tools", "grpcurl")
	cmd := exec.CommandContext(t.Context(), "make", "-s", "-C", root, path)
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("grpcurl cannot be built here: %v\n%s", err, out)
	}
	return path
}

// watched is a message of WatchRollout as grpcurl prints it.
type watched struct {
	ResumeToken string
	Ended       bool
	Rollout     struct {
		ID     string
		Status struct {
			State     string
			Succeeded int
			Clusters  []struct{ Cluster, State string }
		}
	}
}

// TestGrpcurlWatchesARolloutThroughARestart: no code of ours at all, only reflection and a bearer token.
func TestGrpcurlWatchesARolloutThroughARestart(t *testing.T) {
	tool := grpcurl(t)
	w, finish := midway(t)
	me := w.outsider("script", "viewer")
	command := func(token string, args ...string) *exec.Cmd {
		flags := []string{"-cacert", me.caFile}
		if token != "" {
			flags = append(flags, "-H", "authorization: Bearer "+token)
		}
		return exec.CommandContext(w.ctx, tool, append(flags, args...)...)
	}

	out, err := command(me.token, me.address, "list").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "towline.v1.RolloutService\n") || !strings.Contains(string(out), "towline.v1.AssignmentService\n") {
		t.Fatalf("list: %v\n%s", err, out)
	}
	out, err = command(me.token, me.address, "describe", "towline.v1.RolloutService.WatchRollout").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "stream .towline.v1.WatchRolloutResponse") {
		t.Errorf("describe: %v\n%s", err, out)
	}
	if out, err := command("", me.address, "list").CombinedOutput(); err == nil {
		t.Errorf("without a token: %s", out)
	}
	out, err = command(me.token, "-d", `{"module":"shop"}`, me.address, "towline.v1.RolloutService/AbortRollout").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "PermissionDenied") {
		t.Errorf("a viewer aborts: %v\n%s", err, out)
	}

	var token string
	state := watchByGrpcurl(t, command, me, "", func(m watched) bool {
		token = m.ResumeToken
		return m.Rollout.Status.State == "Progressing"
	}, func() { w.stopHub() })
	if state.Ended || token == "" {
		t.Fatalf("before the restart: %+v", state)
	}
	w.start()
	finish()
	messages := 0
	state = watchByGrpcurl(t, command, me, token, func(watched) bool { messages++; return false }, nil)
	if !state.Ended || state.Rollout.ID != "shop/2" || state.Rollout.Status.State != "Succeeded" || state.Rollout.Status.Succeeded != 2 {
		t.Errorf("after %d messages it ended as %+v", messages, state)
	}
}

// watchByGrpcurl reads the messages of one call to its end, and returns the last. then runs when enough is true for the
// first time.
func watchByGrpcurl(t *testing.T, command func(string, ...string) *exec.Cmd, me outsider, resume string, enough func(watched) bool, then func()) watched {
	t.Helper()
	cmd := command(me.token, "-d", fmt.Sprintf(`{"module": "shop", "resumeToken": %q}`, resume), me.address, "towline.v1.RolloutService/WatchRollout")
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	must(t, cmd.Start())
	messages := json.NewDecoder(stdout)
	var last watched
	for {
		var m watched
		if err := messages.Decode(&m); err != nil {
			if err != io.EOF {
				t.Errorf("grpcurl printed what is no JSON: %v", err)
			}
			break
		}
		last = m
		if enough(m) && then != nil {
			then()
			then = nil
		}
	}
	err = cmd.Wait()
	if broken := !last.Ended; broken != (err != nil) {
		t.Errorf("grpcurl ended with %v, the last message was ended=%t\n%s", err, last.Ended, stderr.String())
	}
	if !last.Ended && !strings.Contains(stderr.String(), "Unavailable") {
		t.Errorf("a hub that stops says: %s", stderr.String())
	}
	return last
}
