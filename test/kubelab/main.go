// Command kubelab runs whole Kubernetes control planes on the loopback
// interface of one machine, for tests that want real API servers.
//
// The one binary contains etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler and KWOK, and starts itself again for each of them. KWOK
// plays the kubelet of one large node per cluster, so pods are scheduled and
// become ready although nothing runs in them.
//
//	kubelab up --dir D --clusters 3      start c1, c2 and c3 and stay
//	kubelab ctl --dir D --cluster c1 --part apiserver kill|start|stop|restart|pause|resume|status
//	kubelab version
//
// up writes D/<cluster>/kubeconfig and D/<cluster>/audit.log for each cluster,
// then D/ready.json (see [Ready]), and ends all it started when it ends, also
// when it is killed.
//
// A pod stays unready for ever, with its containers waiting on
// ImagePullBackOff, when it carries the label or the annotation
// kubelab.towline.dev/never-ready: "true" or when the image of one of its
// containers contains "never-ready". The annotation
// kubelab.towline.dev/ready-after, a duration, delays a pod's readiness.
package main

import (
	"fmt"
	"os"
)

const usage = `usage:
  kubelab up --dir D [--clusters N] [--name-prefix c] [--names a,b,c] [--audit] [--die-with-parent] [--timeout 3m]
  kubelab ctl --dir D --cluster C --part P ACTION
      P: etcd, apiserver, controller-manager, scheduler, kwok or all
      ACTION: stop, kill, start, restart, pause, resume or status
  kubelab version
  kubelab etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kwok FLAGS...
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "up":
		err = runUp(os.Args[2:])
	case "ctl":
		err = runCtl(os.Args[2:])
	case "version":
		printVersions(os.Stdout)
	case "help", "-h", "--help":
		fmt.Print(usage)
	default:
		runPart(os.Args[1:])
		fmt.Fprintf(os.Stderr, "kubelab: unknown command %q\n%s", os.Args[1], usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubelab:", err)
		os.Exit(1)
	}
}
