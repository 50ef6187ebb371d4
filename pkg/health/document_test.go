package health

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/health.md from the samples")

const documentPath = "../../docs/health.md"

// TestDocument: the reference shows an example for every rule, and every example is judged as it says.
func TestDocument(t *testing.T) {
	raw, err := os.ReadFile(documentPath)
	if err != nil {
		t.Fatal(err)
	}
	want := string(raw)
	for mark, table := range map[string]string{"built-in kinds": builtinTable(t), "shipped rules": shippedTable(t)} {
		want = between(t, want, "<!-- "+mark+" -->\n", "<!-- end -->", table)
	}
	if want == string(raw) {
		return
	}
	if !*update {
		t.Fatal("the tables of docs/health.md are old; run go test ./pkg/health -run TestDocument -update")
	}
	if err := os.WriteFile(documentPath, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestDocumentedRulesCompile: what the reference shows can be copied.
func TestDocumentedRulesCompile(t *testing.T) {
	raw, err := os.ReadFile(documentPath)
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(raw), "```yaml\nhealthRules:")
	text, _, closed := strings.Cut(text, "```")
	if !ok || !closed {
		t.Fatal("no example of healthRules")
	}
	var doc struct {
		HealthRules []Rule `json:"healthRules"`
	}
	if err := yaml.UnmarshalStrict([]byte("healthRules:"+text), &doc); err != nil {
		t.Fatal(err)
	}
	if rules, err := Compile(doc.HealthRules); err != nil || rules == nil {
		t.Errorf("%v", err)
	}
}

func between(t *testing.T, text, from, to, put string) string {
	head, rest, ok := strings.Cut(text, from)
	_, tail, closed := strings.Cut(rest, to)
	if !ok || !closed {
		t.Fatalf("docs/health.md has no %q", from)
	}
	return head + from + "\n" + put + "\n" + to + tail
}

// example is a sample of a kind, as a row shows it.
type example struct {
	version, kind string
	sample        sample
}

// better prefers an example of failure to one of work, and that to one of success.
func (e example) better(than example) bool { return e.rank() > than.rank() }

func (e example) rank() int {
	health, _ := e.sample.want()
	switch {
	case e.kind == "":
		return -1
	case e.sample.Meta != nil:
		return 0
	case health == fleet.HealthDegraded:
		return 3
	case health == fleet.HealthProgressing && len(e.sample.Status)+len(e.sample.If)+len(e.sample.Conditions) > 0:
		return 2
	}
	return 1
}

func builtinTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| kind | says | is |\n|---|---|---|\n")
	for _, set := range loadSamples(t)["builtin"] {
		words := strings.Fields(set.Kinds)
		for _, s := range set.Samples {
			kinds := strings.Join(words[1:], ", ")
			fmt.Fprintf(&b, "| %s | %s | %s |\n", kinds, s.says(), s.verdict(t, words[0], words[1]))
		}
	}
	return b.String()
}

func shippedTable(t *testing.T) string {
	best := map[*rule]example{}
	each(t, func(_, version, kind string, s sample) {
		r := shipped.find(groupOf(version), kind)
		if e := (example{version, kind, s}); r != nil && e.better(best[r]) || r != nil && same(e, best[r]) {
			best[r] = e
		}
	})
	var b strings.Builder
	b.WriteString("| group | kinds | says | is |\n|---|---|---|---|\n")
	for _, table := range shippedTables {
		for i := range table {
			e := &table[i]
			x, ok := best[shipped.ruleOf(e)]
			if !ok {
				t.Errorf("%s %s: no example", e.group, e.kinds)
				continue
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", cell(e.group), cell(strings.Join(strings.Fields(e.kinds), ", ")), x.sample.says(), x.sample.verdict(t, x.version, x.kind))
		}
	}
	return b.String()
}

// same keeps the choice among equals the same, whatever order the files were read in.
func same(e, other example) bool {
	return e.rank() == other.rank() && e.version+e.kind+e.sample.Name < other.version+other.kind+other.sample.Name
}

// says is what counts of an object, in one cell.
func (s sample) says() string {
	var parts []string
	for _, c := range s.If {
		kind, rest, _ := strings.Cut(c, "=")
		words := append(strings.SplitN(rest, " ", 3), "", "")
		part := "`" + kind + "=" + words[0] + "`"
		if words[1] != "" {
			part += " (" + strings.TrimSpace(words[1]+" "+words[2]) + ")"
		}
		parts = append(parts, cell(part))
	}
	for _, c := range s.Conditions {
		parts = append(parts, "`"+cell(flow(c))+"`")
	}
	for _, x := range []struct {
		name  string
		value map[string]any
	}{{"metadata", s.Meta}, {"spec", s.Spec}, {"status", s.Status}} {
		if len(x.value) > 0 {
			parts = append(parts, "`"+x.name+": "+cell(flow(x.value))+"`")
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "nothing written")
	}
	if s.After > 0 {
		parts = append(parts, fmt.Sprintf("%d s old", s.After))
	}
	if s.Changed != "" {
		parts = append(parts, "changed by us at "+s.Changed)
	}
	return strings.Join(parts, ", ")
}

// verdict is what Judge says of the sample.
func (s sample) verdict(t *testing.T, version, kind string) string {
	got := Judge(s.object(t, version, kind), s.facts(t), nil)
	if got.Reason == "" {
		return string(got.Health)
	}
	return string(got.Health) + " (" + cell(got.Reason) + ")"
}

// flow is a value as YAML writes it in one line.
func flow(v any) string {
	switch v := v.(type) {
	case map[string]any:
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, k+": "+flow(v[k]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		var parts []string
		for _, x := range v {
			parts = append(parts, flow(x))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return fmt.Sprint(v)
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
