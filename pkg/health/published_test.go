package health

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
)

// samplesEnv names a directory of samples that are not the project's own.
const samplesEnv = "TOWLINE_HEALTH_SAMPLES"

// TestPublished measures the judgement against samples whose states others decided, for instance the test data of another
// tool. It is skipped unless TOWLINE_HEALTH_SAMPLES names a directory; `-v` prints every difference.
//
// The directory holds YAML files of the format of testdata: a list of {kinds, samples}, each sample with its name, the
// health that it should have in `is`, and meta, spec, status, if and conditions. Unlike there, nothing is filled in: an
// object without meta has no generation, and all are judged as the agent would today, with every grace behind them unless
// meta says when the object was created. Others have no state for what is being deleted and call it Progressing, with which Terminating
// agrees. Files whose name has "builtin" are the API server's own kinds.
//
// The test fails if of the built-in kinds fewer than 90 in 100 agree, of the custom resources fewer than 85, or if of
// either 2 in 100 of those that are not healthy are called Healthy. What the general judgement alone would say of the
// custom resources is only told; TOWLINE_HEALTH_SAMPLES_ALONE=1 lists its differences too.
func TestPublished(t *testing.T) {
	dir := os.Getenv(samplesEnv)
	if dir == "" {
		t.Skip(samplesEnv + " is not set")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	judge := func(obj map[string]any, f Facts) Result { return Judge(obj, f, nil) }
	builtin, custom := newTally(judge), newTally(judge)
	alone := newTally(generally)
	for _, file := range files {
		if strings.Contains(filepath.Base(file), "builtin") {
			measure(t, file, builtin)
			continue
		}
		measure(t, file, custom)
		alone.quiet = os.Getenv(samplesEnv+"_ALONE") == ""
		measure(t, file, alone)
	}
	builtin.check(t, "built-in", 90)
	custom.check(t, "custom", 85)
	t.Log(alone.sum("custom, by the general judgement alone"))
}

// generally judges as if no rule knew the kind, as the kinds of everybody else are judged.
func generally(obj map[string]any, f Facts) Result {
	o := newObject(obj, f)
	if text(o.meta, "deletionTimestamp") != "" {
		return o.terminating()
	}
	if r, held := o.held(); held {
		return r
	}
	return o.general()
}

// tally counts what agrees. A false Healthy is what is called Healthy and is not.
type tally struct {
	judge                          func(map[string]any, Facts) Result
	all, agree, sick, falseHealthy int
	// unjudged of the false Healthy say so themselves: NoStatus or NoRule.
	unjudged int
	kinds    map[string]bool
	quiet    bool
}

func newTally(judge func(map[string]any, Facts) Result) *tally {
	return &tally{judge: judge, kinds: map[string]bool{}}
}

func measure(t *testing.T, file string, into *tally) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var sets []sampleSet
	if err := yaml.UnmarshalStrict(raw, &sets); err != nil {
		t.Fatal(file, err)
	}
	for _, set := range sets {
		words := strings.Fields(set.Kinds)
		for _, kind := range words[1:] {
			for _, s := range set.Samples {
				into.add(t, s, words[0], kind)
			}
		}
	}
}

func (n *tally) add(t *testing.T, s sample, version, kind string) {
	obj := s.object(t, version, kind)
	meta, _ := obj["metadata"].(map[string]any)
	if s.Meta["generation"] == nil {
		delete(meta, "generation")
	}
	want, _ := s.want()
	f := Facts{Now: time.Now(), HasStatus: !s.Bare}
	if s.After > 0 {
		o := newObject(obj, Facts{})
		f.Now = o.started().Add(time.Duration(s.After) * time.Second)
	}
	got := n.judge(obj, f)
	n.kinds[groupOf(version)+" "+kind] = true
	n.all++
	if want != fleet.HealthHealthy {
		n.sick++
	}
	if got.Health == want || got.Health == fleet.HealthTerminating && want == fleet.HealthProgressing {
		n.agree++
		return
	}
	mark := ""
	if got.Health == fleet.HealthHealthy {
		n.falseHealthy++
		if got.Unjudged() {
			n.unjudged++
		}
		mark = "FALSE HEALTHY "
	}
	if n.quiet {
		return
	}
	t.Logf("%s%s %s %q: %s (%s: %s), others say %s", mark, groupOf(version), kind, s.Name, got.Health, got.Reason, got.Message, want)
}

func (n *tally) sum(name string) string {
	return fmt.Sprintf("%s: %d of %d agree (%.1f %%), of %d kinds; %d false Healthy of %d not healthy (%d say NoStatus or NoRule)", name, n.agree, n.all,
		100*float64(n.agree)/float64(max(n.all, 1)), len(n.kinds), n.falseHealthy, n.sick, n.unjudged)
}

func (n *tally) check(t *testing.T, name string, percent int) {
	t.Log(n.sum(name))
	if n.agree*100 < n.all*percent {
		t.Errorf("%s: %d of %d agree", name, n.agree, n.all)
	}
	if n.falseHealthy*100 >= 2*max(n.sick, 1) {
		t.Errorf("%s: %d of %d are called Healthy and are not", name, n.falseHealthy, n.sick)
	}
}
