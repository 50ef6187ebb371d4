package control

import (
	"slices"
	"testing"
)

// TestPlaceThatIsNotTaken: who is woken to ask a server and has nothing to ask any more gives its place to the next one, so that nobody waits while the
// server is asked nothing.
func TestPlaceThatIsNotTaken(t *testing.T) {
	var o origins
	busy := []string{"a", "b", "c", "d"}
	for _, key := range busy {
		if !o.enter("git.test", key) {
			t.Fatalf("%s may not ask", key)
		}
	}
	idle := []string{"e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"}
	for _, key := range append(slices.Clone(idle), "asked") {
		if o.enter("git.test", key) {
			t.Fatalf("%s may ask, though there is no place", key)
		}
	}
	var woken []string
	for range busy {
		woken = append(woken, o.leave("git.test")...)
	}
	for i := 0; i < len(woken); i++ {
		if woken[i] == "asked" {
			if !o.enter("git.test", "asked") {
				t.Error("woken, and may not ask")
			}
			return
		}
		woken = append(woken, o.unused(woken[i])...)
	}
	t.Errorf("%v are woken, and not the one that asks", woken)
}
