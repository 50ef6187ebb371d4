package hub

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"towline.dev/towline/hub/internal/packager"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/pkg/heap"
	"towline.dev/towline/pkg/render/child"
	"towline.dev/towline/pkg/rpc/clientconfig"
	"towline.dev/towline/pkg/telemetry"
	"towline.dev/towline/pkg/version"
)

// Command is the command line of towline-hub.
func Command() *cobra.Command {
	root := &cobra.Command{Use: "towline-hub", Short: "The hub of Towline", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(serveCommand(), adminCommand(), caCommand(), backupCommand(), restoreCommand(), renderWorkerCommand(), &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), version.Version)
			return err
		}})
	return root
}

type serveFlags struct {
	o           Options
	listen, api string
	hooks       string
	telemetry   telemetry.Addresses
	quota       string
	cache       string
	verbose     bool
}

func serveCommand() *cobra.Command {
	var f serveFlags
	c := &cobra.Command{Use: "serve --data-dir DIR", Short: "Serve agents, people and programs", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) }}
	fl := c.Flags()
	fl.StringVar(&f.o.DataDir, "data-dir", "", "directory of the store, the CA and admin.yaml (required)")
	fl.StringVar(&f.listen, "listen", "127.0.0.1:7443", "address that serves agents")
	fl.StringVar(&f.api, "api", "127.0.0.1:7444", "address that serves people and programs")
	fl.StringVar(&f.telemetry.Health, "health", "", "address that says over http at /livez that the hub runs and at /readyz whether it serves, without authentication, such as :9465; it may be that of --metrics (default: none)")
	fl.StringVar(&f.telemetry.Profiles, "pprof", "", "address on loopback that serves profiles at /debug/pprof/, such as 127.0.0.1:6060 (default: none)")
	fl.StringVar(&f.telemetry.Metrics, "metrics", "", "address that serves metrics to Prometheus at /metrics, without authentication, such as 127.0.0.1:9464 (default: none)")
	fl.StringVar(&f.hooks, "hooks", "", "address that takes signed webhooks over https, POST /hooks/PROJECT/MODULE, which ask for a look at the module's source (default: none are taken)")
	fl.StringVar(&f.o.HooksCert, "hooks-cert", "", "file in PEM of the certificate that --hooks shows, with those between it and its authority (default: one of the hub's own CA)")
	fl.StringVar(&f.o.HooksKey, "hooks-key", "", "file in PEM of its key")
	c.MarkFlagsRequiredTogether("hooks-cert", "hooks-key")
	fl.StringSliceVar(&f.o.Advertise, "advertise", nil, "HOST:PORT that agents are told to dial (default: --listen); may be repeated")
	fl.StringSliceVar(&f.o.EtcdEndpoints, "etcd-endpoints", nil, "endpoints of an etcd of your own, which one hub at a time may use unless all have --share-etcd (default: etcd runs in this process)")
	fl.BoolVar(&f.o.ShareEtcd, "share-etcd", false, "run at the same time as other hubs on --etcd-endpoints, which all need this flag; this is new, see what does not hold yet in docs/operations.md, \"Several hubs\" (default: one hub at a time)")
	fl.StringVar(&f.o.HubAddress, "hub-address", "", "with --share-etcd, HOST:PORT of --listen at which the other hubs reach this one, and only this one (default: the first --advertise)")
	f.etcdFlags(fl)
	f.o.Tracing.Flags(fl)
	f.o.Tracing.SampleFlag(fl)
	fl.StringVar(&f.quota, "store-quota", "4Gi", "how much the store in --data-dir may hold, such as 8Gi; over it nothing is taken that makes it larger")
	fl.StringVar(&f.cache, "source-cache", "1Gi", "how much is kept in --data-dir of what sources have sent, so that it is not fetched again")
	fl.BoolVar(&f.o.AllowFileSources, "allow-file-sources", false, "let modules take Git repositories from folders of this machine (file:///DIR): whoever may put a module then reads those that the hub can read")
	fl.BoolVar(&f.o.DenyPrivate, "deny-private-addresses", false, "connect to no loopback or private address for a module's source, or for its gates; link-local addresses and metadata services are refused in any case")
	fl.StringVar(&f.o.CADir, "ca-dir", "", "directory of ca.crt and ca.key (default: --data-dir)")
	fl.BoolVar(&f.o.AdoptCA, "adopt-ca", false, "start with another CA than that of the store, which is refused else: every agent then has to join again, and every client needs a new certificate")
	fl.StringVar(&f.o.SecretsKeyFile, "secrets-key-file", "", "file of the keys that secrets are encrypted with, 32 bytes in base64 a line, the newest first (default: secrets.key in --ca-dir, made at the first start; with --etcd-endpoints there is none)")
	fl.StringVar(&f.o.SecretsKeyCommand, "secrets-key-command", "", "program that prints the same keys, with its arguments parted by blanks; run once, at the start")
	fl.BoolVar(&f.o.LockCopied, "lock-copied", false, "lock a cluster, as towline cluster lock does, when a certificate is shown that its agent has replaced: whoever has the key, or an old copy of the agent's state, takes the cluster's agent out of service then (default: towline get clusters says that it was shown)")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "log at debug level")
	fl.DurationVar(&f.o.Grace, "grace", defaultGrace, "how long the hub waits for an agent that had a session, after that ended or after its own start, before rollouts call it away")
	_ = c.MarkFlagRequired("data-dir")
	return c
}

