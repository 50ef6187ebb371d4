package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// together is several errors of one command. Each stays by itself: who interrupts the command is told what is no consequence of that.
type together struct{ errs []error }

func (t *together) Error() string   { return errors.Join(t.errs...).Error() }
func (t *together) Unwrap() []error { return t.errs }

// joined is errors.Join whose errors are found again by besides.
func joined(errs ...error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return &together{errs}
}

// besides are the errors that are not the interrupt itself: what went wrong before it, what goes on without the command, and what it did not
// come to.
func besides(err error) (out []string) {
	var all *together
	switch {
	case !errors.Is(err, context.Canceled):
		return strings.Split(strings.TrimSpace(err.Error()), "\n")
	case errors.As(err, &all):
		for _, one := range all.errs {
			out = append(out, besides(one)...)
		}
	}
	return out
}

// goOn says of rollouts that they do not end with the command that waits for them.
func goOn(all []followed) error {
	if len(all) == 1 {
		id := refText(all[0].RolloutID)
		return fmt.Errorf("rollout %s goes on without this command; see: towline rollout status %s", id, id)
	}
	names := make([]string, len(all))
	for i, of := range all {
		names[i] = refText(of.RolloutID)
	}
	return fmt.Errorf("rollouts %s go on without this command; see: towline get modules", strings.Join(names, ", "))
}

// goesOn says of the deletion of a module that it does not end with the command that waits for it.
func goesOn(ref fleet.ModuleRef) error {
	return fmt.Errorf("module %s: its deletion goes on without this command; see: towline get module %s", ref.Display(), ref.Display())
}
