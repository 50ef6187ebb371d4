package cli

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// wavesText says of waves that each waits for the one before.
func wavesText(waves []int32) string {
	names := make([]string, len(waves))
	for i, w := range waves {
		names[i] = strconv.FormatInt(int64(w), 10)
	}
	return "Waves " + strings.Join(names, ", ") + ": each begins in a cluster when the one before is healthy there"
}

// isChart reports that the module's package is a chart.
func isChart(spec *v1.ModuleSpec) bool {
	return spec.GetPackage().GetHelm() != nil || spec.GetSource().GetHelm() != nil && spec.GetPackage() == nil
}

// wavesOf are the waves of a module's objects, ascending, if they wait for each other; none: there are not several that do.
func wavesOf(spec *v1.ModuleSpec, objects [][]byte) (waves []int32) {
	waits := spec.GetWaves() == fleet.WavesWaitHealthy
	for _, raw := range objects {
		var o struct {
			Metadata struct {
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
		}
		_ = json.Unmarshal(raw, &o) // what cannot be read has no annotations
		wave, hook := manifest.WaveOf(o.Metadata.Annotations, isChart(spec))
		waits = waits || hook && spec.GetWaves() == ""
		if !slices.Contains(waves, wave) {
			waves = append(waves, wave)
		}
	}
	if !waits || len(waves) < 2 {
		return nil
	}
	slices.Sort(waves)
	return waves
}
