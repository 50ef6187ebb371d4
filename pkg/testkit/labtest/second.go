package labtest

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Second is another API server of the control plane that Config reaches. It reads and writes the same store, and what it knows of it by watches
// can be kept from it: the definitions of kinds, what it serves, its registrations, policies, and what it tells to watches of its own.
type Second struct {
	// Host is its address: the certificates are those of the other one.
	Host string

	mu   sync.Mutex
	open chan struct{} // closed while the store's watches tell it what happens
}

// StartSecond starts one, for as long as the test runs. More are arguments of kube-apiserver that it has and the other one has not.
func StartSecond(t *testing.T, more ...string) *Second {
	t.Helper()
	Config(t)
	args, err := firstArgs()
	if err != nil {
		t.Skipf("the arguments of the API server are not to be had: %v", err)
	}
	s, stop, err := startSecond(t.TempDir(), args, more)
	t.Cleanup(stop)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func startSecond(dir string, args, more []string) (s *Second, stop func(), err error) {
	s = &Second{open: make(chan struct{})}
	close(s.open)
	port, err := freePort()
	if err != nil {
		return nil, func() {}, err
	}
	s.Host = fmt.Sprintf("127.0.0.1:%d", port)
	stopStore := func() {}
	out := []string{"kube-apiserver"}
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "--etcd-servers":
			if value, stopStore, err = s.store(value); err != nil {
				return nil, func() {}, err
			}
			a = name + "=" + value
		case "--secure-port":
			a = fmt.Sprintf("%s=%d", name, port)
		case "--audit-log-path":
			a = name + "=" + filepath.Join(dir, "audit.log")
		}
		out = append(out, a)
	}
	var said bytes.Buffer
	cmd := exec.Command(os.Getenv("KUBELAB"), append(out, more...)...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return nil, stopStore, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	stop = func() {
		s.Thaw()
		_ = cmd.Process.Kill()
		<-ended
		stopStore()
	}
	if err := s.awaitReady(ended); err != nil {
		stop()
		return nil, func() {}, fmt.Errorf("%w: %s", err, said.String())
	}
	return s, stop, nil
}

func (s *Second) awaitReady(ended <-chan struct{}) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		if a, err := client.Get("https://" + s.Host + "/readyz"); err == nil {
			a.Body.Close()
			if a.StatusCode == http.StatusOK {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return errors.New("the second API server is not ready in time")
		}
		select {
		case <-ended:
			return errors.New("the second API server ended")
		case <-tick.C:
		}
	}
}

// firstArgs are the arguments of the API server that Config reaches.
func firstArgs() ([]string, error) {
	raw, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(lab.kubeconfig)), "ready.json"))
	if err != nil {
		return nil, err
	}
	var ready struct {
		Clusters []struct {
			Dir   string
			Parts map[string]struct{ PID int }
		}
	}
	if err := json.Unmarshal(raw, &ready); err != nil {
		return nil, err
	}
	for _, c := range ready.Clusters {
		if c.Dir != filepath.Dir(lab.kubeconfig) {
			continue
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.Parts["apiserver"].PID))
		if err != nil {
			return nil, err
		}
		args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		return slices.DeleteFunc(args, func(a string) bool { return !strings.HasPrefix(a, "--") }), nil
	}
	return nil, fmt.Errorf("%s names no such control plane", lab.kubeconfig)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// store stands before the store, and returns where.
func (s *Second) store(of string) (at string, stop func(), err error) {
	to, err := url.Parse(of)
	if err != nil {
		return "", nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	plain := &http.Protocols{}
	plain.SetUnencryptedHTTP2(true)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport, proxy.FlushInterval = &http.Transport{Protocols: plain}, -1
	proxy.ErrorLog = log.New(io.Discard, "", 0) // which tells of each stream that ends with the server
	proxy.ModifyResponse = func(a *http.Response) error {
		if a.Request.URL.Path == "/etcdserverpb.Watch/Watch" {
			a.Body = held{a.Body, s, a.Request.Context().Done()}
		}
		return nil
	}
	server := &http.Server{Handler: proxy, Protocols: plain}
	go func() { _ = server.Serve(l) }()
	return "http://" + l.Addr().String(), func() { _ = server.Close() }, nil
}

// held is what a watch of the store tells.
type held struct {
	io.ReadCloser
	s     *Second
	ended <-chan struct{}
}

func (h held) Read(to []byte) (int, error) {
	n, err := h.ReadCloser.Read(to)
	select {
	case <-h.s.thawed():
	case <-h.ended:
	}
	return n, err
}

func (s *Second) thawed() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// Freeze has the store's watches tell it nothing from now on. Reads that have to be of now, and writes, go on.
func (s *Second) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.open:
		s.open = make(chan struct{})
	default:
	}
}

// Thaw has them tell all that happened meanwhile.
func (s *Second) Thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.open:
	default:
		close(s.open)
	}
}
