package arch

import (
	"fmt"
	"os"
	"regexp"
	"strings"
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

// TestEveryFaultHasItsTests keeps the table of faults whole: each has a row that names tests, or says why there are none. That the tests
// are there is for TestDocsNameTestsThatAreThere.
func TestEveryFaultHasItsTests(t *testing.T) {
	const faults, tested = 64, 50
	text, err := os.ReadFile("../../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(text), "\n## Simulation")
	for _, line := range strings.Split(table, "\n") {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| F") && !strings.HasPrefix(line, "| id ") {
			t.Errorf("the table of faults has a row that belongs to what was tried: %.80s", line)
		}
	}
	rows := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (F\d\d) \| (.+) \|$`).FindAllStringSubmatch(string(text), -1) {
		if rows[m[1]] != nil {
			t.Errorf("fault %s has two rows", m[1])
		}
		rows[m[1]] = strings.Split(m[2], " | ")
	}
	named := regexp.MustCompile("`(Test|Fuzz)[A-Z]\\w+`")
	count := 0
	for i := range faults {
		id := fmt.Sprintf("F%02d", i+1)
		row := rows[id]
		switch {
		case len(row) != 3:
			t.Errorf("fault %s: the row has %d of 3 columns after its name", id, len(row))
		case named.MatchString(row[2]):
			count++
		case !strings.HasPrefix(row[2], "none"):
			t.Errorf("fault %s names no test, and does not say why", id)
		}
	}
	if count < tested {
		t.Errorf("%d faults have tests, want %d", count, tested)
	}
}
