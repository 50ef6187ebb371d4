package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// exitSeverity has the exit codes from the one that hides behind every other to the one that hides behind none. A script may let pass what waits for a
// person, or what a newer rollout took over: what has failed beside that is not to pass with it.
var exitSeverity = []int{exitOK, exitSuperseded, exitWaits, exitTimedOut, exitUsage, exitFailed}

// worse is the code of two that counts.
func worse(x, y int) int {
	if slices.Index(exitSeverity, y) > slices.Index(exitSeverity, x) {
		return y
	}
	return x
}

// codeOf is the exit code of an error, and of several that of the worst.
func codeOf(err error) int {
	if err == nil {
		return exitOK
	}
	if all, is := err.(*together); is {
		code := exitOK
		for _, one := range all.errs {
			code = worse(code, codeOf(one))
		}
		return cmp.Or(code, exitFailed)
	}
	var coded *exitError
	switch {
	case errors.As(err, &coded):
		return coded.code
	case errors.Is(err, context.DeadlineExceeded):
		return exitTimedOut
	}
	return exitFailed
}

// becausef says what another error of the command has led to. The exit code is that of the other.
func becausef(format string, args ...any) error {
	return &exitError{exitOK, fmt.Errorf(format, args...)}
}

// joinCodes joins errors of which some may be silent, and stay so. The exit code is the worst of all.
func joinCodes(errs []error) error {
	var said []error
	silent := exitOK
	for _, err := range errs {
		var coded *exitError
		if errors.As(err, &coded) && coded.err == nil {
			silent = worse(silent, coded.code)
			continue
		}
		said = append(said, err)
	}
	err := joined(said...)
	if silent == exitOK {
		return err
	}
	return &exitError{worse(silent, codeOf(err)), err}
}
