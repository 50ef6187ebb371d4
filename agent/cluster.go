package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/agent/internal/session"
	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
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

func (a *Agent) openSecrets() (state.Store, error) {
	config := apply.Tuned(a.config)
	client, err := kube.New(config)
	if err != nil {
		return nil, err
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	secrets := meta.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"})
	return state.OpenSecrets(client.Secrets(a.o.Namespace), secrets.Namespace(a.o.Namespace), a.o.Log.With("part", "state"))
}

// findCluster asks the cluster who it is, until it answers.
func (a *Agent) findCluster(ctx context.Context, client *kube.Client) (cluster, error) {
	tries := backoff.New(backoff.Policy{Min: 500 * time.Millisecond, Max: 30 * time.Second}, rand.Float64)
	for waiting := false; ; waiting = true {
		c, err := ask(ctx, client)
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return cluster{}, ctx.Err()
		}
		if !waiting {
			a.o.Log.Warn("the cluster's API server does not answer as it should; trying again", "server", a.config.Host, "error", err)
		}
		if err := backoff.Wait(ctx, tries.Next()); err != nil {
			return cluster{}, err
		}
	}
}

func ask(ctx context.Context, client *kube.Client) (cluster, error) {
	uid, err := clusterUID(ctx, client)
	if err != nil {
		return cluster{}, err
	}
	v, err := client.Version(ctx)
	if err != nil {
		return cluster{}, fmt.Errorf("version of the API server: %w", err)
	}
	return cluster{uid: uid, version: v}, nil
}

// askTime bounds one question to the API server.
const askTime = 10 * time.Second

// clusterUID is what tells one cluster from another.
func clusterUID(ctx context.Context, client *kube.Client) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	ns, err := client.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return string(ns.UID), nil
}

// admit is asked before the Lease is taken: behind the same address there may be another cluster by now, and the state
// may be that of another one. It returns the state's last tenure.
func (a *Agent) admit(ctx context.Context, client *kube.Client, s state.Store, c cluster) (state.Tenure, error) {
	uid, err := clusterUID(ctx, client)
	if err != nil {
		return state.Tenure{}, err
	}
	if uid != c.uid {
		return state.Tenure{}, a.otherCluster("this agent was started in", c.uid, uid)
	}
	was, err := s.Tenure(ctx)
	if err != nil {
		return was, err
	}
	if was.Cluster != "" && was.Cluster != c.uid {
		return was, a.otherCluster(a.stateName()+" is of", was.Cluster, c.uid)
	}
	return was, nil
}

func (a *Agent) stateName() string {
	if a.o.StateDir == "" {
		return "the state in the Secrets of namespace " + a.o.Namespace
	}
	return "state directory " + a.o.StateDir
}

func (a *Agent) otherCluster(whose, was, is string) error {
	return fleet.Errorf(fleet.ErrPrecondition, "%s the cluster with UID %s, and %s is the cluster with UID %s (of its namespace kube-system): nothing is written. "+
		"Use the kubeconfig of the first one. If the cluster was made anew: towline cluster join NAME --reissue, and start the agent with the new join token and without its old state (another --state-dir)",
		whose, was, apply.Host(a.config), is)
}

// leased is what a tenure has of the fence.
type leased interface {
	Check() error
	Epoch() uint64
}

// take makes the state ours. Nothing is read from it before. Where that fails for a while though the Lease is renewed, it is for somebody else to try.
func (a *Agent) take(ctx context.Context, f leased, s state.Store, c cluster) error {
	tries := backoff.New(backoff.Policy{Min: 200 * time.Millisecond, Max: 10 * time.Second}, rand.Float64)
	var failing unreadable
	for waiting := false; ; waiting = true {
		held := f.Check()
		err := held
		if held == nil {
			err = s.Take(ctx, state.Tenure{Cluster: c.uid, Epoch: f.Epoch()})
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case held == nil && (errors.Is(err, fleet.ErrPrecondition) || errors.Is(err, fleet.ErrStale)):
			return err // what may follow the state's last tenure is decided before the Lease is taken
		case failing.gives(held == nil):
			return fmt.Errorf("take the state: %w: %w", state.ErrUnread, err)
		case !waiting:
			a.o.Log.Warn("the state cannot be taken yet; trying again", "error", err)
		}
		if err := backoff.Wait(ctx, tries.Next()); err != nil {
			return err
		}
	}
}

