package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// Ready is what the file ready.json in the directory of up holds. The file
// exists while all clusters are up, and is written again, under another name
// and then renamed, whenever a part's state changes.
type Ready struct {
	PID      int            `json:"pid"`    // of kubelab up
	Socket   string         `json:"socket"` // that ctl speaks to
	Clusters []ReadyCluster `json:"clusters"`
}

// ReadyCluster is one of the clusters in [Ready]. All paths are absolute.
type ReadyCluster struct {
	Name       string               `json:"name"`
	Dir        string               `json:"dir"`
	Server     string               `json:"server"` // https://127.0.0.1:port
	Kubeconfig string               `json:"kubeconfig"`
	Audit      string               `json:"audit,omitempty"` // the audit log, one JSON object a line
	Seconds    float64              `json:"seconds"`         // that the start took
	Parts      map[string]ReadyPart `json:"parts"`           // etcd, apiserver, controller-manager, scheduler, kwok
}

// ReadyPart is one process of a cluster in [Ready].
type ReadyPart struct {
	PID    int    `json:"pid"`   // 0 when there is none
	State  string `json:"state"` // running, paused, stopped, killed or exited
	Log    string `json:"log"`
	Health string `json:"health"` // the URL of its health endpoint
}

// A lab is what one kubelab up runs.
type lab struct {
	dir      string
	clusters []*cluster
	socket   string
	listener net.Listener

	mu    sync.Mutex // guards ready.json
	ready bool
	quiet bool // parts end because the lab does
}

var clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

func runUp(args []string) error {
	parent := os.Getppid()
	flags := pflag.NewFlagSet("kubelab up", pflag.ContinueOnError)
	dir := flags.String("dir", "", "directory for the files of the clusters")
	count := flags.Int("clusters", 1, "how many clusters to start")
	prefix := flags.String("name-prefix", "c", "clusters are named this and a number from 1 on")
	names := flags.StringSlice("names", nil, "names of the clusters, in place of --clusters and --name-prefix")
	audit := flags.Bool("audit", true, "have the API servers write audit logs")
	dieWithParent := flags.Bool("die-with-parent", true, "end when the process that started this one ends")
	timeout := flags.Duration("timeout", 3*time.Minute, "how long the start may take")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 || *dir == "" {
		return errors.New("up needs --dir, and takes no arguments")
	}
	if len(*names) == 0 {
		for i := range *count {
			*names = append(*names, fmt.Sprintf("%s%d", *prefix, i+1))
		}
	}
	if len(*names) == 0 || len(*names) > 64 {
		return fmt.Errorf("%d clusters: from 1 to 64 can be started", len(*names))
	}
	seen := map[string]bool{}
	for _, name := range *names {
		if !clusterName.MatchString(name) || seen[name] {
			return fmt.Errorf("%q is no name for a cluster, or is given twice", name)
		}
		seen[name] = true
	}
	abs, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if *dieWithParent {
		signal.Notify(signals, syscall.SIGHUP)
		// A parent-death signal would come when the thread of the parent
		// ends that started this process, which may be long before the
		// parent does.
		go func() {
			for os.Getppid() == parent {
				time.Sleep(100 * time.Millisecond)
			}
			cancel(errors.New("the parent process ended"))
		}()
	} else {
		signal.Ignore(syscall.SIGHUP)
	}
	go func() { cancel(fmt.Errorf("%w: %v", errSignal, <-signals)) }()

	l := &lab{dir: abs}
	unlock, err := l.claim()
	if err != nil {
		return err
	}
	defer unlock()
	for i, name := range *names {
		c := &cluster{name: name, index: i, dir: filepath.Join(abs, name), audit: *audit, changed: l.changed}
		if err := clearCluster(c.dir); err != nil {
			return err
		}
		l.clusters = append(l.clusters, c)
	}
	defer l.down()
	if err := l.listen(); err != nil {
		return err
	}
	if err := l.start(ctx, *timeout); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return err
	}
	go l.serve(ctx)
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, errSignal) {
		fmt.Fprintln(os.Stderr, "kubelab:", err)
	}
	return nil
}

