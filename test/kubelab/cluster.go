package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// nodeName is the name of the one node that every cluster has.
const nodeName = "kwok-node-0"

// markerName is a file that marks the directories which kubelab made, and may
// remove.
const markerName = ".kubelab"

// partNames are the names of the parts, in the order in which they start.
var partNames = []string{"etcd", "apiserver", "controller-manager", "scheduler", "kwok"}

// auditPolicy has every request for a resource logged, but for reads of leases
// and events.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
  resources:
  - group: coordination.k8s.io
    resources: [leases]
  - group: ""
    resources: [events]
  - group: events.k8s.io
    resources: [events]
- level: None
  nonResourceURLs: ["*"]
- level: Metadata
`

// A cluster is one control plane.
type cluster struct {
	name    string
	index   int
	dir     string
	audit   bool
	changed func(message string)

	server string
	admin  *rest.Config
	ports  []*port
	parts  map[string]*part
	took   time.Duration // from the first process to ready

	mu sync.Mutex // serializes what ctl does
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// A start is tried anew this often, and may take this long each time. A start
// takes some seconds; one that takes much longer does not end any more: an API
// server gives up for good when its first looks at etcd come too late, and a
// port can be taken by something else before it is bound.
const (
	startTries = 3
	startTime  = 55 * time.Second
)

// up makes the cluster's files and starts it, and once more from nothing when
// that fails.
func (c *cluster) up(ctx context.Context) error {
	for try := 1; ; try++ {
		begin := time.Now()
		err := c.tryUp(ctx)
		if err == nil {
			c.took = time.Since(begin)
			return nil
		}
		c.killAll()
		c.releasePorts()
		err = fmt.Errorf("cluster %s: start %d of %d: %w", c.name, try, startTries, err)
		if ctx.Err() != nil || try == startTries {
			return err
		}
		fmt.Fprintln(os.Stderr, "kubelab:", err)
	}
}

func (c *cluster) tryUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := c.prepare(); err != nil {
		return err
	}
	return c.bringUp(ctx)
}

// prepare makes the cluster's directory anew, with all that its parts read,
// and reserves its ports.
func (c *cluster) prepare() error {
	if err := os.RemoveAll(c.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(c.path("pki"), 0o700); err != nil {
		return err
	}
	number := map[string]int{}
	holds := map[string][]*port{}
	for _, use := range []string{"etcd", "etcd-peer", "apiserver", "controller-manager", "scheduler", "kwok"} {
		p, err := reservePort()
		if err != nil {
			return err
		}
		c.ports = append(c.ports, p)
		number[use] = p.number
		owner := use
		if use == "etcd-peer" {
			owner = "etcd"
		}
		holds[owner] = append(holds[owner], p)
	}
	c.server = fmt.Sprintf("https://127.0.0.1:%d", number["apiserver"])

	ca, err := newAuthority("kubelab-" + c.name)
	if err != nil {
		return err
	}
	serving, err := ca.issue("kube-apiserver", nil, "127.0.0.1", "localhost", "10.96.0.1",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	if err != nil {
		return err
	}
	serviceAccounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serviceAccountKey, err := pemKey(serviceAccounts)
	if err != nil {
		return err
	}
	caKey, err := pemKey(ca.key)
	if err != nil {
		return err
	}
	admin, err := ca.issue("kubelab-admin", []string{"system:masters"})
	if err != nil {
		return err
	}
	err = errors.Join(
		pair{cert: ca.pem, key: caKey}.write(c.path("pki"), "ca"),
		serving.write(c.path("pki"), "apiserver"),
		os.WriteFile(c.path("pki/service-accounts.key"), serviceAccountKey, 0o600),
		os.WriteFile(c.path("audit-policy.yaml"), []byte(auditPolicy), 0o600),
		os.WriteFile(c.path("kwok.yaml"), []byte(kwokConfig()), 0o600),
		os.WriteFile(c.path("scheduler.yaml"), fmt.Appendf(nil, schedulerConfig, c.path("scheduler.kubeconfig")), 0o600),
		c.writeKubeconfig("kubeconfig", ca, admin),
		os.WriteFile(c.path(markerName), nil, 0o600),
	)
	if err != nil {
		return err
	}
	for file, user := range map[string]string{
		"controller-manager": "system:kube-controller-manager",
		"scheduler":          "system:kube-scheduler",
		"kwok":               "kwok",
	} {
		var groups []string
		if user == "kwok" {
			groups = []string{"system:masters"}
		}
		client, err := ca.issue(user, groups)
		if err != nil {
			return err
		}
		if err := c.writeKubeconfig(file+".kubeconfig", ca, client); err != nil {
			return err
		}
	}
	// Clients keep no connections, so that a part that was started again is
	// not asked over those to the one before.
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	adminCert, err := tls.X509KeyPair(admin.cert, admin.key)
	if err != nil {
		return err
	}
	plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	unverified := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	asAdmin := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{adminCert}}}}
	c.admin = &rest.Config{
		Host:      c.server,
		UserAgent: "kubelab",
		QPS:       -1,
		Timeout:   5 * time.Second,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: ca.pem, CertData: admin.cert, KeyData: admin.key,
		},
	}

	etcdURL := fmt.Sprintf("http://127.0.0.1:%d", number["etcd"])
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", number["etcd-peer"])
	kwokAddress := fmt.Sprintf("127.0.0.1:%d", number["kwok"])
	c.parts = map[string]*part{}
	add := func(name, command string, client *http.Client, url string, args ...string) {
		c.parts[name] = &part{
			name: name, command: command, args: args, dir: c.dir, logPath: c.path(name + ".log"),
			url: url, client: client, state: stateStopped,
			changed: func(message string) {
				if message != "" {
					message = c.name + ": " + message
				}
				c.changed(message)
			},
			ports: holds[name],
		}
	}
	add("etcd", "etcd", plain, etcdURL+"/health",
		"--name=kubelab", "--data-dir="+c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL,
		"--initial-cluster=kubelab="+peerURL)
	apiserver := []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", number["apiserver"]),
		// An address must be given, but none can be: that of the kubernetes
		// Service's endpoints may not be a loopback address.
		"--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--client-ca-file=" + c.path("pki/ca.crt"),
		"--tls-cert-file=" + c.path("pki/apiserver.crt"), "--tls-private-key-file=" + c.path("pki/apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("pki/service-accounts.key"),
		"--service-account-signing-key-file=" + c.path("pki/service-accounts.key"),
		"--authorization-mode=RBAC", "--allow-privileged", "--profiling=false",
	}
	if c.audit {
		apiserver = append(apiserver,
			"--audit-policy-file="+c.path("audit-policy.yaml"), "--audit-log-path="+c.path("audit.log"),
			"--audit-log-format=json", "--audit-log-mode=blocking", "--audit-log-maxsize=100000")
	}
	add("apiserver", "kube-apiserver", asAdmin, c.server+"/readyz", apiserver...)
	add("controller-manager", "kube-controller-manager", unverified,
		fmt.Sprintf("https://127.0.0.1:%d/healthz", number["controller-manager"]),
		"--kubeconfig="+c.path("controller-manager.kubeconfig"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", number["controller-manager"]),
		"--leader-elect=false", "--profiling=false",
		"--use-service-account-credentials",
		"--service-account-private-key-file="+c.path("pki/service-accounts.key"),
		"--root-ca-file="+c.path("pki/ca.crt"),
		"--cluster-signing-cert-file="+c.path("pki/ca.crt"), "--cluster-signing-key-file="+c.path("pki/ca.key"),
		"--kube-api-qps=500", "--kube-api-burst=1000",
		// A part that was paused for some minutes is no reason to take the
		// node for dead and its pods for unready.
		"--node-monitor-grace-period=24h")
	add("scheduler", "kube-scheduler", unverified,
		fmt.Sprintf("https://127.0.0.1:%d/healthz", number["scheduler"]),
		"--config="+c.path("scheduler.yaml"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", number["scheduler"]))
	add("kwok", "kwok", plain, "http://"+kwokAddress+"/healthz",
		"--kubeconfig="+c.path("kwok.kubeconfig"), "--config="+c.path("kwok.yaml"),
		"--manage-all-nodes", "--node-ip=127.0.0.1", fmt.Sprintf("--node-port=%d", number["kwok"]),
		"--server-address="+kwokAddress, fmt.Sprintf("--cidr=10.%d.0.1/16", 128+c.index))
	return nil
}

// schedulerConfig is the scheduler's configuration file, but for the path of
// its kubeconfig.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
enableProfiling: false
leaderElection:
  leaderElect: false
clientConnection:
  kubeconfig: %q
  qps: 500
  burst: 1000
`

