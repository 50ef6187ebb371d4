package manifest

import (
	"strconv"
	"strings"

	"towline.dev/towline/pkg/fleet"
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

// WaveOf is the wave of an object by its annotations, and whether a chart has it as a hook. What is no wave is 0.
func WaveOf(annotations map[string]string, chart bool) (wave int32, hook bool) {
	hook = chart && isHook(annotations)
	if text, has := annotations[fleet.WaveAnnotation]; has {
		n, _ := strconv.ParseInt(text, 10, 32)
		return int32(n), hook
	}
	if chart {
		wave = hookWave(annotations)
	}
	return wave, hook
}

// isHook reports that a chart has an object come before the rest, or behind it.
func isHook(annotations map[string]string) bool {
	_, hook := hookEvent(annotations)
	return hook
}

// hookEvent says whether a hook comes before the rest; what comes before and behind it comes before.
func hookEvent(annotations map[string]string) (before, hook bool) {
	for event := range strings.SplitSeq(annotations[HookAnnotation], ",") {
		switch strings.ToLower(strings.TrimSpace(event)) {
		case "pre-install", "pre-upgrade":
			return true, true
		case "post-install", "post-upgrade":
			hook = true
		}
	}
	return false, hook
}

// isOfInstalling reports that a hook comes when a release is installed, and not when it is upgraded.
func isOfInstalling(annotations map[string]string) (is bool) {
	for event := range strings.SplitSeq(annotations[HookAnnotation], ",") {
		switch strings.ToLower(strings.TrimSpace(event)) {
		case "pre-install", "post-install":
			is = true
		case "pre-upgrade", "post-upgrade":
			return false
		}
	}
	return is
}

// isOfOtherTimes reports that an object is to come only when a release is deleted, rolled back or tested. Helm leaves out such an object when it
// installs and upgrades.
func isOfOtherTimes(annotations map[string]string) bool {
	text, is := annotations[HookAnnotation]
	for event := range strings.SplitSeq(text, ",") {
		switch strings.ToLower(strings.TrimSpace(event)) {
		case "pre-delete", "post-delete", "pre-rollback", "post-rollback", "test", "test-success":
		default:
			return false
		}
	}
	return is
}

// hookWave is the wave of a hook; of what is none it is that of all objects. What is to come before and behind the rest comes before:
// without it, the rest may not start.
func hookWave(annotations map[string]string) int32 {
	weight, _ := strconv.Atoi(annotations[HookWeightAnnotation]) // what is no number is 0, as for Helm
	weight = min(max(weight, -maxHookWeight), maxHookWeight)
	switch before, hook := hookEvent(annotations); {
	case before:
		return int32(hookWaveBefore + weight)
	case hook:
		return int32(hookWaveBehind + weight)
	}
	return 0
}
