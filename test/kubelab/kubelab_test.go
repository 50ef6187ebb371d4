package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	kwokv1alpha1 "sigs.k8s.io/kwok/pkg/apis/v1alpha1"
	"sigs.k8s.io/kwok/pkg/utils/expression"
	"sigs.k8s.io/yaml"
)

// TestKwokConfig checks that the stages are what KWOK reads without loss.
func TestKwokConfig(t *testing.T) {
	delayed, guarded := false, false
	for _, document := range strings.Split(kwokConfig(), "\n---\n") {
		var stage kwokv1alpha1.Stage
		if err := yaml.UnmarshalStrict([]byte(document), &stage); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if stage.Name == "pod-ready" {
			delayed = stage.Spec.Delay != nil && stage.Spec.Delay.DurationFrom != nil
			guarded = stage.Spec.Selector.MatchExpressions[0].Key == neverReady
		}
	}
	if !delayed || !guarded {
		t.Errorf("KWOK's pod-ready stage has changed its form: delayed %v, guarded %v", delayed, guarded)
	}
}

func TestNeverReady(t *testing.T) {
	query, err := expression.NewQuery(neverReady)
	if err != nil {
		t.Fatal(err)
	}
	for pod, want := range map[string]string{
		`{}`: "false",
		`{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"image":"x"}]}}`:                        "false",
		`{"metadata":{"labels":{"kubelab.towline.dev/never-ready":"false"}},"spec":{"containers":[{}]}}`: "false",
		`{"metadata":{"labels":{"kubelab.towline.dev/never-ready":"true"}},"spec":{"containers":[{}]}}`:  "true",
		`{"metadata":{"annotations":{"kubelab.towline.dev/never-ready":"true"}}}`:                        "true",
		`{"spec":{"containers":[{"image":"x"},{"image":"example.test/never-ready:v1"}]}}`:                "true",
		`{"spec":{"initContainers":[{"image":"never-ready"}],"containers":[{"image":"x"}]}}`:             "true",
	} {
		var data any
		if err := json.Unmarshal([]byte(pod), &data); err != nil {
			t.Fatal(err)
		}
		got, err := query.Execute(t.Context(), data)
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s yields %v, %v; want %s", pod, got, err, want)
		}
	}
}

func TestClearClusterKeepsForeignFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c1")
	if err := clearCluster(dir); err != nil {
		t.Error("of no directory:", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "thesis.txt")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := clearCluster(dir); err == nil {
		t.Error("a directory of other files was removed")
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

func TestPortsAreReserved(t *testing.T) {
	p, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	q, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	if p.number == q.number {
		t.Errorf("port %d was reserved twice", p.number)
	}
	p.release()
	q.release()
}

// TestLab runs the built binary, named by KUBELAB_BIN, and is skipped without.
func TestLab(t *testing.T) {
	bin := os.Getenv("KUBELAB_BIN")
	if bin == "" {
		t.Skip("KUBELAB_BIN does not name the binary")
	}
	dir := filepath.Join(t.TempDir(), strings.Repeat("long-", 12), strings.Repeat("long-", 12))
	begin := time.Now()
	up, ready := startLab(t, bin, dir, "--clusters=3")
	t.Logf("3 clusters were up after %v", time.Since(begin))
	if len(ready.Clusters) != 3 || len(ready.Socket) > maxSocketPath {
		t.Fatalf("ready.json is %+v", ready)
	}
	reportMemory(t, up.Process.Pid, ready)
	if out, err := exec.Command(bin, "up", "--dir", dir).CombinedOutput(); err == nil || !strings.Contains(string(out), "another kubelab up") {
		t.Errorf("a second up in the same directory: %v: %s", err, out)
	}
	c := ready.Clusters[0]
	client := clientFor(t, c)
	ctl := func(part, action string) string {
		t.Helper()
		begin := time.Now()
		out, err := exec.Command(bin, "ctl", "--dir", dir, "--cluster", c.Name, "--part", part, action).CombinedOutput()
		if err != nil {
			t.Fatalf("ctl %s %s: %v: %s", part, action, err, out)
		}
		t.Logf("ctl %s %s took %v", part, action, time.Since(begin))
		return string(out)
	}

	t.Run("api", func(t *testing.T) { testAPI(t, c, client) })
	t.Run("pods", func(t *testing.T) { testPods(t, client) })
	t.Run("audit", func(t *testing.T) { testAudit(t, c.Audit) })
	t.Run("parts", func(t *testing.T) {
		ctl("apiserver", "kill")
		if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
			t.Error("the API server answers although it was killed")
		}
		ctl("apiserver", "start")
		deploy(t, client, "after-kill", "example.test/app:v1")

		ctl("apiserver", "pause")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err == nil {
			t.Error("the API server answers although it is paused")
		}
		cancel()
		ctl("apiserver", "resume")

		ctl("etcd", "restart")
		ctl("controller-manager", "stop")
		if status := ctl("all", "status"); !strings.Contains(status, "c1 controller-manager stopped 0\n") || !strings.Contains(status, "c1 kwok running ") {
			t.Errorf("the status is\n%s", status)
		}
		ctl("controller-manager", "start")
		ctl("scheduler", "pause")
		ctl("scheduler", "stop") // a paused part can be stopped
		ctl("scheduler", "start")
		deploy(t, client, "after-restarts", "example.test/app:v1")
		ctl("all", "restart")
		deploy(t, client, "after-all", "example.test/app:v1")
	})
	t.Run("part dies", func(t *testing.T) {
		pid := readReady(t, dir).Clusters[1].Parts["kwok"].PID
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, 5*time.Second, func() error {
			if part := readReady(t, dir).Clusters[1].Parts["kwok"]; part.State != "exited" || part.PID != 0 {
				return fmt.Errorf("ready.json has %+v", part)
			}
			return nil
		})
	})

	pids := allPIDs(readReady(t, dir))
	begin = time.Now()
	if err := up.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := up.Wait(); err != nil {
		t.Error("up ended with", err)
	}
	t.Logf("up ended %v after SIGTERM", time.Since(begin))
	gone(t, pids)
	for _, file := range []string{filepath.Join(dir, "ready.json"), ready.Socket, filepath.Dir(ready.Socket)} {
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was left behind", file)
		}
	}
}

// TestLabDiesWithParent kills kubelab up, and then a parent of it.
func TestLabDiesWithParent(t *testing.T) {
	bin := os.Getenv("KUBELAB_BIN")
	if bin == "" {
		t.Skip("KUBELAB_BIN does not name the binary")
	}
	dir := t.TempDir()
	up, ready := startLab(t, bin, dir, "--names=left,right")
	if ready.Clusters[0].Name != "left" || ready.Clusters[1].Name != "right" {
		t.Errorf("the clusters are %+v", ready.Clusters)
	}
	if err := syscall.Kill(ready.Clusters[0].Parts["etcd"].PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := up.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = up.Wait()
	gone(t, allPIDs(ready))

	// The same directory again, with what the killed one left in it, and with
	// a shell between this process and kubelab.
	shell := exec.Command("sh", "-c", `"$0" "$@"; true`, bin, "up", "--dir", dir, "--clusters=1")
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error {
		data, err := os.ReadFile(filepath.Join(dir, "ready.json"))
		if err == nil {
			err = json.Unmarshal(data, &ready)
		}
		if err == nil && ready.Clusters[0].Name != "c1" {
			err = errors.New("ready.json is the old one")
		}
		return err
	})
	if _, err := os.Stat(filepath.Join(dir, "left")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the directory of a cluster that is no more was left behind")
	}
	if err := shell.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = shell.Wait()
	gone(t, append(allPIDs(ready), ready.PID))
}