func (c *cluster) writeKubeconfig(name string, ca *authority, client pair) error {
	config := clientcmdapi.NewConfig()
	config.Clusters[c.name] = &clientcmdapi.Cluster{Server: c.server, CertificateAuthorityData: ca.pem}
	config.AuthInfos[c.name] = &clientcmdapi.AuthInfo{ClientCertificateData: client.cert, ClientKeyData: client.key}
	config.Contexts[c.name] = &clientcmdapi.Context{Cluster: c.name, AuthInfo: c.name}
	config.CurrentContext = c.name
	return clientcmd.WriteToFile(*config, c.path(name))
}

// bringUp starts all parts and waits until the cluster can be used.
func (c *cluster) bringUp(ctx context.Context) error {
	for _, name := range partNames[:2] {
		if err := c.parts[name].spawn(); err != nil {
			return err
		}
	}
	for _, name := range partNames[:2] {
		if err := c.parts[name].waitHealthy(ctx); err != nil {
			return err
		}
	}
	for _, name := range partNames[2:] {
		if err := c.parts[name].spawn(); err != nil {
			return err
		}
	}
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	if err := c.createNode(ctx, client); err != nil {
		return err
	}
	for _, name := range partNames[2:] {
		if err := c.parts[name].waitHealthy(ctx); err != nil {
			return err
		}
	}
	if err := waitUsable(ctx, client); err != nil {
		return fmt.Errorf("%w; the ends of the logs of the controller manager and of kwok:\n%s\n%s", err,
			c.parts["controller-manager"].logTail(), c.parts["kwok"].logTail())
	}
	return nil
}

