package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/plan"
)

// Survey is what a cluster serves, as far as it can be found out.
type Survey struct {
	// Resources are those whose objects can be listed and deleted, each group and resource once: in the version that the
	// server prefers, or in the first of those that have it.
	Resources []Resource
	// Failed are the versions of groups that are registered and do not answer: what they hold cannot be seen.
	Failed []Unavailable
}

// Unavailable is a version of a group that is registered and does not say what it serves.
type Unavailable struct {
	schema.GroupVersion
	Err error
}

// discoveryParallel is how many versions of groups are asked at once.
const discoveryParallel = 8

// Everything asks every version of every group what it serves. It asks for each apart, and not for the aggregated
// document: that one lags behind what aggregated API servers serve by up to a minute.
func (m *Mapper) Everything(ctx context.Context) (Survey, error) {
	groups, err := m.listed(ctx)
	if err != nil {
		return Survey{}, err
	}
	gvs := []schema.GroupVersion{{Version: "v1"}}
	for _, g := range groups {
		of, err := versionsOf(g)
		if err != nil {
			return Survey{}, err
		}
		gvs = append(gvs, of...)
	}
	unlisted, err := m.unlisted(ctx, gvs)
	if err != nil {
		return Survey{}, err
	}
	var crds []defined
	if slices.Contains(gvs, CRDs.GroupVersion()) {
		// Before what is served: what was defined a moment ago is served by then, unless the API server is behind.
		var behind []Unavailable
		if crds, behind, err = m.allDefined(ctx); err != nil {
			return Survey{}, err
		}
		unlisted = append(unlisted, behind...)
	}
	lists, failed := make([][]metav1.APIResource, len(gvs)), make([]error, len(gvs))
	var group errgroup.Group
	group.SetLimit(discoveryParallel)
	for i, gv := range gvs {
		group.Go(func() error {
			return guard.Run(func() error {
				lists[i], failed[i] = m.list(ctx, gv)
				return nil
			})
		})
	}
	if err := group.Wait(); err != nil {
		return Survey{}, guard.Bug(err, "the APIs of the cluster were not read for a bug in the agent; its log has the details")
	}
	out := Survey{Failed: unlisted}
	seen := map[schema.GroupResource]bool{}
	for i, gv := range gvs {
		if failed[i] != nil {
			out.Failed = append(out.Failed, Unavailable{gv, failed[i]})
		}
		for _, r := range lists[i] {
			at := gv.WithResource(r.Name)
			if seen[at.GroupResource()] || !deletable(r) {
				continue
			}
			seen[at.GroupResource()] = true
			out.Resources = append(out.Resources, Resource{GroupVersionResource: at, Kind: r.Kind, Namespaced: r.Namespaced})
		}
	}
	unknown, err := m.unknown(ctx, slices.DeleteFunc(crds, func(crd defined) bool { return seen[schema.ParseGroupResource(crd.name)] }), slices.Clone(out.Failed))
	out.Failed = append(out.Failed, unknown...)
	return out, err
}

// unknown are the versions of groups in which the API server does not list a kind that a CRD defines, though it lists the version: it is behind another
// one, which serves the kind already. What has failed of the kind's group tells enough.
func (m *Mapper) unknown(ctx context.Context, crds []defined, failed []Unavailable) ([]Unavailable, error) {
	var out []Unavailable
	for _, x := range crds {
		name := x.name
		if slices.ContainsFunc(failed, func(u Unavailable) bool { return u.Group == schema.ParseGroupResource(name).Group }) {
			continue
		}
		crd, err := m.client.Get(ctx, CRDs, "", name)
		if err != nil && !kube.IsGone(err) {
			return nil, fmt.Errorf("definition %s: %w", name, err)
		}
		at, serves := ResourceOfCRD(crd)
		if err != nil || !serves || !Established(crd) {
			continue
		}
		registered, err := m.client.Registration(ctx, at.GroupVersion())
		if err != nil && !kube.IsGone(err) {
			return nil, fmt.Errorf("registration of %s: %w", at.GroupVersion(), err)
		}
		if registered.Service == "" { // else another API server has the version, and nobody serves what is defined
			x := Unavailable{at.GroupVersion(), fmt.Errorf("the kind of CustomResourceDefinition %s %w", name, errUnlisted)}
			out, failed = append(out, x), append(failed, x)
		}
	}
	return out, nil
}

// errUnlisted is of a version that is registered and that the API server leaves out of its list.
var errUnlisted = errors.New("is registered, and the API server does not list it: it may just have started")

// Unlisted reports that the version is registered and that the API server leaves it out of its list, or may list it as it was.
func (u Unavailable) Unlisted() bool {
	return errors.Is(u.Err, errUnlisted) || errors.Is(u.Err, errOutdated)
}

