package deploy

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"towline.dev/towline/pkg/telemetry/telemetrytest"
)

// ruleFile is a rule file of Prometheus, as far as it has alerts.
type ruleFile struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr         string
			For                 string
			Labels, Annotations map[string]string
		}
	}
}

// known fails for each metric of an expression that docs/operations.md does not list, which is held against what is registered.
func known(t *testing.T, where, expr string, listed []string) {
	t.Helper()
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %s: %v", where, expr, err)
		return
	}
	parser.Inspect(tree, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		for _, m := range v.LabelMatchers {
			if m.Name != "__name__" {
				continue
			}
			name := m.Value
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, suffix)
			}
			if !slices.Contains(listed, name) && !strings.HasPrefix(name, "process_") && !strings.HasPrefix(name, "go_") {
				t.Errorf("%s: %s: there is no metric %s", where, expr, name)
			}
		}
		return nil
	})
}

// Every alert parses, names metrics that there are, and docs/operations.md says what to do.
func TestAlerts(t *testing.T) {
	listed := telemetrytest.Listed(t, "../docs/operations.md")
	data, err := os.ReadFile("monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var f ruleFile
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(docs), "\n## Alerts\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var explained []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(Towline[A-Za-z]+)` \\| [^|]+[^ |] *\\|$").FindAllStringSubmatch(section, -1) {
		explained = append(explained, m[1])
	}
	var alerts []string
	for _, g := range f.Groups {
		for _, r := range g.Rules {
			alerts = append(alerts, r.Alert)
			known(t, r.Alert, r.Expr, listed)
			if _, err := time.ParseDuration(r.For); r.For != "" && err != nil {
				t.Errorf("%s: for: %v", r.Alert, err)
			}
			if s := r.Labels["severity"]; s != "warning" && s != "critical" || r.Annotations["summary"] == "" {
				t.Errorf("%s has no severity, or no summary", r.Alert)
			}
		}
	}
	slices.Sort(alerts)
	slices.Sort(explained)
	if len(alerts) == 0 || !slices.Equal(alerts, explained) {
		t.Errorf("the alerts are\n%v\nand docs/operations.md says what to do about\n%v", alerts, explained)
	}
}

// Every panel of the dashboard asks for what there is.
func TestDashboard(t *testing.T) {
	listed := telemetrytest.Listed(t, "../docs/operations.md")
	data, err := os.ReadFile("monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &board); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range board.Panels {
		if len(p.Targets) == 0 || seen[p.ID] {
			t.Errorf("panel %q shows nothing, or has the number of another one", p.Title)
		}
		seen[p.ID] = true
		for _, x := range p.Targets {
			known(t, p.Title, strings.ReplaceAll(x.Expr, "$__rate_interval", "5m"), listed)
		}
	}
	if len(seen) == 0 {
		t.Error("the dashboard has no panels")
	}
}
