package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// Mapper knows which resource a kind is. It asks the server for one group and version at a time, when a kind of it is
// first used.
type Mapper struct {
	client *Client
	mu     sync.Mutex
	groups map[schema.GroupVersion]*discovered
	// statuses says of every resource that was ever discovered whether it has a status subresource. It outlives Reset: a
	// kind that is asked for again must not be without it meanwhile.
	statuses map[schema.GroupVersionResource]bool
	// aggregated are the versions of groups that an API server of their own served when they were discovered.
	aggregated map[schema.GroupVersion]bool
	refused    Refusals // of looks at a registration
	unseen     Refusals // of looks at all registrations
	undefined  Refusals // of looks at all definitions of kinds
	// undescribed are those of looks at one.
	undescribed RefusalsBy
}

type discovered struct {
	done  chan struct{}
	at    time.Time
	kinds map[string]Resource
	err   error
}

// staleAfter is how old a list of kinds must be to be read again for a kind that is not in it.
const staleAfter = 2 * time.Second

// NewMapper is a Mapper that knows nothing yet.
func NewMapper(c *Client) *Mapper {
	return &Mapper{client: c, groups: map[schema.GroupVersion]*discovered{}, statuses: map[schema.GroupVersionResource]bool{},
		aggregated: map[schema.GroupVersion]bool{}}
}

// Resource is where objects of the kind are. A kind that the cluster does not have is a Failure with ReasonNoKind.
func (m *Mapper) Resource(ctx context.Context, id fleet.ObjectID, version string) (Resource, error) {
	gv := schema.GroupVersion{Group: id.Group, Version: version}
	d, mine := m.lookup(gv, id.Kind)
	if mine {
		d.kinds, d.err = m.fetch(ctx, gv)
		d.at = time.Now()
		close(d.done)
	}
	select {
	case <-d.done:
	case <-ctx.Done():
		return Resource{}, ctx.Err()
	}
	if d.err != nil {
		m.forget(gv, d)
		return Resource{}, d.err
	}
	if r, ok := d.kinds[id.Kind]; ok {
		return r, nil
	}
	return Resource{}, &Failure{Reason: ReasonNoKind, Transient: true, Kind: fleet.ErrNotFound, Message: fmt.Sprintf(
		"%s: no such kind in the cluster: %s in %s; is its CRD part of another module?", id, id.Kind, gv)}
}

// Known is where objects of the kind are, if that needs no request.
func (m *Mapper) Known(id fleet.ObjectID, version string) (Resource, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.groups[schema.GroupVersion{Group: id.Group, Version: version}]
	if d == nil {
		return Resource{}, false
	}
	select {
	case <-d.done:
		r, ok := d.kinds[id.Kind]
		return r, ok
	default:
		return Resource{}, false
	}
}

// lookup is the entry to wait for; mine says that the caller has to fill it.
func (m *Mapper) lookup(gv schema.GroupVersion, kind string) (d *discovered, mine bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d = m.groups[gv]
	if d != nil {
		select {
		case <-d.done:
		default:
			return d, false
		}
		_, known := d.kinds[kind]
		if d.err == nil && (known || time.Since(d.at) < staleAfter) {
			return d, false
		}
	}
	d = &discovered{done: make(chan struct{})}
	m.groups[gv] = d
	return d, true
}

func (m *Mapper) forget(gv schema.GroupVersion, d *discovered) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.groups[gv] == d {
		delete(m.groups, gv)
	}
}

// fetch asks for the kinds of a version; one that the server does not have has none.
func (m *Mapper) fetch(ctx context.Context, gv schema.GroupVersion) (map[string]Resource, error) {
	list, err := m.list(ctx, gv)
	if err != nil && !kube.Is(err, kube.Unserved, kube.Gone) {
		return nil, err
	}
	kinds := make(map[string]Resource, len(list))
	for _, r := range list {
		if strings.Contains(r.Name, "/") {
			continue
		}
		kinds[r.Kind] = Resource{GroupVersionResource: gv.WithResource(r.Name), Kind: r.Kind, Namespaced: r.Namespaced}
	}
	m.noteStatuses(gv, list)
	return kinds, m.noteServer(ctx, gv, list)
}

