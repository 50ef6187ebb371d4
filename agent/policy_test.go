package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/agent/internal/report"
	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/agent/internal/worker"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
)

const policyHead = "apiVersion: towline.dev/v1\nkind: AgentPolicy\n"

// mounted is a directory as a ConfigMap is mounted: the file is a link into one that is swapped as a whole.
type mounted struct {
	t   *testing.T
	dir string
	n   int
}

func (m *mounted) path() string { return filepath.Join(m.dir, "policy.yaml") }

func (m *mounted) put(text string) {
	m.t.Helper()
	m.n++
	data := filepath.Join(m.dir, "..data-"+strings.Repeat("x", m.n))
	for _, err := range []error{os.Mkdir(data, 0o700), os.WriteFile(filepath.Join(data, "policy.yaml"), []byte(text), 0o600),
		os.Symlink(data, filepath.Join(m.dir, "..tmp")), os.Rename(filepath.Join(m.dir, "..tmp"), filepath.Join(m.dir, "..data"))} {
		if err != nil {
			m.t.Fatal(err)
		}
	}
	if m.n == 1 {
		if err := os.Symlink(filepath.Join("..data", "policy.yaml"), m.path()); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *mounted) remove() {
	m.t.Helper()
	if err := os.Remove(filepath.Join(m.dir, "..data")); err != nil {
		m.t.Fatal(err)
	}
}

func told(holds *report.Conditions) string {
	var all []string
	for _, c := range holds.All() {
		all = append(all, string(c.Type)+"="+c.Status+" "+c.Reason+": "+c.Message)
	}
	return strings.Join(all, "; ")
}

// TestPolicyFileIsFollowed: a change of the file counts within seconds, and one that is broken or gone denies everything and says
// why; a window's edge is said, too.
func TestPolicyFileIsFollowed(t *testing.T) {
	dir := &mounted{t: t, dir: t.TempDir()}
	synctest.Test(t, func(t *testing.T) {
		holds := report.NewConditions()
		f := &policyFile{path: dir.path(), conditions: holds, log: slog.New(slog.DiscardHandler), signs: make(chan struct{}, 1)}
		var is atomic.Pointer[worker.Accepts]
		var times atomic.Int32
		f.current(func(a worker.Accepts) {
			is.Store(&a)
			times.Add(1)
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.run(ctx) }()
		expect := func(broken bool, want string) {
			t.Helper()
			_ = backoff.Wait(ctx, policyEvery+time.Millisecond) // virtual time
			synctest.Wait()
			if now := is.Load(); (now.Broken != "") != broken || (now.Policy == nil) != broken {
				t.Errorf("accepts %+v", now)
			}
			if got := told(holds); !strings.HasPrefix(got, "LocalPolicy="+want) {
				t.Errorf("told %q, want %q", got, want)
			}
		}
		expect(true, "False Broken: the cluster's own policy cannot be gone by, so nothing is changed: "+dir.path()+": open ")
		if f.mayRead("logs") == nil || f.mayRead("preview") != nil {
			t.Error("a policy that cannot be gone by lets logs be read, or keeps a diff from being made")
		}
		dir.put(policyHead + "denyReads: [logs]\n")
		expect(false, "True InForce")
		if f.mayRead("logs") == nil || f.mayRead("events") != nil {
			t.Error("denyReads: logs are read, or events are not")
		}
		dir.put(policyHead)
		expect(false, "True InForce: policy sha256:"+fleet.DigestOf([]byte(policyHead)).String()+" is in force")
		since := times.Load()
		expect(false, "True InForce")
		if times.Load() != since {
			t.Error("it was told again though nothing changed")
		}
		dir.put(policyHead + "maxObjects: 5\n")
		expect(false, "True InForce: policy sha256:"+fleet.DigestOf([]byte(policyHead+"maxObjects: 5\n")).String())
		dir.put(policyHead + "freze: true\n")
		expect(true, "False Broken: the cluster's own policy cannot be gone by, so nothing is changed: "+dir.path()+`: line 3: unknown field "freze"`)
		dir.put(policyHead + "freeze: true\n")
		expect(false, "True Frozen: the cluster is frozen, so nothing is changed: policy sha256:")
		dir.remove()
		expect(true, "False Broken")
		dir.put(policyHead + "windows: {deny: [{cron: '30 0 * * *', duration: 1h}]}\n") // it is shortly after midnight
		expect(false, "True InForce")
		_ = backoff.Wait(ctx, 30*time.Minute)
		expect(false, "True OutsideOfWindows: it is outside of the cluster's windows for changes until 2000-01-01T01:30:00Z")
		_ = backoff.Wait(ctx, time.Hour)
		expect(false, "True InForce")
		stop()
		<-done
	})
}

// TestPolicyFileThatIsOptional: an agent goes without a file that was never there; one that was there once is missed, also by the
// next process.
func TestPolicyFileThatIsOptional(t *testing.T) {
	dir := &mounted{t: t, dir: t.TempDir()}
	store, err := state.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	if err := store.Take(t.Context(), state.Tenure{Cluster: "c", Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	open := func() (*policyFile, *report.Conditions) {
		holds := report.NewConditions()
		f := &policyFile{path: dir.path(), optional: true, conditions: holds, log: slog.New(slog.DiscardHandler), signs: make(chan struct{}, 1)}
		if err := f.recall(t.Context(), store); err != nil {
			t.Fatal(err)
		}
		return f, holds
	}
	f, holds := open()
	if is := f.accepts(); is != (worker.Accepts{}) || told(holds) != "" {
		t.Errorf("without a file: %+v, told %s", is, told(holds))
	}
	done := make(chan error, 1)
	go func() { done <- f.keep(t.Context(), store) }()
	dir.put(policyHead)
	f.look(time.Now())
	if is := f.accepts(); is.Policy == nil {
		t.Errorf("with a file: %+v", is)
	}
	<-done
	dir.remove()
	f.look(time.Now())
	if is := f.accepts(); is.Broken == "" {
		t.Error("a file that vanished is not missed")
	}
	f, holds = open()
	if is := f.accepts(); is.Broken == "" || !strings.Contains(told(holds), "LocalPolicy=False Broken") {
		t.Errorf("the next process does not miss it: %+v, told %s", is, told(holds))
	}
}

// damaged is a state of which nothing can be read.
type damaged struct{ state.Store }

func (damaged) Read(context.Context, string) ([]byte, error) {
	return nil, fmt.Errorf("policy: %w", fleet.ErrCorrupt)
}

// TestPolicyFileWhoseNoteIsDamaged: that there was a policy is known though the note of it cannot be read.
func TestPolicyFileWhoseNoteIsDamaged(t *testing.T) {
	f := &policyFile{path: (&mounted{t: t, dir: t.TempDir()}).path(), optional: true, conditions: report.NewConditions(), log: slog.New(slog.DiscardHandler), signs: make(chan struct{}, 1)}
	if err := f.recall(t.Context(), damaged{}); err != nil {
		t.Fatal(err)
	}
	if is := f.accepts(); is.Broken == "" {
		t.Errorf("a file that vanished is not missed: %+v", is)
	}
}

func TestCheckPolicyCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	check := func(text string) (string, error) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, out := Command(), &strings.Builder{}
		c.SetOut(out)
		c.SetArgs([]string{"check-policy", file})
		err := c.Execute()
		return out.String(), err
	}
	if out, err := check(policyHead); err != nil || out != "in order: sha256:"+fleet.DigestOf([]byte(policyHead)).String()+"\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := check(policyHead + "x: y\n"); err == nil || !strings.Contains(err.Error(), `line 3: unknown field "x"`) {
		t.Errorf("%v", err)
	}
}