// createNode creates the node that KWOK plays.
func (c *cluster) createNode(ctx context.Context, client kubernetes.Interface) error {
	resources := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("1000"),
		corev1.ResourceMemory:           resource.MustParse("4Ti"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Ti"),
		corev1.ResourcePods:             resource.MustParse("10k"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        nodeName,
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
			Labels: map[string]string{
				corev1.LabelHostname:   nodeName,
				corev1.LabelOSStable:   "linux",
				corev1.LabelArchStable: "amd64",
				"type":                 "kwok",
			},
		},
		Status: corev1.NodeStatus{Allocatable: resources, Capacity: resources},
	}
	_, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// waitUsable waits until the node is ready and pods can be created and
// scheduled in the default namespace.
func waitUsable(ctx context.Context, client kubernetes.Interface) error {
	for {
		missing := usable(ctx, client)
		if missing == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not usable in time: %w", missing)
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// usable returns what is missing.
func usable(ctx context.Context, client kubernetes.Interface) error {
	node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ready := false
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			ready = condition.Status == corev1.ConditionTrue
		}
	}
	if !ready || len(node.Spec.Taints) > 0 {
		return errors.New("the node is not ready")
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{}); err != nil {
		return err
	}
	_, err = client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
	return err
}

// killAll ends all parts at once, and does not return before they are gone.
func (c *cluster) killAll() {
	var wg sync.WaitGroup
	for _, p := range c.parts {
		wg.Go(func() { p.end(syscall.SIGKILL, stateKilled, time.Second) })
	}
	wg.Wait()
}

func (c *cluster) releasePorts() {
	for _, p := range c.ports {
		p.release()
	}
	c.ports = nil
}

// act does what ctl asks for with one of the parts, or with all.
func (c *cluster) act(ctx context.Context, name, action string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []*part
	if name == "all" {
		for _, n := range partNames {
			parts = append(parts, c.parts[n])
		}
	} else if p := c.parts[name]; p != nil {
		parts = append(parts, p)
	} else {
		return fmt.Errorf("no part %q, there are %v and all", name, partNames)
	}
	// Clients end before what they are clients of.
	ending := func(sig syscall.Signal, state string) error {
		for i := len(parts) - 1; i >= 0; i-- {
			patience := 20 * time.Second
			if parts[i].name == "etcd" {
				// It waits for its clients to go, for about eight seconds.
				patience = time.Second
			}
			if err := parts[i].end(sig, state, patience); err != nil {
				return err
			}
		}
		return nil
	}
	start := func() error {
		for _, p := range parts {
			if state, _ := p.snapshot(); state == statePaused {
				return fmt.Errorf("%s is paused", p.name)
			} else if state != stateRunning {
				if err := p.spawn(); err != nil {
					return err
				}
				c.changed("")
			}
			if err := p.waitHealthy(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	each := func(sig syscall.Signal, state string) error {
		for _, p := range parts {
			if err := p.signal(sig, state); err != nil {
				return err
			}
		}
		return nil
	}
	switch action {
	case "stop":
		return ending(syscall.SIGTERM, stateStopped)
	case "kill":
		return ending(syscall.SIGKILL, stateKilled)
	case "start":
		return start()
	case "restart":
		if err := ending(syscall.SIGTERM, stateStopped); err != nil {
			return err
		}
		return start()
	case "pause":
		return each(syscall.SIGSTOP, statePaused)
	case "resume":
		return each(syscall.SIGCONT, stateRunning)
	case "status":
		return nil
	}
	return fmt.Errorf("no action %q", action)
}
