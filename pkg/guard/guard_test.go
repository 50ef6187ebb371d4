package guard

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestPanicIsAnError(t *testing.T) {
	plain := errors.New("plain")
	if err := Run(func() error { return plain }); err != plain || Stack(err) != "" {
		t.Errorf("an error: %v with stack %q", err, Stack(err))
	}
	if Bug(plain, "a bug") != plain || Bug(nil, "a bug") != nil {
		t.Error("an error that comes from no panic is changed")
	}
	before := Count()
	err := fmt.Errorf("module shop: %w", Bug(Run(func() error { panic("a secret") }), "a bug"))
	if err.Error() != "module shop: a bug" {
		t.Errorf("a panic says: %v", err)
	}
	if n := Count() - before; n != 1 {
		t.Errorf("%d panics were counted", n)
	}
	if s := Stack(err); !strings.Contains(s, "panic: a secret") || !strings.Contains(s, "TestPanicIsAnError") {
		t.Errorf("the log says: %s", s)
	}
}
