package arch

import (
	"os"
	"regexp"
	"testing"
)

// TestDocsNameTestsThatAreThere keeps docs/reliability.md and docs/scenarios.md from resting on tests that were renamed or removed.
func TestDocsNameTestsThatAreThere(t *testing.T) {
	root := os.DirFS("../..")
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for _, f := range load(t, root) {
		for _, m := range declared.FindAllSubmatch(f.src, -1) {
			there[string(m[1])] = true
		}
	}
	for _, doc := range []string{"docs/reliability.md", "docs/scenarios.md"} {
		text, err := os.ReadFile("../../" + doc)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(string(text), -1)
		if len(named) < 30 {
			t.Errorf("%s names %d tests: the pattern does not find them", doc, len(named))
		}
		for _, name := range named {
			if !there[name] {
				t.Errorf("%s names %s, which is no test", doc, name)
			}
		}
	}
}
