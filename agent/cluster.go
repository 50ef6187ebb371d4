package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
)

// cluster is what the agent must know of its cluster before anything else.
type cluster struct{ uid, version string }

// clusterConfig reads a kubeconfig, or what a pod is given, or what kubectl would use.
func clusterConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, rest.ErrNotInCluster) {
			return nil, fmt.Errorf("service account of this pod: %w", err)
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err == nil {
		return c, nil
	}
	if kubeconfig == "" {
		return nil, fleet.Invalidf("--kubeconfig", "is required outside of a cluster when kubectl has no configuration either: %v", err)
	}
	return nil, fleet.Invalid("--kubeconfig", err.Error())
}

func secretsOf(config *rest.Config, namespace string) (state.SecretClient, error) {
	c, err := corev1.NewForConfig(apply.Tuned(config))
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	return c.Secrets(namespace), nil
}

// findCluster asks the cluster who it is, until it answers.
func (a *Agent) findCluster(ctx context.Context) (cluster, error) {
	core, err := corev1.NewForConfig(apply.Tuned(a.config))
	if err != nil {
		return cluster{}, fmt.Errorf("client of the cluster: %w", err)
	}
	info, err := discovery.NewDiscoveryClientForConfig(apply.Tuned(a.config))
	if err != nil {
		return cluster{}, fmt.Errorf("client of the cluster: %w", err)
	}
	tries := backoff.New(backoff.Policy{Min: 500 * time.Millisecond, Max: 30 * time.Second}, rand.Float64)
	for waiting := false; ; waiting = true {
		c, err := ask(ctx, core, info)
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return cluster{}, ctx.Err()
		}
		if !waiting {
			a.o.Log.Warn("the cluster's API server does not answer as it should; trying again", "server", a.config.Host, "error", err)
		}
		select {
		case <-ctx.Done():
			return cluster{}, ctx.Err()
		case <-time.After(tries.Next()):
		}
	}
}

func ask(ctx context.Context, core corev1.NamespacesGetter, info discovery.ServerVersionInterface) (cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ns, err := core.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return cluster{}, fmt.Errorf("namespace %s: %w", metav1.NamespaceSystem, err)
	}
	v, err := info.ServerVersion()
	if err != nil {
		return cluster{}, fmt.Errorf("version of the API server: %w", err)
	}
	return cluster{uid: string(ns.UID), version: v.GitVersion}, nil
}

// getter reads live objects for people.
type getter struct {
	client *apply.Client
	mapper *apply.Mapper
}

func newGetter(config *rest.Config) (*getter, error) {
	client, err := apply.NewClient(config)
	if err != nil {
		return nil, err
	}
	return &getter{client: client, mapper: apply.NewMapper(client)}, nil
}

// get is one live object as JSON, without managed fields and with the values of a Secret masked.
func (g *getter) get(ctx context.Context, e fleet.BundleEntry) ([]byte, error) {
	r, gone, err := g.mapper.Served(ctx, e.ID, e.Version)
	if err != nil {
		return nil, err
	}
	if gone {
		return nil, fleet.Errorf(fleet.ErrNotFound, "%s: the cluster has no such kind", e.ID)
	}
	namespace := e.ID.Namespace
	if !r.Namespaced {
		namespace = ""
	}
	object, err := g.client.Get(ctx, r, namespace, e.ID.Name)
	if apierrors.IsNotFound(err) {
		return nil, fleet.Errorf(fleet.ErrNotFound, "%s: is not in the cluster", e.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.ID, err)
	}
	mask(object, e.ID)
	return json.Marshal(object)
}

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// mask takes out what is secret and what nobody reads.
func mask(object map[string]any, id fleet.ObjectID) {
	if metadata, ok := object["metadata"].(map[string]any); ok {
		delete(metadata, "managedFields")
		if annotations, ok := metadata["annotations"].(map[string]any); ok && id.IsSecret() {
			delete(annotations, lastApplied)
		}
	}
	if id.IsSecret() {
		fleet.MaskSecret(object)
	}
}
