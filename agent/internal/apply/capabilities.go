package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"towline.dev/towline/pkg/fleet"
)

// aggregated asks for all that is served in one document; a server that has none answers with the list of groups.
const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList," +
	"application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"

// maxDiscovery bounds an answer.
const maxDiscovery = 64 << 20

// Served reads what charts may ask of a cluster, as Helm does: the version of the API server, the versions of groups that it serves,
// and the kinds in them. It keeps the answers, so that the server need not send again what has not changed. It serves one goroutine.
type Served struct {
	client *Client
	mapper *Mapper
	// answers are those to the questions for all groups, by path.
	answers map[string]*served
	// said is what a version of a group serves, as it said last: one that does not answer for a while serves it still.
	said map[schema.GroupVersion][]string
	// holes are versions that do not answer, and never did: what they serve is not known.
	holes []string
	made  time.Time
}

// holesLast is how long what is served is not known because of versions that do not answer; after that they serve nothing. An API server
// that has just started, and what it aggregates, need some minutes.
const holesLast = 10 * time.Minute

// NewServed has read nothing yet.
func NewServed(c *Client) *Served {
	return &Served{client: c, mapper: NewMapper(c), answers: map[string]*served{}, said: map[schema.GroupVersion][]string{}, made: time.Now()}
}

// served is an answer: all that is served in one document, or what a server that has none says of its groups.
type served struct {
	etag   string
	Kind   string        `json:"kind"`
	Items  []servedGroup `json:"items"`
	Groups []servedGroup `json:"groups"` // of the list of groups
}

type servedGroup struct {
	Name     string `json:"name"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Versions []struct {
		Version   string           `json:"version"`
		Freshness string           `json:"freshness"`
		Resources []servedResource `json:"resources"`
	} `json:"versions"`
}

type servedResource struct {
	ResponseKind struct {
		Kind string `json:"kind"`
	} `json:"responseKind"`
	Subresources []servedResource `json:"subresources"`
}

// Read asks the API server. whole says that it answers in one document, so that it may be asked often.
func (s *Served) Read(ctx context.Context) (out fleet.Capabilities, whole bool, err error) {
	raw, err := s.client.raw(ctx, "/version")
	if err != nil {
		return out, false, fmt.Errorf("version of the API server: %w", err)
	}
	var v version.Info
	if err := json.Unmarshal(raw, &v); err != nil || v.GitVersion == "" {
		return out, false, fmt.Errorf("version of the API server: it answers something else: %.40q", raw)
	}
	said := map[schema.GroupVersion][]string{}
	s.holes = nil
	for _, at := range []string{"/api", "/apis"} {
		answer, err := s.ask(ctx, at)
		if err != nil {
			return out, false, fmt.Errorf("discovery of groups: %w", err)
		}
		if whole = answer.Kind == "APIGroupDiscoveryList"; whole {
			s.inDocument(answer, said)
		} else if err := s.oneByOne(ctx, answer, said); err != nil {
			return out, false, err
		}
	}
	if len(s.holes) > 0 && time.Since(s.made) < holesLast {
		return out, whole, fmt.Errorf("discovery of %s: does not answer yet", strings.Join(s.holes, ", "))
	}
	s.said = said
	out.KubeVersion = v.GitVersion
	apis := map[string]bool{}
	for gv, kinds := range said {
		apis[gv.String()] = true
		for _, kind := range kinds {
			apis[gv.String()+"/"+kind] = true
		}
	}
	out.APIs = slices.Sorted(maps.Keys(apis))
	return out, whole, nil
}

// ask reads one of the two documents, unless it is as before.
func (s *Served) ask(ctx context.Context, at string) (*served, error) {
	before := s.answers[at]
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.client.rest.Get().AbsPath(at).URL().String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", aggregated)
	if before != nil && before.etag != "" {
		req.Header.Set("If-None-Match", before.etag)
	}
	resp, err := s.client.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified && before != nil {
		return before, nil
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxDiscovery))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", at, resp.Status)
	}
	now := &served{etag: resp.Header.Get("ETag")}
	if err := json.Unmarshal(raw, now); err != nil {
		return nil, fmt.Errorf("answer of the API server: %w", err)
	}
	if now.Kind != "APIGroupDiscoveryList" && now.Kind != "APIGroupList" && now.Kind != "APIVersions" {
		return nil, fmt.Errorf("answer of the API server: is %.40q; something else answers in its place", now.Kind)
	}
	s.answers[at] = now
	return now, nil
}

// inDocument notes what a document has.
func (s *Served) inDocument(answer *served, said map[schema.GroupVersion][]string) {
	for _, g := range answer.Items {
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Metadata.Name, Version: v.Version}
			if v.Freshness == "Stale" {
				s.asBefore(gv, said)
				continue
			}
			said[gv] = kindsOf(v.Resources, nil)
		}
	}
}

// kindsOf appends the kinds of resources and of their subresources.
func kindsOf(list []servedResource, kinds []string) []string {
	for _, r := range list {
		if r.ResponseKind.Kind != "" {
			kinds = append(kinds, r.ResponseKind.Kind)
		}
		kinds = kindsOf(r.Subresources, kinds)
	}
	return kinds
}

// asBefore notes a version that does not answer as it was when it did.
func (s *Served) asBefore(gv schema.GroupVersion, said map[schema.GroupVersion][]string) {
	kinds, known := s.said[gv]
	if said[gv] = kinds; !known {
		s.holes = append(s.holes, gv.String())
	}
}

// oneByOne asks each version of the groups.
func (s *Served) oneByOne(ctx context.Context, answer *served, said map[schema.GroupVersion][]string) error {
	gvs := []schema.GroupVersion{}
	if answer.Kind == "APIVersions" {
		gvs = append(gvs, schema.GroupVersion{Version: "v1"})
	}
	for _, g := range answer.Groups {
		for _, v := range g.Versions {
			gvs = append(gvs, schema.GroupVersion{Group: g.Name, Version: v.Version})
		}
	}
	for _, gv := range gvs {
		list, err := s.mapper.list(ctx, gv)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.asBefore(gv, said)
			continue
		}
		said[gv] = []string{}
		for _, r := range list {
			said[gv] = append(said[gv], r.Kind)
		}
	}
	return nil
}