const (
	// unreadFor is for how long the Lease is kept by who has it and cannot read the state.
	unreadFor = 2 * time.Minute
	// unreadRest is how long the Lease is left to others then: all that wait for it have looked by the end, also where it could not be given
	// back and has to run out.
	unreadRest = 30 * time.Second
)

// unreadable is since when the state could not be read; zero: it could, or the Lease was not renewed either.
type unreadable struct{ since time.Time }

// gives reports, after another failure, that it is for somebody else to try.
func (u *unreadable) gives(covered bool) bool {
	switch {
	case !covered:
		u.since = time.Time{}
	case u.since.IsZero():
		u.since = time.Now()
	default:
		return time.Since(u.since) > unreadFor
	}
	return false
}

// tenures has the Lease until that ends for good. Who gives it back because he cannot read the state waits for it anew, behind those who wait.
func (a *Agent) tenures(ctx context.Context, run func() error) error {
	for {
		err := run()
		if ctx.Err() != nil || !errors.Is(err, state.ErrUnread) {
			return err
		}
		a.o.Log.Warn("the state cannot be read; the lease is given back, for another agent of this cluster may be able to", "error", err)
		if err := backoff.Wait(ctx, unreadRest); err != nil {
			return err
		}
	}
}

// tenure leads until that ends for good. What could not be read of the state is read again, until that has failed for a while though the Lease is
// renewed: then it is for somebody else to try.
func (a *Agent) tenure(ctx context.Context, covered, lead func() error) error {
	tries := backoff.New(backoff.Policy{Min: 500 * time.Millisecond, Max: 30 * time.Second}, rand.Float64)
	var failing unreadable
	for {
		began := time.Now()
		err := lead()
		switch {
		case errors.Is(err, session.ErrRestart):
			failing = unreadable{}
			continue
		case ctx.Err() != nil || !errors.Is(err, state.ErrUnread):
			return err
		}
		if led := time.Since(began) > unreadFor; led {
			failing = unreadable{}
			tries.Reset()
		}
		if failing.gives(covered() == nil) {
			return err
		}
		a.o.Log.Warn("the state cannot be read yet; trying again", "error", err)
		if err := backoff.Wait(ctx, tries.Next()); err != nil {
			return err
		}
	}
}

// getter reads live objects for people.
type getter struct {
	client *apply.Client
	mapper *apply.Mapper
	// conceal masks what modules put into objects that nobody may be shown.
	conceal func(fleet.ObjectID, map[string]any) error
}

func newGetter(config *rest.Config, conceal func(fleet.ObjectID, map[string]any) error) (*getter, error) {
	client, err := apply.NewClient(config)
	if err != nil {
		return nil, err
	}
	return &getter{client: client, mapper: apply.NewMapper(client), conceal: conceal}, nil
}

// get is one live object as JSON, without managed fields and with the values of Secrets masked.
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
	if kube.IsGone(err) {
		return nil, fleet.Errorf(fleet.ErrNotFound, "%s: is not in the cluster", e.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.ID, err)
	}
	if err := g.conceal(e.ID, object); err != nil {
		return nil, fmt.Errorf("%s: %w", e.ID, err)
	}
	return json.Marshal(shown(object))
}

// shown is an object without what is secret and what nobody reads.
func shown(object map[string]any) map[string]any {
	if metadata, ok := object["metadata"].(map[string]any); ok {
		delete(metadata, "managedFields")
	}
	out, _ := manifest.Mask(object)
	return out
}
