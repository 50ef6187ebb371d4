package cli

import (
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
)

// TestVariantsAreNamed by the overrides that match, and by what the clusters can do, where that makes a difference.
func TestVariantsAreNamed(t *testing.T) {
	can := []*v1.Capabilities{{}, {KubernetesVersion: "v1.33.4", Apis: 312}, {KubernetesVersion: "v1.34.1", Apis: 1}}
	for want, got := range map[string]string{
		"no override":  variantName(nil, nil),
		"overrides[1]": variantName([]int32{1}, nil),
		"for clusters that have not told what they serve, Kubernetes v1.33.4 with 312 APIs and Kubernetes v1.34.1 with 1 API": variantName(nil, can),
		"overrides[1], for Kubernetes v1.33.4 with 312 APIs":                                                                  variantName([]int32{1}, can[1:2]),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestRenderTellsTheChart what it is to see, and says so of what is none.
func TestRenderTellsTheChart(t *testing.T) {
	o := renderOptions{kubeVersion: "1.29.0", apiVersions: []string{"a.b/v1"}}
	m := &v1.Module{Spec: &v1.ModuleSpec{Source: &v1.Source{Helm: &v1.HelmSource{}}}}
	if err := o.tell(m); err != nil || m.Spec.Package.Helm.KubeVersion != "1.29.0" || len(m.Spec.Package.Helm.ApiVersions) != 1 {
		t.Errorf("%v, %v", m, err)
	}
	plain := &v1.Module{Spec: &v1.ModuleSpec{Source: &v1.Source{Inline: &v1.InlineSource{}}}}
	if err := o.tell(plain); err == nil {
		t.Error("it is told to what is no chart")
	}
	if err := (&renderOptions{}).tell(plain); err != nil || plain.Spec.Package != nil {
		t.Errorf("nothing is told: %v, %v", plain, err)
	}
}
