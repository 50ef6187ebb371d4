package fleet

import (
	"fmt"
	"slices"
	"strings"
)

// Capabilities are what the templates of a chart may ask of a cluster.
type Capabilities struct {
	// KubeVersion is that of the API server, such as v1.33.4.
	KubeVersion string `json:"kubeVersion,omitempty"`
	// APIs are the versions of groups that are served, such as apps/v1, and the kinds in them, such as apps/v1/Deployment: ascending, each once.
	APIs []string `json:"apis,omitempty"`
}

// Digest is the same for the same capabilities; that of none is zero.
func (c Capabilities) Digest() Digest {
	if c.KubeVersion == "" && len(c.APIs) == 0 {
		return Digest{}
	}
	return DigestOf([]byte("towline.capabilities/1\n" + c.KubeVersion + "\n" + strings.Join(c.APIs, "\n")))
}

// Limits of what is kept of a cluster.
const (
	MaxAPIs        = 20000
	MaxAPI         = 512
	MaxKubeVersion = 64
)

// Check says what is wrong with capabilities that somebody claims to have.
func (c Capabilities) Check() error {
	if c.KubeVersion == "" || len(c.KubeVersion) > MaxKubeVersion || !plain(c.KubeVersion) {
		return Invalidf("kubeVersion", "%.80q is no version of Kubernetes", c.KubeVersion)
	}
	if len(c.APIs) > MaxAPIs {
		return Invalidf("apis", "has %d entries; at most %d", len(c.APIs), MaxAPIs)
	}
	for i, api := range c.APIs {
		if api == "" || len(api) > MaxAPI || !plain(api) {
			return Invalidf(fmt.Sprintf("apis[%d]", i), "%.80q is no version of a group, and no kind in one", api)
		}
		if i > 0 && c.APIs[i-1] >= api {
			return Invalidf(fmt.Sprintf("apis[%d]", i), "%.80q is not in order: they are ascending, each once", api)
		}
	}
	return nil
}

// plain reports that a word has nothing but what such names are made of.
func plain(s string) bool {
	for _, r := range s {
		if r <= ' ' || r >= 0x7f {
			return false
		}
	}
	return true
}

// Has reports that a version of a group, or a kind in one, is served.
func (c Capabilities) Has(api string) bool {
	_, found := slices.BinarySearch(c.APIs, api)
	return found
}
