package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"towline.dev/towline/deploy"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/jointoken"
	"towline.dev/towline/pkg/version"
)

type joinOptions struct {
	labels    []string
	ttl       time.Duration
	reissue   bool
	reason    string
	manifest  bool
	context   string
	kube      string
	hubs      []string
	image     string
	daemonSet bool
	// restricted: the agent gets few rights.
	restricted bool
	// replace: of an agent that is there, whatever it is.
	replace bool
	timeout time.Duration
}

func (a *app) joinCommand() *cobra.Command {
	o := &joinOptions{}
	cmd := &cobra.Command{
		Use: "join NAME", Short: "Make a cluster and a join token for its agent",
		Long: "Prints a token that lets one agent in, once. With --manifest it prints the YAML that installs the agent; with --context it\n" +
			"applies that to a Kubernetes context and waits until the cluster is Ready.",
		Example: "  towline cluster join prod-eu-07 --label env=prod --label region=eu\n" +
			"  towline cluster join prod-eu-07 --manifest --hub hub.example.com:7443 | kubectl apply -f -\n" +
			"  towline cluster join prod-eu-07 --context prod-eu-07",
		Args: exactly(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.manifest && o.context != "" {
				return usagef("either --manifest, to apply it yourself, or --context, to have it applied")
			}
			return a.join(cmd.Context(), args[0], o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.labels, "label", nil, "`KEY=VALUE`; may be repeated")
	f.DurationVar(&o.ttl, "ttl", 15*time.Minute, "how long the token may be used, at most 24h")
	f.BoolVar(&o.reissue, "reissue", false, "a new token for a cluster that exists; its agent must join again")
	f.StringVarP(&o.reason, "message", "m", "", "why; recorded")
	f.BoolVar(&o.manifest, "manifest", false, "print the manifests of the agent with the token in them")
	f.StringVar(&o.context, "context", "", "apply the manifests to this Kubernetes context and wait until the cluster is Ready")
	f.StringVar(&o.kube, "kubeconfig", "", "with --context: kubeconfig `FILE` (default as kubectl's)")
	f.StringSliceVar(&o.hubs, "hub", nil, "`HOST:PORT` of the hub as the cluster reaches it (default as the hub advertises); may be repeated")
	f.StringVar(&o.image, "image", "", "image of the agent")
	f.BoolVar(&o.daemonSet, "daemonset", false, "a DaemonSet instead of a Deployment of two")
	f.BoolVar(&o.restricted, "restricted", false, "with few rights, and in the namespaces alone that you bind it to: see docs/local-policy.md")
	f.BoolVar(&o.replace, "replace", false, "with --context: also where an agent with fewer rights, of another hub or of another cluster is")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "with --context: how long to wait for Ready")
	must(cmd.RegisterFlagCompletionFunc("label", cobra.NoFileCompletions))
	return cmd
}

func (a *app) join(ctx context.Context, name string, o *joinOptions) error {
	labels, err := parseLabels(o.labels)
	if err != nil {
		return err
	}
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	install := o.manifest || o.context != ""
	hubs := o.hubs
	if o.context != "" {
		if _, err := kubeConfig(o); err != nil {
			return err
		}
	}
	if install {
		if hubs, err = reachable(ctx, c, name, o.hubs); err != nil {
			return err
		}
	}
	if o.context != "" && !o.replace {
		if err := a.mayInstall(ctx, name, hubs, o); err != nil {
			return err
		}
	}
	uid, err := reissued(ctx, c, name, o)
	if err != nil {
		return err
	}
	resp, err := c.Clusters.JoinCluster(ctx, &v1.JoinClusterRequest{Name: name, Labels: labels, Ttl: o.ttl.String(), Reissue: o.reissue, Reason: o.reason, Uid: uid})
	if err != nil {
		return err
	}
	if !install {
		a.sayToken(resp)
		return nil
	}
	agent := deploy.AgentOptions{Hubs: hubs, Token: resp.GetToken(), Image: o.image, DaemonSet: o.daemonSet, Restricted: o.restricted}
	if strings.HasPrefix(version.Version, "v") && !strings.Contains(version.Version, "-") {
		agent.Version = version.Version
	}
	if o.manifest {
		data, err := deploy.AgentManifests(agent)
		a.printf("%s", data)
		return err
	}
	if err := a.install(ctx, agent, o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if o.reissue { // the agent that has the old certificate is Ready until this one comes
		if err := a.waitRedeemed(ctx, c, name, resp.GetToken(), o.timeout); err != nil {
			return err
		}
	}
	return a.waitReady(ctx, c, name, o.timeout)
}

// reissued is the UID of the cluster that a new token is for. The hub would make one that is not there, which is right for programs that repeat a
// call, and not for a name that was mistyped: an agent that took that token would join as a cluster without labels.
func reissued(ctx context.Context, c *client.Client, name string, o *joinOptions) (string, error) {
	if !o.reissue {
		return "", nil
	}
	resp, err := c.Clusters.GetCluster(ctx, &v1.GetClusterRequest{Name: name})
	if errors.Is(err, fleet.ErrNotFound) {
		return "", fleet.Errorf(fleet.ErrNotFound, "cluster %s not found; to make it run: towline cluster join %s", name, name)
	}
	if err != nil {
		return "", err
	}
	return resp.GetCluster().GetMetadata().GetUid(), registered(resp.GetCluster())
}

// sayToken prints a join token, and what to do with it.
func (a *app) sayToken(of interface {
	GetToken() string
	GetExpires() *timestamppb.Timestamp
	GetHubAddresses() []string
}) {
	a.printf("%s\n", of.GetToken())
	a.footf("Ends %s. In the cluster: towline-agent run --hub %s --join-token-file FILE --state-dir DIR\n", a.stamp(of.GetExpires()),
		strings.Join(of.GetHubAddresses(), " --hub "))
}

// parseLabels reads KEY=VALUE.
func parseLabels(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		key, value, found := strings.Cut(arg, "=")
		if !found || key == "" {
			return nil, usagef("--label %s: write KEY=VALUE", arg)
		}
		out[key] = value
	}
	return out, nil
}

// reachable are the addresses for agents in another machine; loopback ones are refused before a token is made.
func reachable(ctx context.Context, c *client.Client, name string, given []string) ([]string, error) {
	hubs := given
	if len(given) == 0 {
		info, err := c.Identity.GetServerInfo(ctx, &v1.GetServerInfoRequest{})
		if err != nil {
			return nil, err
		}
		hubs = info.GetAgentAddresses()
	}
	for _, hub := range hubs {
		host, _, err := net.SplitHostPort(hub)
		if err != nil || host == "" {
			return nil, usagef("--hub %s: write HOST:PORT, such as hub.example.com:7443", hub)
		}
	}
	outside := slices.DeleteFunc(slices.Clone(hubs), loopback)
	if len(outside) > 0 && len(given) == 0 || len(outside) == len(hubs) && len(hubs) > 0 {
		return outside, nil
	}
	said := "the hub advertises no address for agents"
	if len(hubs) > 0 {
		said = strings.Join(hubs, ", ") + " is this machine for whoever dials it, so no agent in the cluster reaches the hub there"
	}
	return nil, usagef("cluster %s: %s; say how the cluster reaches it with --hub HOST:PORT (or start the hub with --advertise HOST:PORT)", name, said)
}

// loopback reports addresses that mean the machine that dials, or none at all.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && (ip.Unmap().IsLoopback() || ip.IsUnspecified())
}

