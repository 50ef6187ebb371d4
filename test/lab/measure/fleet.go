package measure

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/test/lab"
)

// Fleet is a lab of one hub and one cluster with its agent, and a client of the hub.
type Fleet struct {
	*lab.Lab
	Cluster *lab.Cluster
	Agent   *lab.Agent
	Client  *client.Client
	HubID   string
}

// StartFleet starts all as separate processes. root is the repository; dir keeps their logs and state, if it is not
// empty. Close ends them.
func StartFleet(ctx context.Context, root, dir string) (*Fleet, error) {
	bin, kubelab, err := lab.Tools(ctx, root)
	if err != nil {
		return nil, err
	}
	l, err := lab.Start(ctx, lab.Options{Names: []string{"bench"}, Dir: dir, Bin: bin, Kubelab: kubelab})
	if err != nil {
		return nil, err
	}
	f := &Fleet{Lab: l, Cluster: l.Clusters[0]}
	if err := f.join(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// joining is how long the agent may take until the hub has it.
const joining = time.Minute

func (f *Fleet) join(ctx context.Context) error {
	var err error
	if f.Agent, err = f.Join(ctx, f.Cluster); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, joining)
	defer cancel()
	if err := f.WaitState(soon, f.Cluster.Name, "Ready"); err != nil {
		return fmt.Errorf("%w\n%s", err, f.Agent.Tail())
	}
	if f.Client, err = f.Hub.Client(ctx); err != nil {
		return err
	}
	info, err := f.Client.Identity.GetServerInfo(ctx, &v1.GetServerInfoRequest{})
	f.HubID = info.GetHubId()
	return err
}

// Close ends all.
func (f *Fleet) Close() error {
	if f.Client != nil {
		_ = f.Client.Close() // the hub goes, too
	}
	return f.Lab.Close()
}

// StandIn are a hub's id and an owner mark as long as the real ones, for objects that are not the agent's.
func (f *Fleet) StandIn(ctx context.Context, module string) (hubID, owner string, err error) {
	system, err := f.Cluster.Get(ctx, "v1", "Namespace", "", "kube-system")
	if err != nil {
		return "", "", err
	}
	return strings.Repeat("0", len(f.HubID)), fleet.OwnerMark(fleet.ModuleRef{Project: "default", Name: module}, string(system.GetUID()), fleet.ObjectID{}), nil
}

// Namespaces creates namespaces that no module owns.
func (f *Fleet) Namespaces(ctx context.Context, names ...string) error {
	for _, name := range names {
		err := f.Cluster.Create(ctx, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
			"metadata": map[string]any{"name": name}}})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// Put puts a module for the cluster, and returns its rollout's number; 0 if nothing changed.
func (f *Fleet) Put(ctx context.Context, name string, source *v1.Source, policies ...*v1.Policy) (int64, error) {
	m := &v1.Module{ApiVersion: "towline.dev/v1", Kind: "Module", Metadata: &v1.Metadata{Name: name}, Spec: &v1.ModuleSpec{
		Source: source, Placement: &v1.Placement{Selector: &v1.LabelSelector{}}, Policies: policies}}
	got, err := f.Client.Modules.PutModule(ctx, &v1.PutModuleRequest{Module: m})
	if err != nil || got.GetRollout() == "" {
		return 0, err
	}
	_, number, _ := strings.Cut(got.GetRollout(), "/")
	return strconv.ParseInt(number, 10, 64)
}

// Await waits until a rollout has succeeded.
func (f *Fleet) Await(ctx context.Context, module string, number int64) error {
	last, err := f.Client.WaitRollout(ctx, &v1.WatchRolloutRequest{Module: module, Number: number}, nil)
	if err != nil {
		return err
	}
	if s := last.GetStatus(); s.GetState() != "Succeeded" {
		return fmt.Errorf("module %s: rollout %d is %s: %s %s", module, number, s.GetState(), s.GetReason(), s.GetFacts())
	}
	return nil
}

// HTTP is a source at a URL.
func HTTP(url string) *v1.Source { return &v1.Source{Http: &v1.HttpSource{Url: url}} }

// Inline is a source of one file.
func Inline(content string) *v1.Source {
	return &v1.Source{Inline: &v1.InlineSource{Files: map[string]string{"objects.yaml": content}}}
}

// Count is how many objects of a resource a namespace has.
func (f *Fleet) Count(ctx context.Context, apiVersion, kind, namespace string) (int, error) {
	r, err := f.Cluster.Resource(apiVersion, kind, namespace)
	if err != nil {
		return 0, err
	}
	list, err := r.List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	return len(list.Items), nil
}
