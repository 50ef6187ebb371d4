package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Agent is one process of a cluster's agent.
type Agent struct {
	*Process
	Cluster  *Cluster
	StateDir string
	// Policy is the file of the cluster's own policy; there is none at first.
	Policy string
}

// AgentOptions of a process.
type AgentOptions struct {
	// Name of its log; default: that of the cluster with "agent-" before it.
	Name string
	// StateDir; default: one of its own for each name.
	StateDir string
	// Pod is the name of a pod: the agent keeps its state in Secrets, as it does in a cluster.
	Pod string
	// Namespace of the agent's Lease and Secrets; default: the agent's own.
	Namespace string
	// Token is the join token; none: the state holds an identity.
	Token string
	// Kubeconfig of the cluster it writes to; default: that of Cluster.
	Kubeconfig string
}

// NewAgent makes an agent for a cluster; Start starts it.
func (l *Lab) NewAgent(c *Cluster, o AgentOptions) *Agent {
	if o.Name == "" {
		o.Name = "agent-" + c.Name
	}
	if o.StateDir == "" {
		o.StateDir = filepath.Join(l.Dir, o.Name)
	}
	if o.Kubeconfig == "" {
		o.Kubeconfig = c.Kubeconfig
	}
	var all []string
	for _, h := range l.Hubs {
		all = append(all, h.Agents)
	}
	hub := strings.Join(all, ",")
	if c.Link != nil {
		hub = c.Link.Address
	}
	policy := filepath.Join(l.Dir, o.Name+"-policy.yaml")
	args := []string{"run", "--hub", hub, "--kubeconfig", o.Kubeconfig, "--policy", policy, "--policy-optional"}
	if o.Pod == "" {
		args = append(args, "--state-dir", o.StateDir)
	}
	if o.Namespace != "" {
		args = append(args, "--namespace", o.Namespace)
	}
	if o.Token != "" {
		args = append(args, "--join-token", o.Token)
	}
	a := &Agent{Process: l.process(o.Name, filepath.Join(l.o.Bin, "towline-agent"), args...), Cluster: c, StateDir: o.StateDir, Policy: policy}
	if o.Pod != "" {
		a.Env = []string{"POD_NAME=" + o.Pod}
	}
	return a
}

// Token makes a cluster on the hub, or a new token for one that is there, and returns the join token.
func (l *Lab) Token(ctx context.Context, cluster string, flags ...string) (string, error) {
	r := l.CLI(ctx, append([]string{"cluster", "join", cluster}, flags...)...)
	return strings.TrimSpace(r.Stdout), r.Err()
}

// Join joins a cluster with a new agent and starts it.
func (l *Lab) Join(ctx context.Context, c *Cluster, flags ...string) (*Agent, error) {
	token, err := l.Token(ctx, c.Name, flags...)
	if err != nil {
		return nil, err
	}
	a := l.NewAgent(c, AgentOptions{Token: token})
	c.Agent = a
	return a, a.Start()
}

// WaitState waits until the hub says that the cluster is in the state.
func (l *Lab) WaitState(ctx context.Context, cluster, state string) error {
	return Poll(ctx, func() error {
		r := l.CLI(ctx, "get", "clusters", cluster, "-o", "jsonpath={.status.state}")
		if r.Err() != nil {
			return r.Err()
		}
		if got := strings.TrimSpace(r.Stdout); got != state {
			return fmt.Errorf("cluster %s is %s, want %s", cluster, got, state)
		}
		return nil
	})
}

// CopyState copies the files of a state directory.
func CopyState(from, to string) error { return os.CopyFS(to, os.DirFS(from)) }
