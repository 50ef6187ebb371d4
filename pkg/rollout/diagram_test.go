package rollout_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"towline.dev/towline/pkg/rollout"
)

// drawn is the diagram of a rollout in docs/architecture.md: from which state to which.
var drawn = sync.OnceValue(func() map[[2]string]bool {
	b, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		panic(err)
	}
	_, diagram, _ := strings.Cut(string(b), "```mermaid")
	diagram, _, _ = strings.Cut(diagram, "```")
	_, inner, _ := strings.Cut(diagram, "state Running {")
	inner, _, _ = strings.Cut(inner, "}")
	running := regexp.MustCompile(`\w+`).FindAllString(regexp.MustCompile(`(?m)-->|:.*$`).ReplaceAllString(inner, " "), -1)
	out := map[[2]string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^ +(\w+) --> (\w+)`).FindAllStringSubmatch(diagram, -1) {
		from, to := []string{m[1]}, []string{m[2]}
		if m[1] == "Running" {
			from = append(running, string(rollout.Pending)) // it may begin and go on in one decision
		}
		if m[2] == "Running" {
			to = running
		}
		for _, f := range slices.Compact(from) {
			for _, t := range to {
				out[[2]string{f, t}] = true
			}
		}
	}
	return out
})

// asDrawn holds the diagram to what happens.
func (c *chaos) asDrawn(d rollout.Decision) {
	for _, m := range d.Moves {
		if m.Kind == rollout.OfRollout && m.From != m.To && !drawn()[[2]string{m.From, m.To}] {
			c.rt.Fatalf("docs/architecture.md does not draw %s → %s (%s)", m.From, m.To, m.Reason)
		}
	}
}
