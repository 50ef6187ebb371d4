package wire

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

// TestCapabilitiesTravel whole, as long as they fit; of a cluster that serves more the kinds are left out, and then all but the version.
func TestCapabilitiesTravel(t *testing.T) {
	some := fleet.Capabilities{KubeVersion: "v1.33.4+k3s1", APIs: []string{"apps/v1", "apps/v1/Deployment", "v1", "v1/Pod"}}
	noise := func(n int, kinds bool) (out fleet.Capabilities) {
		random := rand.New(rand.NewPCG(1, 2))
		out.KubeVersion = "v1.33.4"
		for range n {
			gv := fmt.Sprintf("%x%x.example.com/v1", random.Uint64(), random.Uint64())
			if out.APIs = append(out.APIs, gv); kinds {
				out.APIs = append(out.APIs, fmt.Sprintf("%s/K%x%x%x%x", gv, random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64()))
			}
		}
		slices.Sort(out.APIs)
		return out
	}
	for name, tt := range map[string]struct {
		in   fleet.Capabilities
		left int
	}{"some": {some, 4}, "no APIs": {fleet.Capabilities{KubeVersion: "v1.33.4"}, 0}, "many kinds": {noise(2000, true), 2000}, "far too many": {noise(8000, false), 0}} {
		sent := CapabilitiesToProto(tt.in)
		got, err := CapabilitiesFromProto(sent)
		if err != nil || len(got.APIs) != tt.left || got.KubeVersion != tt.in.KubeVersion || len(sent.GetApis()) > maxCapabilities {
			t.Errorf("%s: %d APIs of %d in %d bytes, %v", name, len(got.APIs), len(tt.in.APIs), len(sent.GetApis()), err)
		}
	}
}

// TestCapabilitiesAreChecked: an agent is not believed.
func TestCapabilitiesAreChecked(t *testing.T) {
	packed := func(version, text string) *agentv1.Capabilities {
		c := fleet.Capabilities{KubeVersion: version}
		if text != "" {
			c.APIs = strings.Split(text, "\n")
		}
		return &agentv1.Capabilities{KubernetesVersion: version, Apis: Compress([]byte(text)), Digest: c.Digest().Bytes()}
	}
	other := packed("v1.33.4", "v1")
	other.Digest = fleet.DigestOf([]byte("x")).Bytes()
	garbage := packed("v1.33.4", "v1")
	garbage.Apis = []byte("garbage")
	for want, in := range map[string]*agentv1.Capabilities{
		"capabilities.kubeVersion: \"\" is no version":           packed("", "v1"),
		"capabilities.kubeVersion: \"v1 \\n\" is no version":     packed("v1 \n", "v1"),
		"capabilities.apis[1]: \"apps/v1\" is not in order":      packed("v1.33.4", "v1\napps/v1"),
		"capabilities.apis[1]: \"v1\" is not in order":           packed("v1.33.4", "v1\nv1"),
		"capabilities.apis[0]: \"a b\" is no version of a group": packed("v1.33.4", "a b"),
		"capabilities.digest: is not that of the capabilities":   other,
		"capabilities.apis: ":                                    garbage,
		"capabilities.apis: zstd: holds more than":               packed("v1.33.4", strings.Repeat("a", maxAPIBytes+1)),
		"capabilities.apis: has 20001 entries; at most 20000":    packed("v1.33.4", strings.TrimSuffix(strings.Repeat("v1\n", 20001), "\n")),
	} {
		if _, err := CapabilitiesFromProto(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