func startLab(t *testing.T, bin, dir string, args ...string) (*exec.Cmd, Ready) {
	t.Helper()
	up := exec.Command(bin, append([]string{"up", "--dir", dir}, args...)...)
	up.Stderr = os.Stderr
	out, err := up.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = up.Process.Kill() })
	last := ""
	for lines := bufio.NewScanner(out); last != "ready" && lines.Scan(); {
		last = lines.Text()
		t.Log(last)
	}
	if last != "ready" {
		t.Fatal("up ended before it was ready")
	}
	return up, readReady(t, dir)
}

func readReady(t *testing.T, dir string) (r Ready) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "ready.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func clientFor(t *testing.T, c ReadyCluster) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.UserAgent = "kubelab-test"
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// deploy creates a Deployment of three replicas and waits until it is
// available.
func deploy(t *testing.T, client kubernetes.Interface, name, image string) {
	t.Helper()
	begin := time.Now()
	createDeployment(t, client, name, image)
	eventually(t, 30*time.Second, func() error {
		d, err := client.AppsV1().Deployments("default").Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && d.Status.AvailableReplicas != 3 {
			err = fmt.Errorf("Deployment %s has %d replicas available", name, d.Status.AvailableReplicas)
		}
		return err
	})
	t.Logf("Deployment %s was available after %v", name, time.Since(begin))
}

func createDeployment(t *testing.T, client kubernetes.Interface, name, image string) {
	t.Helper()
	labels := map[string]string{"app": name}
	replicas := int32(3)
	_, err := client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: podTemplate(labels, nil, image),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func podTemplate(labels, annotations map[string]string, image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: image}}},
	}
}

// testAPI checks the version, that RBAC denies and grants, and what there is in
// a new cluster.
func testAPI(t *testing.T, c ReadyCluster, admin kubernetes.Interface) {
	version, err := admin.Discovery().ServerVersion()
	if err != nil || !strings.HasPrefix(version.GitVersion, "v1.") {
		t.Errorf("the version is %v, %v", version, err)
	}
	token, err := admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token.Status.Token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a ServiceAccount without a role lists ConfigMaps: %v", err)
	}
	_, err = admin.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "view"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "default"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, func() error {
		_, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		return err
	})
}

