package hub_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestCostOfVariants measures what a put of a chart with a value of each cluster costs, from the put until it has its revision: for few
// clusters and for a thousand, as one variant and with two overrides of values, which make four. What a variant costs more than the first
// is a rendering of its chart; a cluster costs next to nothing. bench/render runs it with TOWLINE_BENCH_RENDER=ROUNDS.
func TestCostOfVariants(t *testing.T) {
	rounds, fleet := 1, 60
	if n, err := strconv.Atoi(os.Getenv("TOWLINE_BENCH_RENDER")); err == nil {
		rounds, fleet = max(n/10, 1), 1000
	}
	w := newWorld(t, true)
	few := make([]string, 0, 12)
	for i := range fleet {
		name, labels := fmt.Sprint("c", i), map[string]string{"region": fmt.Sprint("r", i)}
		if i%2 == 0 {
			labels["env"] = "prod"
		}
		if i%3 == 0 {
			labels["ring"] = "canary"
		}
		_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: name, Labels: labels}}})
		must(t, err)
		if len(few) < cap(few) {
			few = append(few, name)
		}
	}
	cases := []struct {
		name, module string
		overrides    bool
		clusters     []string // none: all
		variants     int
	}{
		{name: "one variant", module: "one"},
		{name: "four variants", module: "four", overrides: true, variants: 4},
		{name: "four variants, few clusters", module: "few", overrides: true, clusters: few, variants: 4},
	}
	took := map[string]time.Duration{}
	for round := range rounds + 1 { // the first warms the worker up
		for _, c := range cases {
			m := costly(c.module, round, c.overrides, c.clusters)
			began := time.Now()
			w.await(c.module, w.put(m).GetRevision())
			d := time.Since(began)
			if best, ok := took[c.module]; round > 0 && (!ok || d < best) {
				took[c.module] = d
			}
			bundles := map[string]bool{}
			for _, v := range w.revision(c.module, int64(round+1)).GetVariants() {
				bundles[v.GetBundle()] = true
			}
			if len(bundles) != c.variants {
				t.Fatalf("%s: %d bundles; want %d", c.name, len(bundles), c.variants)
			}
		}
	}
	one, four, of := took["one"], took["four"], took["few"]
	fmt.Printf("a put of a chart, %d clusters: one variant %v   four variants %v: %v for each more (%.2f × of the first)   each cluster %v\n", fleet,
		one.Round(10*time.Microsecond), four.Round(10*time.Microsecond), ((four - one) / 3).Round(10*time.Microsecond), float64((four-one)/3)/float64(one),
		(max(four-of, 0) / time.Duration(fleet-len(few))).Round(100*time.Nanosecond))
}

// costly is a chart with a value that differs in each round, and one of each cluster.
func costly(name string, round int, overrides bool, clusters []string) *towlinev1.Module {
	m := chart()
	m.Metadata.Name, m.Spec.Namespace = name, name
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "REGION", ClusterLabel: "region"}}
	m.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}} // it ends with its revision
	m.Spec.Package.Helm.Values = valuesOf(map[string]any{"number": round, "text": "${REGION}"})
	if clusters != nil {
		m.Spec.Placement = &towlinev1.Placement{Clusters: clusters}
	}
	if overrides {
		for _, o := range [][3]string{{"env", "prod", "text"}, {"ring", "canary", "file"}} {
			m.Spec.Overrides = append(m.Spec.Overrides, &towlinev1.Override{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{o[0]: o[1]}},
				Helm: &towlinev1.HelmOverride{Values: valuesOf(map[string]any{o[2]: o[1]})}})
		}
	}
	return m
}

func valuesOf(v map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(v)
	if err != nil {
		panic(err)
	}
	return s
}
