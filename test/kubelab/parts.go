package main

import (
	"os"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	kwoksignals "sigs.k8s.io/kwok/pkg/utils/signals"
)

// runPart turns this process into one part of a control plane when args[0]
// (the argument after the program's name) names one, and does not return
// then. It reports whether args[0] names a part.
func runPart(args []string) bool {
	switch args[0] {
	case "etcd":
		etcdmain.Main(args)
		os.Exit(0)
	case "kube-apiserver":
		cmd := apiserver.NewAPIServerCommand()
		cmd.SetArgs(args[1:])
		os.Exit(cli.Run(cmd))
	case "kube-controller-manager":
		cmd := controllermanager.NewControllerManagerCommand()
		cmd.SetArgs(args[1:])
		os.Exit(cli.Run(cmd))
	case "kube-scheduler":
		cmd := scheduler.NewSchedulerCommand()
		cmd.SetArgs(args[1:])
		os.Exit(cli.Run(cmd))
	case "kwok":
		// KWOK reads its global flags (--config, -v) from os.Args.
		os.Args = append([]string{"kwok"}, args[1:]...)
		// Cobra would add the flags that Kubernetes registers globally, of
		// which --version is not what cobra takes it for.
		pflag.CommandLine = pflag.NewFlagSet("kwok", pflag.ContinueOnError)
		flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
		flags.ParseErrorsAllowlist.UnknownFlags = true
		flags.Usage = func() {}
		ctx, logger := kwoklog.InitFlags(kwoksignals.SetupSignalContext(), flags)
		ctx, err := kwokconfig.InitFlags(ctx, flags)
		if err != nil {
			logger.Error("Init config flags", "err", err)
			os.Exit(1)
		}
		cmd := kwok.NewCommand(ctx)
		cmd.PersistentFlags().AddFlagSet(flags)
		if err := cmd.ExecuteContext(ctx); err != nil {
			logger.Error("Execute exit", "err", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	return false
}