// waitRedeemed waits until an agent has come with the token.
func (a *app) waitRedeemed(ctx context.Context, c *client.Client, name, secret string, timeout time.Duration) error {
	token, err := jointoken.Parse(secret)
	if err != nil {
		return fmt.Errorf("cluster %s: the hub's join token: %w", name, err)
	}
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		used := false
		for t, err := range c.AllTokens(ctx, &v1.ListTokensRequest{}) {
			if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, fleet.ErrUnavailable) { // whoever notices first that the time is over
				return err
			}
			used = used || t.GetMetadata().GetName() == token.ID && t.GetState() == "Used"
		}
		if used {
			return nil
		}
		select {
		case <-ctx.Done():
			return notReady(name, "has not come with its new join token", timeout)
		case <-again.C:
		}
	}
}

func notReady(name, at string, timeout time.Duration) error {
	return &exitError{exitTimedOut, fmt.Errorf("cluster %s: %s after %s; see: kubectl -n %s logs -l app.kubernetes.io/name=towline-agent", name, at, timeout, deploy.Namespace)}
}

// waitReady waits until the agent has joined and connected.
func (a *app) waitReady(ctx context.Context, c *client.Client, name string, timeout time.Duration) error {
	at := "Pending"
	err := c.WatchClusters(ctx, &v1.WatchClustersRequest{Name: name}, func(ch client.Change[*v1.Cluster]) error {
		switch {
		case ch.Type == client.Synced:
			return nil
		case ch.Type == client.Deleted:
			return fleet.Errorf(fleet.ErrNotFound, "cluster %s: was removed while waiting for it", name)
		}
		if at = ch.Item.GetStatus().GetState(); at == string(fleet.ClusterReady) || at == string(fleet.ClusterCordoned) {
			return client.ErrStop
		}
		return nil
	})
	if errors.Is(err, context.DeadlineExceeded) { // whoever notices first: the hub's end of the call may
		return notReady(name, "is "+at, timeout)
	}
	if err == nil {
		a.printf("cluster/%s %s\n", name, at)
	}
	return err
}
