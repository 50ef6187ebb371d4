package manifest

import (
	"strconv"
	"strings"
)

// The annotations with which a chart says that an object is a hook, in which order hooks come, and what is kept.
const (
	HookAnnotation       = "helm.sh/hook"
	HookWeightAnnotation = "helm.sh/hook-weight"
	// KeepAnnotation says, with the value keep, that an object stays when Helm lets it go.
	KeepAnnotation = "helm.sh/resource-policy"
)

// Waves of hooks: those before the rest, and those behind it, by their weight.
const (
	hookWaveBefore = -1_000_000
	hookWaveBehind = 1_000_000
	maxHookWeight  = 100_000
)

// keeps reports that a chart has an object stay.
func keeps(annotations map[string]string) bool {
	return strings.ToLower(strings.TrimSpace(annotations[KeepAnnotation])) == "keep"
}

// hookWave is the wave of a hook; of what is none it is that of all objects. What is to come before and behind the rest comes before:
// without it, the rest may not start.
func hookWave(annotations map[string]string) int32 {
	weight, _ := strconv.Atoi(annotations[HookWeightAnnotation]) // what is no number is 0, as for Helm
	weight = min(max(weight, -maxHookWeight), maxHookWeight)
	wave := 0
	for event := range strings.SplitSeq(annotations[HookAnnotation], ",") {
		switch strings.ToLower(strings.TrimSpace(event)) {
		case "pre-install", "pre-upgrade":
			return int32(hookWaveBefore + weight)
		case "post-install", "post-upgrade":
			wave = hookWaveBehind + weight
		}
	}
	return int32(wave)
}