// errSignal says that a signal asked kubelab to end.
var errSignal = errors.New("signal")

// claim makes the lab's directory its own and removes from it what an earlier
// one left. The function returned gives the directory up.
func (l *lab) claim() (unlock func(), err error) {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(l.dir, "kubelab.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		pid, _ := io.ReadAll(lock)
		lock.Close()
		return nil, fmt.Errorf("another kubelab up, process %s, uses %s", strings.TrimSpace(string(pid)), l.dir)
	}
	err = errors.Join(lock.Truncate(0), os.Remove(l.readyPath()))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		lock.Close()
		return nil, err
	}
	if _, err := fmt.Fprintln(lock, os.Getpid()); err != nil {
		lock.Close()
		return nil, err
	}
	if socket, err := os.ReadFile(socketFile(l.dir)); err == nil {
		removeSocket(l.dir, string(socket))
	}
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		lock.Close()
		return nil, err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if _, err := os.Stat(filepath.Join(l.dir, entry.Name(), markerName)); err == nil {
				if err := clearCluster(filepath.Join(l.dir, entry.Name())); err != nil {
					lock.Close()
					return nil, err
				}
			}
		}
	}
	return func() { lock.Close() }, nil
}

// clearCluster removes a cluster's directory, but nothing that kubelab did
// not make.
func clearCluster(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, markerName)); err != nil && len(entries) > 0 {
		return fmt.Errorf("%s is not of kubelab's making, and is in its way", dir)
	}
	return os.RemoveAll(dir)
}

// start starts all clusters and says so once they are ready.
func (l *lab) start(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	errs := make(chan error)
	for _, c := range l.clusters {
		go func() {
			err := c.up(ctx)
			if err != nil {
				cancel() // the others need not go on
			} else {
				fmt.Printf("%s ready after %.1fs: %s %s\n", c.name, c.took.Seconds(), c.server, c.path("kubeconfig"))
			}
			errs <- err
		}()
	}
	var first error
	for range l.clusters {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	if first != nil {
		return first
	}
	l.mu.Lock()
	l.ready = true
	l.mu.Unlock()
	l.changed("")
	fmt.Println("ready")
	return nil
}

// changed writes ready.json, and the message, if there is one, to stderr.
func (l *lab) changed(message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.quiet || !l.ready {
		return
	}
	if message != "" {
		fmt.Fprintln(os.Stderr, "kubelab:", message)
	}
	data, err := json.MarshalIndent(l.report(l.clusters), "", "  ")
	if err == nil {
		temporary := l.readyPath() + ".new"
		err = os.WriteFile(temporary, append(data, '\n'), 0o600)
		if err == nil {
			err = os.Rename(temporary, l.readyPath())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubelab:", err)
	}
}

// report describes the clusters given.
func (l *lab) report(clusters []*cluster) Ready {
	r := Ready{PID: os.Getpid(), Socket: l.socket}
	for _, c := range clusters {
		rc := ReadyCluster{
			Name: c.name, Dir: c.dir, Server: c.server, Kubeconfig: c.path("kubeconfig"),
			Seconds: c.took.Seconds(), Parts: map[string]ReadyPart{},
		}
		if c.audit {
			rc.Audit = c.path("audit.log")
		}
		for name, p := range c.parts {
			state, pid := p.snapshot()
			rc.Parts[name] = ReadyPart{PID: pid, State: state, Log: p.logPath, Health: p.url}
		}
		r.Clusters = append(r.Clusters, rc)
	}
	return r
}

func (l *lab) readyPath() string { return filepath.Join(l.dir, "ready.json") }

// down ends all that the lab started. The clusters' logs stay.
func (l *lab) down() {
	l.mu.Lock()
	l.quiet = true
	if err := os.Remove(l.readyPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(os.Stderr, "kubelab:", err)
	}
	l.mu.Unlock()
	if l.listener != nil {
		l.listener.Close()
		removeSocket(l.dir, l.socket)
	}
	var wg sync.WaitGroup
	for _, c := range l.clusters {
		wg.Go(func() {
			c.killAll()
			c.releasePorts()
		})
	}
	wg.Wait()
}
