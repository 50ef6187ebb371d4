package render

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// Reads is what the templates of a chart ask of the cluster that they are rendered for.
type Reads struct {
	// Version says that they ask for the version of Kubernetes.
	Version bool `json:"version,omitempty"`
	// APIs are those of which they ask whether they are served, ascending.
	APIs []string `json:"apis,omitempty"`
	// All says that what they ask cannot be told from their text: they may ask for everything.
	All bool `json:"all,omitempty"`
}

// Any reports that they ask for something.
func (r Reads) Any() bool { return r.Version || r.All || len(r.APIs) > 0 }

// Of is the part of capabilities that is asked for: clusters of which it is the same are rendered for alike.
func (r Reads) Of(c fleet.Capabilities) fleet.Capabilities {
	if r.All {
		return c
	}
	var out fleet.Capabilities
	if r.Version {
		out.KubeVersion = c.KubeVersion
	}
	for _, api := range r.APIs {
		if c.Has(api) {
			out.APIs = append(out.APIs, api)
		}
	}
	return out
}

// And is what both ask for together.
func (r Reads) And(x Reads) Reads {
	out := Reads{Version: r.Version || x.Version, All: r.All || x.All, APIs: slices.Concat(r.APIs, x.APIs)}
	slices.Sort(out.APIs)
	out.APIs = slices.Compact(out.APIs)
	return out
}

const asked = "Capabilities"

// has is what follows where a template asks whether one API is served, and names it.
var has = regexp.MustCompile("^\\.APIVersions\\.Has\\s+(\"[^\"\\\\\\n]*\"|`[^`]*`)")

// ReadsIn is what a text asks for, that of a template or of a value that a template may be made of.
func ReadsIn(text string) (out Reads) {
	for {
		_, after, found := strings.Cut(text, asked)
		if !found {
			break
		}
		text = after
		switch of := has.FindStringSubmatch(text); {
		case strings.HasPrefix(text, ".KubeVersion"):
			out.Version = true
		case strings.HasPrefix(text, ".HelmVersion"): // that is no cluster's
		case of != nil:
			api, err := strconv.Unquote(of[1])
			out.All = out.All || err != nil
			out.APIs = append(out.APIs, api)
		default:
			out.All = true
		}
	}
	slices.Sort(out.APIs)
	out.APIs = slices.Compact(out.APIs)
	return out
}
