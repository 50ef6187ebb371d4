package packager

import (
	"context"
	"encoding/json"
	"strings"
	"sync"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	releaser "helm.sh/helm/v4/pkg/release"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
)

// readsOf is what a chart and those that it depends on may ask of the cluster that they are rendered for. Values and other files count,
// too: templates can be made of them.
func readsOf(c *chartv2.Chart, values map[string]any) (render.Reads, error) {
	given, err := json.Marshal(values)
	if err != nil {
		return render.Reads{}, fleet.Invalid("package.helm.values", err.Error())
	}
	return readsOfChart(c).And(render.ReadsIn(string(given))), nil
}

func readsOfChart(c *chartv2.Chart) (out render.Reads) {
	if own, err := json.Marshal(c.Values); err == nil {
		out = render.ReadsIn(string(own))
	}
	for _, list := range [][]*common.File{c.Templates, c.Files} {
		for _, f := range list {
			if !isProse(f.Name) {
				out = out.And(render.ReadsIn(string(f.Data)))
			}
		}
	}
	for _, d := range c.Dependencies() {
		out = out.And(readsOfChart(d))
	}
	return out
}

// isProse reports that a file is for people: what it says of .Capabilities explains values.
func isProse(name string) bool { return strings.HasSuffix(strings.ToLower(name), ".md") }

// defaults guards what Helm takes for the capabilities of a cluster where it has none, which is a variable of its package.
var defaults sync.Mutex

// run renders a chart for clusters that can do what h says. It gives no template more of that than reads says that the chart asks for, so
// that what it renders to is the same wherever that is. Without a cluster Helm adds to the APIs that it knows itself, and has no way to be
// told those of one: so it is told what there is by default.
func run(in *action.Install, c *chartv2.Chart, values map[string]any, h render.Helm, reads render.Reads) (releaser.Releaser, error) {
	defaults.Lock()
	defer defaults.Unlock()
	if h.Capabilities != nil && reads.Any() {
		part := reads.Of(*h.Capabilities)
		own := common.DefaultCapabilities
		defer func() { common.DefaultCapabilities = own }()
		caps := own.Copy()
		caps.APIVersions = part.APIs
		if part.KubeVersion != "" {
			v, err := common.ParseKubeVersion(part.KubeVersion)
			if err != nil {
				return nil, err
			}
			caps.KubeVersion = *v
		}
		common.DefaultCapabilities = caps
	}
	return in.RunWithContext(context.Background(), c, values)
}