// etcdFlags are those about an etcd of one's own.
func (f *serveFlags) etcdFlags(fl *pflag.FlagSet) {
	a := &f.o.Etcd
	fl.StringVar(&a.CAFile, "etcd-cacert", "", "file in PEM that the certificate of --etcd-endpoints is checked against (default: what the system trusts)")
	fl.StringVar(&a.CertFile, "etcd-cert", "", "file in PEM of the certificate that the hub shows to etcd; it is read again for each connection")
	fl.StringVar(&a.KeyFile, "etcd-key", "", "file in PEM of its key")
	fl.StringVar(&a.ServerName, "etcd-server-name", "", "name in etcd's certificate (default: that of the endpoint)")
	fl.StringVar(&a.User, "etcd-user", "", "user of etcd (default: $"+EtcdUserEnv+")")
	fl.StringVar(&a.PasswordFile, "etcd-password-file", "", "file of the user's password (default: $"+EtcdPasswordEnv+")")
}

// How much the heap may grow between two collections, as heap.Tune takes it. A higher floor costs memory for good, as what agents keep for
// long then lies scattered among more garbage.
const (
	HeapPercent = 100
	HeapFloor   = 64 << 20
)

// minQuota is the smallest store that does anything useful.
const minQuota = 64 << 20

func (f *serveFlags) run(c *cobra.Command) error {
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	f.o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
	heap.Tune(HeapPercent, HeapFloor)
	if f.o.Etcd.given() && len(f.o.EtcdEndpoints) == 0 {
		return fmt.Errorf("--etcd-cacert, --etcd-cert, --etcd-key, --etcd-server-name, --etcd-user and --etcd-password-file are for --etcd-endpoints, which is not set")
	}
	if f.o.ShareEtcd && len(f.o.EtcdEndpoints) == 0 {
		return fmt.Errorf("--share-etcd is for --etcd-endpoints, which is not set")
	}
	if f.o.HubAddress != "" && !f.o.ShareEtcd {
		return fmt.Errorf("--hub-address is for --share-etcd, which is not set")
	}
	f.o.Etcd = f.o.Etcd.fromEnvironment(os.Getenv)
	quota, err := resource.ParseQuantity(f.quota)
	if err != nil || quota.Value() < minQuota {
		return fmt.Errorf("--store-quota %s: write a number of bytes of at least 64Mi, such as 8Gi", f.quota)
	}
	f.o.QuotaBytes = quota.Value()
	cache, err := resource.ParseQuantity(f.cache)
	if err != nil || cache.Value() < 1 {
		return fmt.Errorf("--source-cache %s: write a number of bytes, such as 1Gi", f.cache)
	}
	f.o.SourceCacheBytes = cache.Value()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("the path of this program: %w", err)
	}
	f.o.RenderCommand = []string{self, RenderWorker}
	if f.o.Listen, err = net.Listen("tcp", f.listen); err != nil {
		return fmt.Errorf("--listen %s: %w", f.listen, err)
	}
	if f.o.API, err = net.Listen("tcp", f.api); err != nil {
		return fmt.Errorf("--api %s: %w", f.api, err)
	}
	if f.o.Telemetry, err = f.telemetry.Listen(); err != nil {
		return err
	}
	if f.hooks == "" && f.o.HooksCert != "" {
		return fmt.Errorf("--hooks-cert is for --hooks, which is not set")
	}
	if f.hooks != "" {
		if f.o.Hooks, err = net.Listen("tcp", f.hooks); err != nil {
			return fmt.Errorf("--hooks %s: %w", f.hooks, err)
		}
	}
	if a := f.o.HubAddress; a != "" {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("--hub-address %s: write HOST:PORT: %w", a, err)
		}
	}
	for _, a := range f.o.Advertise {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("--advertise %s: write HOST:PORT: %w", a, err)
		}
	}
	h, err := New(c.Context(), f.o)
	if err != nil {
		return err
	}
	return h.Run(c.Context())
}

