package hub_test

import (
	"strings"
	"testing"
)

// TestExamplesOfTheSetsPage: the folder of docs/sets.md is applied as a set; what is taken out of it goes, and nothing else does.
func TestExamplesOfTheSetsPage(t *testing.T) {
	g := readGuide(t, "../docs/sets.md")
	if len(g.yaml) != 1 || len(g.commands) < 3 {
		t.Fatalf("%d examples and %d commands found", len(g.yaml), len(g.commands))
	}
	w := newWorld(t, true)
	w.join("c", nil, nil)
	towline := w.cli()
	run := func(stdin string, args ...string) string {
		t.Helper()
		out, err := towline(stdin, args...)
		if err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		return out
	}
	shop, cart, _ := strings.Cut(g.yaml[0], "---\n")
	run(strings.ReplaceAll(cart, "cart", "alone"), "apply", "-f", "-", "--wait", "--timeout", "30s")
	run(g.yaml[0], "apply", "-f", "-", "--set", "shop-team", "--prune", "--wait", "--timeout", "30s")
	if out := run("", "get", "modules", "-o", "wide"); strings.Count(out, "set/shop-team") != 2 {
		t.Errorf("%s", out)
	}
	if out := run(shop, "apply", "-f", "-", "--set", "shop-team", "--prune", "--dry-run=server"); !strings.Contains(out, "module/cart pruned (server dry run); removes 1 object in 1 cluster") {
		t.Errorf("%s", out)
	}
	if out := run("", "get", "modules", "-o", "name"); out != "module/alone\nmodule/cart\nmodule/shop\n" {
		t.Errorf("a dry run has deleted: %s", out)
	}
	if out, err := towline(cart, "apply", "-f", "-", "--set", "others", "--dry-run=server"); err == nil || !strings.Contains(out, "module cart is of set/shop-team, which prunes it") {
		t.Errorf("%v\n%s", err, out)
	}
	if out := run(shop, "apply", "-f", "-", "--set", "shop-team", "--prune", "--wait", "--timeout", "30s"); !strings.Contains(out, "module/cart pruned") {
		t.Errorf("%s", out)
	}
	if out := run("", "get", "modules", "-o", "name"); out != "module/alone\nmodule/shop\n" {
		t.Errorf("left are %s", out)
	}
	run(shop, "apply", "-f", "-", "--take")
	if out, err := towline(strings.ReplaceAll(cart, "cart", "other"), "apply", "-f", "-", "--set", "shop-team", "--prune"); err != nil || strings.Contains(out, "pruned") {
		t.Errorf("%v\n%s", err, out)
	}
	g.commandsAreKnown(t, towline)
}