// unlisted are the versions that are registered and not among those that the API server lists. One that has just started
// lists only what it has read of the registrations so far, as if that were all.
func (m *Mapper) unlisted(ctx context.Context, listed []schema.GroupVersion) ([]Unavailable, error) {
	var out []Unavailable
	err := m.client.EachMeta(ctx, apiServices, "", "", func(o *metav1.PartialObjectMetadata) bool {
		version, group, _ := strings.Cut(o.Name, ".")
		if gv := (schema.GroupVersion{Group: group, Version: version}); !slices.Contains(listed, gv) {
			out = append(out, Unavailable{gv, errUnlisted})
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("registered APIs: %w", err)
	}
	return out, nil
}

// versionsOf are the versions of a group, the preferred one first.
func versionsOf(g metav1.APIGroup) ([]schema.GroupVersion, error) {
	var out []schema.GroupVersion
	for _, v := range append([]metav1.GroupVersionForDiscovery{g.PreferredVersion}, g.Versions...) {
		gv, err := schema.ParseGroupVersion(v.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("discovery of group %s: %w", g.Name, err)
		}
		if !gv.Empty() && !slices.Contains(out, gv) {
			out = append(out, gv)
		}
	}
	return out, nil
}

// deletable reports that objects of the resource can be listed and deleted. Subresources are no objects.
func deletable(r metav1.APIResource) bool {
	return !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "delete")
}

// list asks what a version of a group serves. One that the server does not have is an error, too.
func (m *Mapper) list(ctx context.Context, gv schema.GroupVersion) ([]metav1.APIResource, error) {
	path := []string{"/apis", gv.Group, gv.Version}
	if gv.Group == "" {
		path = []string{"/api", gv.Version}
	}
	raw, err := m.client.raw(ctx, path...)
	if err != nil {
		return nil, fmt.Errorf("discovery of %s: %w", gv, err)
	}
	var list metav1.APIResourceList
	if err := readAs(raw, &list, &list.Kind, "APIResourceList"); err != nil {
		return nil, fmt.Errorf("discovery of %s: %w", gv, err)
	}
	return list.APIResources, nil
}

// Served is where objects of the kind are, in the version that is given or, if the kind is not served in it any more, in
// another one: an identity has no version. gone says that the kind has gone from the cluster, and its objects with it:
// every version that its group has answered, none has the kind, no CRD defines it, and no version of the group is registered that the API server does
// not list, as long as it has just started. Whatever else keeps the kind from being found is an error.
func (m *Mapper) Served(ctx context.Context, id fleet.ObjectID, version string) (r Resource, gone bool, err error) {
	r, err = m.Resource(ctx, id, version)
	if err == nil || Explain(id, err).Reason != ReasonNoKind {
		return r, false, err
	}
	gvs, err := m.versions(ctx, id.Group)
	if err != nil {
		return Resource{}, false, err
	}
	for _, gv := range gvs {
		list, err := m.list(ctx, gv)
		if err != nil {
			return Resource{}, false, &Failure{Reason: ReasonUnavailable, Transient: true, Kind: fleet.ErrUnavailable, Message: err.Error()}
		}
		for _, r := range list {
			if r.Kind == id.Kind && !strings.Contains(r.Name, "/") {
				return Resource{GroupVersionResource: gv.WithResource(r.Name), Kind: r.Kind, Namespaced: r.Namespaced}, false, nil
			}
		}
	}
	crd, err := m.definition(ctx, id)
	if err != nil {
		return Resource{}, false, err
	}
	if crd != "" {
		return Resource{}, false, &Failure{Reason: ReasonNoKind, Transient: true, Kind: fleet.ErrNotFound, Message: fmt.Sprintf(
			"%s: CustomResourceDefinition %s serves no version of the kind, so its objects cannot be seen; have it serve one again, or delete it", id, crd)}
	}
	if plan.IsCustom(id) { // no other kind goes with its API
		err = m.allListed(ctx, id.Group, gvs)
	}
	return Resource{}, err == nil, err
}

// allListed is an error if a version of a group is registered and not among those that the API server lists. An agent that has no right to see the
// registrations takes what is listed for all.
func (m *Mapper) allListed(ctx context.Context, group string, listed []schema.GroupVersion) error {
	missed, err := m.unlisted(ctx, listed)
	if m.registersNone(ctx, err) {
		return nil
	}
	if lacks, _ := m.unseen.Note(err, time.Now()); lacks {
		return nil
	}
	for _, x := range missed {
		if err == nil && x.Group == group {
			err = fmt.Errorf("%s %w", x.GroupVersion, x.Err)
		}
	}
	if err != nil {
		return &Failure{Reason: ReasonUnavailable, Transient: true, Kind: fleet.ErrUnavailable, Message: err.Error()}
	}
	return nil
}

// versions are those that a group has; none if there is no such group.
func (m *Mapper) versions(ctx context.Context, group string) ([]schema.GroupVersion, error) {
	if group == "" {
		return []schema.GroupVersion{{Version: "v1"}}, nil
	}
	raw, err := m.client.raw(ctx, "/apis", group)
	if kube.Is(err, kube.Unserved, kube.Gone) {
		none, unread := m.noGroup(ctx, group)
		if none || unread != nil {
			return nil, unread
		}
	}
	if err != nil {
		return nil, fmt.Errorf("discovery of group %s: %w", group, err)
	}
	var g metav1.APIGroup
	if err := readAs(raw, &g, &g.Kind, "APIGroup"); err != nil {
		return nil, fmt.Errorf("discovery of group %s: %w", group, err)
	}
	return versionsOf(g)
}

// listed are the groups that the API server lists.
func (m *Mapper) listed(ctx context.Context) ([]metav1.APIGroup, error) {
	raw, err := m.client.raw(ctx, "/apis")
	if err != nil {
		return nil, fmt.Errorf("discovery of groups: %w", err)
	}
	var groups metav1.APIGroupList
	if err := readAs(raw, &groups, &groups.Kind, "APIGroupList"); err != nil {
		return nil, fmt.Errorf("discovery of groups: %w", err)
	}
	return groups.Groups, nil
}

// noGroup reports that the API server has no group of the name. That it does not know the path of the group does not say so: any page says that.
func (m *Mapper) noGroup(ctx context.Context, name string) (bool, error) {
	groups, err := m.listed(ctx)
	return err == nil && !slices.ContainsFunc(groups, func(g metav1.APIGroup) bool { return g.Name == name }), err
}

// registersNone reports that a look at registrations failed because the API server can have no others behind it.
func (m *Mapper) registersNone(ctx context.Context, err error) bool {
	if !kube.Is(err, kube.Unserved) {
		return false
	}
	none, _ := m.noGroup(ctx, apiServices.Group)
	return none
}

// CRDs is where the definitions of kinds are.
var CRDs = Resource{Kind: "CustomResourceDefinition", GroupVersionResource: schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}}

