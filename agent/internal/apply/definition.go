package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// errOutdated is of a definition that the API server which answers does not know as it is now.
var errOutdated = errors.New("is not known as it is now to the API server that answers, which may be behind another one: it is asked again")

func outdated(crd string) *Failure { return undescribed(crd + " " + errOutdated.Error()) }

// undescribed is that nobody can go by a definition now.
func undescribed(text string) *Failure {
	return &Failure{Reason: ReasonUnavailable, Transient: true, Kind: fleet.ErrUnavailable, Message: "CustomResourceDefinition " + text}
}

// knows is errOutdated if the API server that answers has not heard yet of a version of a definition, by which it would serve the kind. It answers from
// what it has heard, and waits three seconds for the version before it says that it has not.
func (c *Client) knows(ctx context.Context, crd, version string) error {
	_, err := bytesOf(c.rest.Get().MaxRetries(0).AbsPath(CRDs.segments("", crd)...).SetHeader("Accept", acceptMeta).Param("resourceVersion", version).Do(ctx))
	switch {
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return errOutdated
	case kube.IsGone(err): // which says that it has heard of more
		return nil
	}
	return err
}

// Abreast is an error unless the API server that answers knows how a kind is defined now. One of several whose watches of the store stand still goes by a
// definition that was: by that it finds no object, refuses what may be changed, and takes away fields that it does not know. A kind of which no definition
// can be seen counts as known: it is Kubernetes' own, or of an API server of its own. The definition is returned if there is one.
func (m *Mapper) Abreast(ctx context.Context, r Resource) (crd map[string]any, err error) {
	if _, known := manifest.Namespaced(r.Group, r.Kind); known || m.Aggregated(r) {
		return nil, nil
	}
	name := r.GroupResource().String()
	crd, err = m.client.Get(ctx, CRDs, "", name)
	switch lacks, _ := m.undescribed.Note(name, err, time.Now()); {
	case lacks:
		return nil, nil
	case kube.IsGone(err):
		return nil, m.unlessRenamed(ctx, r)
	case err != nil:
		return nil, unread(name, err)
	}
	if scope, _, _ := unstructured.NestedString(crd, "spec", "scope"); (scope == "Namespaced") != r.Namespaced {
		m.Reset(r.Group)
		return crd, outdated(name)
	}
	version, _, _ := unstructured.NestedString(crd, "metadata", "resourceVersion")
	if err = m.client.knows(ctx, name, version); errors.Is(err, errOutdated) {
		return crd, outdated(name)
	}
	return crd, err
}

// Knows is an error unless the API server that answers has heard of the definition of a kind as it is now: a write by an older one takes away what it does
// not know, whoever set that.
func (m *Mapper) Knows(ctx context.Context, r Resource) error {
	if _, known := manifest.Namespaced(r.Group, r.Kind); known || m.Aggregated(r) {
		return nil
	}
	name := r.GroupResource().String()
	crd, err := m.client.GetMeta(ctx, CRDs, "", name)
	switch lacks, _ := m.undescribed.Note(name, err, time.Now()); {
	case lacks, kube.IsGone(err):
		return nil
	case err == nil:
		err = m.client.knows(ctx, name, crd.ResourceVersion)
	}
	switch {
	case errors.Is(err, errOutdated):
		return outdated(name)
	case err != nil:
		return unread(name, err)
	}
	return nil
}

// unread is why a definition could not be read. What is refused is no verdict on an object whose kind it is: it is asked again, until it is known that
// the agent lacks the right.
func unread(crd string, err error) error {
	if !kube.Is(err, kube.Forbidden) {
		return fmt.Errorf("definition %s: %w", crd, err)
	}
	return undescribed(crd + ": " + err.Error())
}

// unlessRenamed is an error if a kind is defined under another name than the one under which it was found.
func (m *Mapper) unlessRenamed(ctx context.Context, r Resource) error {
	name, err := m.definition(ctx, fleet.ObjectID{Group: r.Group, Kind: r.Kind})
	switch lacks, _ := m.undefined.Note(err, time.Now()); {
	case lacks:
		return nil
	case err != nil || name == "":
		return err
	}
	m.Reset(r.Group)
	return outdated(name)
}

// Sure is Served, of an API server that knows how the kind is defined now. What was known of the kind before is asked anew if it is not so.
func (m *Mapper) Sure(ctx context.Context, id fleet.ObjectID, version string) (r Resource, gone bool, err error) {
	for {
		before := r
		if r, gone, err = m.Served(ctx, id, version); err != nil || gone {
			return r, gone, err
		}
		if _, err = m.Abreast(ctx, r); err == nil || r == before {
			return r, false, err
		}
		if _, known := m.Known(id, version); known { // it is as it was found
			return r, false, err
		}
	}
}

// defined is a CRD by its name, and the version of it that was read.
type defined struct{ name, version string }

// definitions are the CRDs of a group; of all, if it is empty.
func (m *Mapper) definitions(ctx context.Context, of string) (crds []defined, err error) {
	err = m.client.EachMeta(ctx, CRDs, "", "", func(o *metav1.PartialObjectMetadata) bool {
		if _, group, _ := strings.Cut(o.Name, "."); of == "" || group == of {
			crds = append(crds, defined{o.Name, o.ResourceVersion})
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("definitions of kinds: %w", err)
	}
	return crds, nil
}

// allDefined are all CRDs, and the kind of the newest as one that cannot be seen if the API server that answers has not heard of it: it may list any kind
// as it was. An agent that has no right to see them takes what is listed for all.
func (m *Mapper) allDefined(ctx context.Context) (crds []defined, unseen []Unavailable, err error) {
	crds, err = m.definitions(ctx, "")
	if lacks, _ := m.undefined.Note(err, time.Now()); lacks || err == nil && len(crds) == 0 {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	newest := slices.MaxFunc(crds, func(a, b defined) int { return cmp.Compare(ParseVersion(a.version), ParseVersion(b.version)) })
	switch err := m.client.knows(ctx, newest.name, newest.version); {
	case err == nil:
		return crds, nil, nil
	case !errors.Is(err, errOutdated):
		return nil, nil, fmt.Errorf("definition %s: %w", newest.name, err)
	}
	crd, err := m.client.Get(ctx, CRDs, "", newest.name)
	if err != nil && !kube.IsGone(err) {
		return nil, nil, fmt.Errorf("definition %s: %w", newest.name, err)
	}
	gv := schema.GroupVersion{Group: schema.ParseGroupResource(newest.name).Group}
	if at, ok := ResourceOfCRD(crd); ok {
		gv = at.GroupVersion()
	}
	return crds, []Unavailable{{gv, fmt.Errorf("CustomResourceDefinition %s %w", newest.name, errOutdated)}}, nil
}

// Defines reports that a definition has a version, whether that is served or not.
func Defines(crd map[string]any, groupVersion string) bool {
	versions, _, _ := unstructured.NestedSlice(crd, "spec", "versions")
	for _, v := range versions {
		version, _ := v.(map[string]any)
		if name, _ := version["name"].(string); GroupOfCRD(crd)+"/"+name == groupVersion {
			return true
		}
	}
	return false
}
