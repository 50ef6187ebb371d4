package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
)

type logsOptions struct {
	cluster, container, reason   string
	tail                         int32
	since                        time.Duration
	follow, previous, timestamps bool
}

func (a *app) logsCommand() *cobra.Command {
	o := &logsOptions{}
	cmd := &cobra.Command{
		Use: "logs KIND/NAMESPACE/NAME --cluster C", Short: "Show the logs of a pod, or of the pods of a workload, through the cluster's agent",
		Long: "Reads the logs of a Pod, or of up to ten pods of a Deployment, StatefulSet, DaemonSet, ReplicaSet or Job, that a module has in the cluster or\n" +
			"that belongs to what a module has. Values of secrets that modules bind are masked, and nothing else, so it is for admins, and it is recorded\n" +
			"who read them. At most 1 MiB is read at a time; what is cut is said.",
		Example: "  towline logs Deployment/shop/web --cluster prod-eu-01 --since 10m\n  towline logs Pod/shop/web-7d9f-abcde --cluster prod-eu-01 -c main -f",
		Args:    exactly(1, "a pod or a workload, as KIND/NAMESPACE/NAME"),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.logs(cmd.Context(), o, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.cluster, "cluster", "", "the cluster")
	f.StringVarP(&o.container, "container", "c", "", "the container; its pod's default, or its first")
	f.Int32Var(&o.tail, "tail", 100, "how many of the last lines of each pod; -1: all, from the first on")
	f.DurationVar(&o.since, "since", 0, "only what is no older than this, as 10m")
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what comes")
	f.BoolVar(&o.previous, "previous", false, "of the container that ran before")
	f.BoolVar(&o.timestamps, "timestamps", false, "begin each line with its time")
	f.StringVarP(&o.reason, "message", "m", "", "why; recorded")
	must(cmd.RegisterFlagCompletionFunc("cluster", a.completeKind("cluster")))
	return cmd
}

func (a *app) logs(ctx context.Context, o *logsOptions, name string) error {
	ref, err := objectNamed(name)
	switch {
	case err != nil:
		return err
	case o.cluster == "":
		return usagef("logs %s: in which cluster? --cluster C", name)
	case o.tail < -1, o.tail == 0:
		return usagef("--tail %d: at least 1 line, or -1 for all", o.tail)
	}
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	req := &v1.GetLogsRequest{Cluster: o.cluster, Object: ref, Container: o.container, Tail: max(o.tail, 0), Previous: o.previous, Follow: o.follow,
		Timestamps: o.timestamps, Reason: o.reason}
	if o.since != 0 {
		req.Since = o.since.String()
	}
	st, err := c.Trackers.GetLogs(ctx, req)
	if err != nil {
		return err
	}
	p := &logPrinter{a: a, follow: o.follow, single: ref.GetKind() == "Pod"}
	for {
		part, err := st.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return p.end(name, o.cluster)
		case err != nil:
			return err
		}
		p.print(part)
	}
}

// logPrinter writes logs as they come.
type logPrinter struct {
	a              *app
	follow, single bool
	logs, failed   int
	cut            bool
}

func (p *logPrinter) print(x *v1.GetLogsResponse) {
	if n := x.GetOmittedPods(); n > 0 {
		p.a.warnf("%s more are not read: name one of them", count(n, "pod"))
	}
	if x.GetError() != "" {
		p.failed++
		p.a.warnf("%s", table.Clean(x.GetError()))
	} else if x.GetPod() != "" {
		p.logs++
	}
	for line := range bytes.Lines(x.GetData()) {
		if !p.single {
			p.a.printf("%s ", p.a.paint(table.Cyan, "["+table.Clean(x.GetPod())+"]"))
		}
		text := string(bytes.TrimRight(line, "\r\n"))
		if p.a.OutTerminal {
			text = table.Clean(text) // what others wrote must not steer the terminal
		}
		p.a.printf("%s\n", text)
	}
	p.cut = p.cut || x.GetCut() && !p.follow
}

func (p *logPrinter) end(name, cluster string) error {
	switch {
	case p.cut:
		p.a.warnf("there is more than fits: the end is not shown; use --tail, --since or -f")
	case p.logs == 0 && p.failed == 0:
		p.a.notef("No lines in the logs of %s in cluster %s.\n", name, cluster)
	}
	if p.failed > 0 && p.logs == 0 {
		return fmt.Errorf("%s: no log of it can be read in cluster %s", name, cluster)
	}
	return nil
}
