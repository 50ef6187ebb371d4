package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"towline.dev/towline/test/lab/measure"
)

// holderCommand has this program hold whole objects in a dynamic informer, as a process of its own.
const holderCommand = "hold"

// hold holds the Deployments of a cluster: it prints a line when it could begin, begins at a line of input, prints how
// many it holds, and ends with the input.
func hold(args []string) error {
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return err
	}
	config.QPS, config.UserAgent = -1, "bench-informer"
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	resource := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	if _, err := client.Resource(resource).Namespace("default").List(ctx, metav1.ListOptions{Limit: 1}); err != nil { // connects
		return err
	}
	in := bufio.NewReader(os.Stdin)
	fmt.Println("0")
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	informer := dynamicinformer.NewDynamicSharedInformerFactory(client, 0).ForResource(resource)
	go informer.Informer().Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
		return errors.New("not synced")
	}
	fmt.Println(len(informer.Informer().GetStore().ListKeys()))
	_, err = io.Copy(io.Discard, in)
	return err
}

// holder measures a process that holds the objects.
func (b *bench) holder(ctx context.Context, objects int) (s sample, err error) {
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	cmd := exec.CommandContext(ctx, self, holderCommand, b.fleet.Cluster.Kubeconfig)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return s, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return s, err
	}
	if err := cmd.Start(); err != nil {
		return s, err
	}
	defer func() {
		_ = in.Close()
		if ended := cmd.Wait(); err == nil {
			err = ended
		}
	}()
	said := bufio.NewReader(out)
	if _, err := said.ReadString('\n'); err != nil {
		return s, err
	}
	idle, err := measure.MemoryOf(cmd.Process.Pid)
	if err != nil {
		return s, err
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		return s, err
	}
	line, err := said.ReadString('\n')
	if err != nil {
		return s, err
	}
	if n, err := strconv.Atoi(line[:len(line)-1]); err != nil || n != objects {
		return s, fmt.Errorf("holds %q objects, not %d", line, objects)
	}
	s, err = b.rest(ctx, cmd.Process.Pid)
	s.idle = megabytes(idle.Peak)
	return s, err
}
