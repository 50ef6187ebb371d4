package wire

import (
	"slices"
	"strings"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

const (
	// maxCapabilities is how large they are on the wire and in the store.
	maxCapabilities = 64 << 10
	// maxAPIBytes is how large they are in memory: each line is a name and its end.
	maxAPIBytes = 2 << 20
)

// CapabilitiesToProto is their wire form. Of a cluster that serves more than is taken the kinds are left out, and if that is not enough
// all APIs but the version.
func CapabilitiesToProto(c fleet.Capabilities) *agentv1.Capabilities {
	for _, kinds := range []bool{true, false} {
		some := c
		if !kinds {
			some.APIs = slices.DeleteFunc(slices.Clone(c.APIs), namesKind)
		}
		text := strings.Join(some.APIs, "\n")
		packed := Compress([]byte(text))
		if len(text) <= maxAPIBytes && len(packed) <= maxCapabilities && some.Check() == nil {
			return &agentv1.Capabilities{KubernetesVersion: some.KubeVersion, Apis: packed, Digest: some.Digest().Bytes()}
		}
	}
	some := fleet.Capabilities{KubeVersion: c.KubeVersion}
	return &agentv1.Capabilities{KubernetesVersion: some.KubeVersion, Digest: some.Digest().Bytes()}
}

// namesKind reports that an API is a kind in a version of a group: kinds begin with a capital letter.
func namesKind(api string) bool {
	last := api[strings.LastIndexByte(api, '/')+1:]
	return last != "" && last[0] >= 'A' && last[0] <= 'Z'
}

// CapabilitiesFromProto reads and checks them.
func CapabilitiesFromProto(in *agentv1.Capabilities) (fleet.Capabilities, error) {
	out, err := Capabilities(in.GetKubernetesVersion(), in.GetApis())
	if err == nil {
		err = out.Check()
	}
	if err == nil && !slices.Equal(in.GetDigest(), out.Digest().Bytes()) {
		err = fleet.Invalid("digest", "is not that of the capabilities")
	}
	return out, fleet.Join("capabilities", err)
}

// Capabilities reads what is kept of them.
func Capabilities(version string, apis []byte) (fleet.Capabilities, error) {
	out := fleet.Capabilities{KubeVersion: version}
	if len(apis) == 0 {
		return out, nil
	}
	if len(apis) > maxCapabilities {
		return out, fleet.Invalidf("apis", "have %d bytes; at most %d", len(apis), maxCapabilities)
	}
	text, err := Decompress(apis, maxAPIBytes)
	if err != nil {
		return out, fleet.Invalid("apis", err.Error())
	}
	if len(text) > 0 {
		out.APIs = strings.Split(string(text), "\n")
	}
	return out, nil
}