// definition is the name of the CRD that defines a kind, or empty.
func (m *Mapper) definition(ctx context.Context, id fleet.ObjectID) (string, error) {
	crds, err := m.definitions(ctx, id.Group)
	if err != nil {
		return "", err
	}
	for _, x := range crds {
		name := x.name
		crd, err := m.client.Get(ctx, CRDs, "", name)
		if kube.IsGone(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("definition %s: %w", name, err)
		}
		if kind, _, _ := unstructured.NestedString(crd, "spec", "names", "kind"); kind == id.Kind {
			return name, nil
		}
	}
	return "", nil
}

// Registration is how a version of an API group is served by something else than the API server.
type Registration struct {
	// Name is the APIService's.
	Name string
	// Service is NAMESPACE/NAME of what serves it; empty: the API server does.
	Service string
	// Trouble is why it is unavailable, in the API server's words.
	Trouble string
}

// Registration reads the APIService of a version of a group.
func (c *Client) Registration(ctx context.Context, gv schema.GroupVersion) (Registration, error) {
	out := Registration{Name: gv.Version + "." + gv.Group}
	obj, err := c.Get(ctx, apiServices, "", out.Name)
	if err != nil {
		return out, err
	}
	namespace, _, _ := unstructured.NestedString(obj, "spec", "service", "namespace")
	name, _, _ := unstructured.NestedString(obj, "spec", "service", "name")
	if name != "" {
		out.Service = namespace + "/" + name
	}
	for _, c := range conditionsOf(obj) {
		if c["type"] == "Available" && c["status"] == "False" {
			out.Trouble = fmt.Sprintf("%v: %v", c["reason"], c["message"])
		}
	}
	return out, nil
}

var apiServices = Resource{Kind: "APIService", GroupVersionResource: schema.GroupVersionResource{
	Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}}

// Established reports that a CRD serves its kinds, or did.
func Established(crd map[string]any) bool {
	return slices.ContainsFunc(conditionsOf(crd), func(c map[string]any) bool {
		return c["type"] == "Established" && c["status"] == "True"
	})
}

// NamespaceTrouble is what Kubernetes says of a namespace that it cannot delete yet, the worst first; empty: nothing.
func NamespaceTrouble(namespace map[string]any) string {
	var parts []string
	for _, t := range []string{"NamespaceDeletionDiscoveryFailure", "NamespaceDeletionGroupVersionParsingFailure",
		"NamespaceDeletionContentFailure", "NamespaceContentRemaining", "NamespaceFinalizersRemaining"} {
		for _, c := range conditionsOf(namespace) {
			if message, _ := c["message"].(string); c["type"] == t && c["status"] == "True" {
				parts = append(parts, t+": "+message)
			}
		}
	}
	return strings.Join(parts, "; ")
}

func conditionsOf(obj map[string]any) []map[string]any {
	list, _, _ := unstructured.NestedSlice(obj, "status", "conditions")
	var out []map[string]any
	for _, x := range list {
		if c, ok := x.(map[string]any); ok {
			out = append(out, c)
		}
	}
	return out
}
