package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// maxSocketPath is the length up to which the socket's path is used: the
// kernel takes no more than 107 bytes.
const maxSocketPath = 100

// A ctlRequest is what ctl sends to up, one JSON object per connection.
type ctlRequest struct {
	Cluster string
	Part    string
	Action  string
	Timeout time.Duration
}

// A ctlAnswer is what up answers.
type ctlAnswer struct {
	Error    string `json:",omitempty"`
	Clusters []ReadyCluster
}

// socketFile is the file that holds the path of the socket of up in dir.
func socketFile(dir string) string { return filepath.Join(dir, "ctl.path") }

// listen opens the socket for ctl: in the lab's directory, or in a temporary
// one when the path were too long.
func (l *lab) listen() error {
	l.socket = filepath.Join(l.dir, "ctl.sock")
	if len(l.socket) > maxSocketPath {
		dir, err := os.MkdirTemp("", "kubelab-")
		if err == nil && len(dir) > maxSocketPath-len("/ctl.sock") {
			os.Remove(dir)
			dir, err = os.MkdirTemp("/tmp", "kubelab-")
		}
		if err != nil {
			return err
		}
		l.socket = filepath.Join(dir, "ctl.sock")
	}
	var err error
	if l.listener, err = net.Listen("unix", l.socket); err != nil {
		return err
	}
	return os.WriteFile(socketFile(l.dir), []byte(l.socket), 0o600)
}

// removeSocket removes the socket that the lab in dir had, and the temporary
// directory it was in.
func removeSocket(dir, socket string) {
	if filepath.Base(socket) != "ctl.sock" {
		return
	}
	os.Remove(socket)
	if parent := filepath.Dir(socket); strings.HasPrefix(filepath.Base(parent), "kubelab-") && parent != dir {
		os.Remove(parent)
	}
	os.Remove(socketFile(dir))
}

// serve answers ctl until the listener is closed.
func (l *lab) serve(ctx context.Context) {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			var request ctlRequest
			if err := json.NewDecoder(conn).Decode(&request); err != nil {
				return
			}
			// Nothing can be done about a client that is gone.
			_ = json.NewEncoder(conn).Encode(l.answer(ctx, request))
		}()
	}
}

func (l *lab) answer(ctx context.Context, request ctlRequest) (answer ctlAnswer) {
	ctx, cancel := context.WithTimeout(ctx, request.Timeout)
	defer cancel()
	var chosen []*cluster
	for _, c := range l.clusters {
		if c.name == request.Cluster || request.Cluster == "" && len(l.clusters) == 1 {
			chosen = append(chosen, c)
		}
	}
	if len(chosen) == 0 {
		answer.Error = fmt.Sprintf("no cluster %q", request.Cluster)
		return answer
	}
	for _, c := range chosen {
		if err := c.act(ctx, request.Part, request.Action); err != nil {
			answer.Error = fmt.Sprintf("cluster %s: %v", c.name, err)
			break
		}
	}
	answer.Clusters = l.report(chosen).Clusters
	return answer
}

func runCtl(args []string) error {
	flags := pflag.NewFlagSet("kubelab ctl", pflag.ContinueOnError)
	dir := flags.String("dir", "", "directory of the kubelab up to speak to")
	name := flags.String("cluster", "", "name of the cluster")
	partName := flags.String("part", "all", "name of the part, or all")
	timeout := flags.Duration("timeout", time.Minute, "how long a start may take")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() != 1 || *dir == "" {
		return errors.New("ctl needs --dir and one action: stop, kill, start, restart, pause, resume or status")
	}
	abs, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	socket, err := os.ReadFile(socketFile(abs))
	if err != nil {
		return fmt.Errorf("no kubelab up runs in %s: %w", abs, err)
	}
	conn, err := net.Dial("unix", string(socket))
	if err != nil {
		return fmt.Errorf("no kubelab up runs in %s: %w", abs, err)
	}
	defer conn.Close()
	request := ctlRequest{Cluster: *name, Part: strings.TrimPrefix(*partName, "kube-"), Action: flags.Arg(0), Timeout: *timeout}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return err
	}
	var answer ctlAnswer
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return fmt.Errorf("kubelab up ended while it was asked: %w", err)
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	for _, c := range answer.Clusters {
		for _, n := range partNames {
			if request.Part == n || request.Part == "all" {
				fmt.Printf("%s %s %s %d\n", c.Name, n, c.Parts[n].State, c.Parts[n].PID)
			}
		}
	}
	return nil
}
