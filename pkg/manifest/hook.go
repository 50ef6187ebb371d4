package manifest

import (
	"strconv"
	"strings"
)

// The annotations with which a chart says that an object is a hook, and in which order hooks come.
const (
	HookAnnotation       = "helm.sh/hook"
	HookWeightAnnotation = "helm.sh/hook-weight"
)

// Waves of hooks: those before the rest, and those behind it, by their weight.
const (
	hookWaveBefore = -1_000_000
	hookWaveBehind = 1_000_000
	maxHookWeight  = 100_000
)

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