// noteServer finds out whether a version of a group that is not Kubernetes' own has an API server of its own. What was known stays where nothing is
// said of that: of one that the agent has no right to see, or that is not registered any more though it has just answered.
func (m *Mapper) noteServer(ctx context.Context, gv schema.GroupVersion, list []metav1.APIResource) error {
	if len(list) == 0 || slices.ContainsFunc(list, func(r metav1.APIResource) bool { _, known := manifest.Namespaced(gv.Group, r.Kind); return known }) {
		return nil
	}
	s, err := m.client.Registration(ctx, gv)
	if m.registersNone(ctx, err) {
		err = nil
	}
	lacks, _ := m.refused.Note(err, time.Now())
	switch {
	case lacks, kube.Is(err, kube.Gone):
		return nil
	case kube.Is(err, kube.Forbidden): // as by an API server that starts: what is there would pass for gone once it is not registered
		return &Failure{Reason: ReasonUnavailable, Transient: true, Kind: fleet.ErrUnavailable, Message: fmt.Sprintf("registration of %s: %v", gv, err)}
	case err != nil:
		return fmt.Errorf("registration of %s: %w", gv, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.aggregated[gv] = s.Service != ""
	return nil
}

// Aggregated reports that the objects of a resource are with an API server of its own. It asks nobody.
func (m *Mapper) Aggregated(r Resource) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.aggregated[r.GroupVersion()]
}

// statusSuffix is how the name of a status subresource ends.
const statusSuffix = "/status"

func (m *Mapper) noteStatuses(gv schema.GroupVersion, list []metav1.APIResource) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range list {
		if !strings.Contains(r.Name, "/") {
			m.statuses[gv.WithResource(r.Name)] = false
		}
	}
	for _, r := range list {
		if name, ok := strings.CutSuffix(r.Name, statusSuffix); ok {
			m.statuses[gv.WithResource(name)] = true
		}
	}
}

// HasStatus reports that a resource has a status subresource, which its controller writes. It asks nobody.
func (m *Mapper) HasStatus(r Resource) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.statuses[r.GroupVersionResource]
}

// Learn takes the kinds of an established CRD, so that its objects need no discovery.
func (m *Mapper) Learn(crd map[string]any) {
	group, _, _ := unstructured.NestedString(crd, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd, "spec", "names", "kind")
	plural, _, _ := unstructured.NestedString(crd, "spec", "names", "plural")
	scope, _, _ := unstructured.NestedString(crd, "spec", "scope")
	versions, _, _ := unstructured.NestedSlice(crd, "spec", "versions")
	if group == "" || kind == "" || plural == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range versions {
		version, _ := v.(map[string]any)
		if served, _ := version["served"].(bool); !served {
			continue
		}
		name, _ := version["name"].(string)
		_, status, _ := unstructured.NestedMap(version, "subresources", "status")
		m.statuses[schema.GroupVersionResource{Group: group, Version: name, Resource: plural}] = status
		m.learn(schema.GroupVersion{Group: group, Version: name}, Resource{Kind: kind, Namespaced: scope == "Namespaced",
			GroupVersionResource: schema.GroupVersionResource{Group: group, Version: name, Resource: plural}})
	}
}

func (m *Mapper) learn(gv schema.GroupVersion, r Resource) {
	kinds := map[string]Resource{}
	if old := m.groups[gv]; old != nil {
		select {
		case <-old.done:
			for k, v := range old.kinds {
				kinds[k] = v
			}
		default:
			return
		}
	}
	kinds[r.Kind] = r
	d := &discovered{done: make(chan struct{}), kinds: kinds, at: time.Now()}
	close(d.done)
	m.groups[gv] = d
}

// ResetAll forgets every group.
func (m *Mapper) ResetAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.groups) // who waits for an answer has it all the same
}

// Reset forgets a group, after one of its kinds turned out to be gone.
func (m *Mapper) Reset(group string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for gv, d := range m.groups {
		select {
		case <-d.done:
		default:
			continue
		}
		if gv.Group == group {
			delete(m.groups, gv)
		}
	}
}

// NameOf is the name of an object.
func NameOf(obj map[string]any) string {
	name, _, _ := unstructured.NestedString(obj, "metadata", "name")
	return name
}

// GroupOfCRD is the group whose kind a CRD defines.
func GroupOfCRD(crd map[string]any) string {
	group, _, _ := unstructured.NestedString(crd, "spec", "group")
	return group
}

// ResourceOfCRD is where the objects are whose kind a CRD defines: in the version that they are stored in, if that is served,
// for it needs no webhook that converts.
func ResourceOfCRD(crd map[string]any) (out Resource, ok bool) {
	kind, _, _ := unstructured.NestedString(crd, "spec", "names", "kind")
	plural, _, _ := unstructured.NestedString(crd, "spec", "names", "plural")
	scope, _, _ := unstructured.NestedString(crd, "spec", "scope")
	versions, _, _ := unstructured.NestedSlice(crd, "spec", "versions")
	for _, v := range versions {
		version, _ := v.(map[string]any)
		name, _ := version["name"].(string)
		served, _ := version["served"].(bool)
		stored, _ := version["storage"].(bool)
		if !served || ok && !stored {
			continue
		}
		out, ok = Resource{Kind: kind, Namespaced: scope == "Namespaced", GroupVersionResource: schema.GroupVersionResource{
			Group: GroupOfCRD(crd), Version: name, Resource: plural}}, true
	}
	return out, ok
}