// RenderWorker is the subcommand that builds kustomizations and charts for a hub: see Options.RenderCommand.
const RenderWorker = "render-worker"

func renderWorkerCommand() *cobra.Command {
	return &cobra.Command{Use: RenderWorker, Short: "Build packages for a hub that started it; for nobody else", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return ServeRenders() }}
}

// ServeRenders does the jobs that come in on stdin until that ends. It is all that the process of a RenderCommand does.
func ServeRenders() error {
	packager.Isolate()
	return child.Serve(child.Limits{}, packager.Build)
}

func adminCommand() *cobra.Command {
	var dir, caDir, server string
	c := &cobra.Command{Use: "admin-cert --data-dir DIR", Short: "Issue the admin's client certificate anew into DIR/admin.yaml", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if caDir == "" {
				caDir = dir
			}
			ca, err := registry.OpenCA(caDir, time.Now)
			if err != nil {
				return err
			}
			path := filepath.Join(dir, AdminFile)
			if !c.Flags().Changed("server") {
				server = serverOf(path, server)
			}
			context, err := ca.IssueAdmin(server)
			if err != nil {
				return err
			}
			if err := clientconfig.Put(path, context); err != nil {
				return err
			}
			if _, err = fmt.Fprintln(c.OutOrStdout(), path); err != nil {
				return err
			}
			cert, err := context.Certificate()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.ErrOrStderr(), "serial %032x, until %s; others stay valid until: towline certificate revoke SERIAL\n", cert.Leaf.SerialNumber, cert.Leaf.NotAfter.UTC().Format(time.DateOnly))
			return err
		}}
	c.Flags().StringVar(&dir, "data-dir", "", "the hub's directory (required)")
	c.Flags().StringVar(&caDir, "ca-dir", "", "directory of ca.crt and ca.key (default: --data-dir)")
	c.Flags().StringVar(&server, "server", "127.0.0.1:7444", "address of the hub's API to write into the configuration, in the place of the one that is there")
	_ = c.MarkFlagRequired("data-dir")
	return c
}

// serverOf is the address of the hub's API in the configuration that the hub has written; otherwise where there is none.
func serverOf(path, otherwise string) string {
	old, err := clientconfig.Load(path)
	if err != nil {
		return otherwise
	}
	context, err := old.Context(clientconfig.Local)
	if err != nil || context.Server == "" {
		return otherwise
	}
	return context.Server
}