func testPods(t *testing.T, client kubernetes.Interface) {
	pods := client.CoreV1().Pods("default")
	create := func(name string, labels, annotations map[string]string, image string) {
		t.Helper()
		template := podTemplate(labels, annotations, image)
		template.Name = name
		if _, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	isReady := func(name string) error {
		pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("pod %s is %s and not ready", name, pod.Status.Phase)
	}
	deploy(t, client, "app", "example.test/app:v1")

	stuck := []string{"stuck-label", "stuck-annotation", "stuck-image"}
	create(stuck[0], map[string]string{neverReadyKey: "true"}, nil, "example.test/app:v1")
	create(stuck[1], nil, map[string]string{neverReadyKey: "true"}, "example.test/app:v1")
	create(stuck[2], nil, nil, "example.test/never-ready:v1")
	create("slow", nil, map[string]string{readyAfterKey: "3s"}, "example.test/app:v1")
	begin := time.Now()
	createDeployment(t, client, "broken", "example.test/app:never-ready")
	for _, name := range stuck {
		eventually(t, 10*time.Second, func() error {
			pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if len(pod.Status.ContainerStatuses) != 1 || pod.Status.ContainerStatuses[0].State.Waiting == nil ||
				pod.Status.ContainerStatuses[0].State.Waiting.Reason != "ImagePullBackOff" {
				return fmt.Errorf("the containers of pod %s are %+v", name, pod.Status.ContainerStatuses)
			}
			for _, condition := range pod.Status.Conditions {
				if condition.Type == corev1.PodReady && condition.Reason == "ContainersNotReady" {
					return nil
				}
			}
			return fmt.Errorf("the conditions of pod %s are %+v", name, pod.Status.Conditions)
		})
	}

	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec:       batchv1.JobSpec{Template: podTemplate(nil, nil, "example.test/app:v1")},
	}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	if _, err := client.BatchV1().Jobs("default").Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() error {
		job, err := client.BatchV1().Jobs("default").Get(t.Context(), "job", metav1.GetOptions{})
		if err == nil && job.Status.CompletionTime == nil {
			err = fmt.Errorf("the Job is not complete: %+v", job.Status)
		}
		return err
	})
	t.Logf("the Job was complete %v after it was created", time.Since(begin))

	if time.Since(begin) < 2*time.Second && isReady("slow") == nil {
		t.Error("the slow pod was ready at once")
	}
	eventually(t, 10*time.Second, func() error { return isReady("slow") })
	if took := time.Since(begin); took < 2*time.Second || took > 9*time.Second {
		t.Errorf("the slow pod was ready after %v", took)
	}
	for _, name := range stuck {
		if isReady(name) == nil {
			t.Errorf("pod %s is ready", name)
		}
	}
	d, err := client.AppsV1().Deployments("default").Get(t.Context(), "broken", metav1.GetOptions{})
	if err != nil || d.Status.AvailableReplicas != 0 || d.Status.UnavailableReplicas != 3 {
		t.Errorf("the broken Deployment: %v, %+v", err, d.Status)
	}

	begin = time.Now()
	for _, name := range append(stuck, "slow") {
		if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range append(stuck, "slow") {
		eventually(t, 10*time.Second, func() error {
			_, err := pods.Get(t.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("pod %s is not gone: %w", name, err)
		})
	}
	t.Logf("pods were gone %v after they were deleted", time.Since(begin))
}

// testAudit checks that the log has the requests of testPods.
func testAudit(t *testing.T, path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[string]int{}
	for line := range strings.Lines(string(data)) {
		var event struct {
			Stage, Verb, UserAgent string
			ObjectRef              struct{ Resource, Name string }
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if event.UserAgent == "kubelab-test" && event.ObjectRef.Resource == "deployments" && event.ObjectRef.Name != "" && event.Stage == "ResponseComplete" {
			verbs[event.Verb]++
		}
	}
	if verbs["create"] != 2 || verbs["get"] == 0 {
		t.Errorf("the audit log has these requests for deployments: %v", verbs)
	}
}

// reportMemory logs the memory in use per cluster, as the sum of what each
// part has for itself and its share of what is shared.
func reportMemory(t *testing.T, up int, r Ready) {
	pss := func(pid int) int {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0
		}
		n := 0
		for line := range strings.Lines(string(data)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				fmt.Sscan(rest, &n)
			}
		}
		return n / 1024
	}
	t.Logf("up uses %d MiB", pss(up))
	for _, c := range r.Clusters {
		sum := 0
		for _, part := range c.Parts {
			sum += pss(part.PID)
		}
		t.Logf("%s uses %d MiB", c.Name, sum)
	}
}

func allPIDs(r Ready) (pids []int) {
	for _, c := range r.Clusters {
		for _, part := range c.Parts {
			if part.PID != 0 {
				pids = append(pids, part.PID)
			}
		}
	}
	return pids
}

// gone waits until none of the processes lives.
func gone(t *testing.T, pids []int) {
	t.Helper()
	begin := time.Now()
	for _, pid := range pids {
		eventually(t, 5*time.Second, func() error {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil {
				return nil
			}
			if _, rest, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(rest, "Z") {
				return nil // dead, and not yet waited for by who inherited it
			}
			return fmt.Errorf("process %d lives on", pid)
		})
	}
	t.Logf("%d processes were gone %v later", len(pids), time.Since(begin))
}

func eventually(t *testing.T, patience time.Duration, check func() error) {
	t.Helper()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(patience); ; <-look.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
