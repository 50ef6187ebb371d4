package agent

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"towline.dev/towline/pkg/heap"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/telemetry"
	"towline.dev/towline/pkg/version"
)

// Command is the command line of towline-agent.
func Command() *cobra.Command {
	root := &cobra.Command{
		Use:           "towline-agent",
		Short:         "Towline's agent for one workload cluster",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(runCommand(), checkPolicyCommand(), &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), version.Version)
			return err
		},
	})
	return root
}

// checkPolicyCommand reads a policy as an agent does.
func checkPolicyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check-policy FILE",
		Short: "Say whether an agent would go by a policy of its cluster, and its digest",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			data, err := readPolicy(args[0])
			if err != nil {
				return err
			}
			p, err := localpolicy.Parse(data)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), "in order: sha256:"+p.Digest.String())
			return err
		},
	}
}

// The heap may grow little between two collections, because nearly all that the agent allocates are answers of the API
// server, which it drops at once; but not so little that a small agent collects after every few of them.
const (
	heapPercent = 25
	heapFloor   = 40 << 20
)

// processors is how many run Go code at a time. The agent mostly waits for its API server; on more than one it spends a
// tenth more CPU on waking them up and down. GOMAXPROCS in the environment wins.
const processors = 1

func runCommand() *cobra.Command {
	var o Options
	var serve telemetry.Addresses
	var level slog.Level
	c := &cobra.Command{
		Use:   "run --hub HOST:PORT… [--join-token TOKEN | --join-token-file FILE] [--state-dir DIR]",
		Short: "Connect to the hub and keep the cluster as it says",
		Long: "Connect to the hub and keep the cluster as it says. The join token is needed once; the agent works on without its hub.\n" +
			"In a cluster the agent uses its service account and keeps its state in Secrets.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			heap.Tune(heapPercent, heapFloor)
			if os.Getenv("GOMAXPROCS") == "" {
				runtime.GOMAXPROCS(processors)
			}
			var err error
			if o.Telemetry, err = serve.Listen(); err != nil {
				return err
			}
			a, err := New(o)
			if err != nil {
				return err
			}
			return a.Run(c.Context())
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Hubs, "hub", nil, "address of the hub for agents; repeat it for several hubs")
	f.StringVar(&o.JoinToken, "join-token", "", "join token, as printed by: towline cluster join NAME")
	f.StringVar(&o.JoinTokenFile, "join-token-file", "", "file with the join token; keeps it out of the process list")
	f.StringVar(&o.StateDir, "state-dir", "", "directory for the agent's state (default: Secrets in the namespace)")
	f.StringVar(&o.Policy, "policy", "", "file that says what this cluster accepts from the hub (default: everything)")
	f.BoolVar(&o.PolicyOptional, "policy-optional", false, "go without the file of --policy as long as there has never been one")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig of the workload cluster (default: the pod's service account, else kubectl's)")
	f.StringVar(&o.Namespace, "namespace", DefaultNamespace, "namespace of the agent's Lease and Secrets")
	f.StringVar(&serve.Metrics, "metrics", "", "address that serves metrics to Prometheus at /metrics, without authentication, such as :9464 (default: none)")
	f.StringVar(&serve.Health, "health", "", "address that says over http at /livez that the agent runs and at /readyz whether it can keep its cluster, without authentication, such as :9465; it may be that of --metrics (default: none)")
	f.StringVar(&serve.Profiles, "pprof", "", "address on loopback that serves profiles at /debug/pprof/, such as 127.0.0.1:6060 (default: none)")
	o.Tracing.Flags(f)
	f.TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	return c
}
