package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"towline.dev/towline/deploy"
)

// installer is the field manager of what `cluster join --context` applies.
const installer = "towline-cli"

// install applies the agent's manifests to a Kubernetes context with server-side apply.
func (a *app) install(ctx context.Context, agent deploy.AgentOptions, o *joinOptions) error {
	objects, err := deploy.AgentObjects(agent)
	if err != nil {
		return err
	}
	kube, err := kubeClient(o)
	if err != nil {
		return err
	}
	for _, object := range objects {
		// All of them are built-in kinds with regular plurals; discovery would only cost time.
		resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		if err := applyObject(ctx, kube.Resource(resource), object); err != nil {
			return fmt.Errorf("context %s: %w", o.context, err)
		}
		a.printf("%s/%s applied\n", strings.ToLower(object.GetKind()), object.GetName())
	}
	return nil
}

// mayInstall looks at the agent that is in the context, before anything is made for the next one.
func (a *app) mayInstall(ctx context.Context, name string, hubs []string, o *joinOptions) error {
	kube, err := kubeClient(o)
	if err != nil {
		return err
	}
	found, err := lookInstalled(ctx, kube)
	if err == nil {
		err = found.refuses(name, hubs, o.restricted)
	}
	if err != nil {
		return fmt.Errorf("context %s: %w", o.context, err)
	}
	return nil
}

func kubeClient(o *joinOptions) (*dynamic.DynamicClient, error) {
	klog.LogToStderr(false) // client-go's own log says nothing that the error does not
	klog.SetOutput(io.Discard)
	config, err := kubeConfig(o)
	if err != nil {
		return nil, err
	}
	kube, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("context %s: %w", o.context, err)
	}
	return kube, nil
}

func applyObject(ctx context.Context, kind dynamic.NamespaceableResourceInterface, object *unstructured.Unstructured) error {
	var in dynamic.ResourceInterface = kind
	if object.GetNamespace() != "" {
		in = kind.Namespace(object.GetNamespace())
	}
	_, err := in.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: installer, Force: true})
	if err != nil {
		return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

func kubeConfig(o *joinOptions) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kube
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.context}).ClientConfig()
	if err != nil {
		return nil, usagef("--context %s: %w", o.context, err)
	}
	config.UserAgent = installer
	return config, nil
}
