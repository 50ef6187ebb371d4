// Package guard owns what becomes of a panic in a part of a process that others do not depend on: an error, which ends that
// part alone. It must not know what the parts do, nor who is told.
package guard

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
)

// Panic is the error that a panic becomes.
type Panic struct {
	Value any
	Stack string
}

func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Caught makes an error of what recover returned; if that is nil, it is err.
func Caught(value any, err error) error {
	if value == nil {
		return err
	}
	caught.Add(1)
	return &Panic{value, string(debug.Stack())}
}

var caught atomic.Int64

// Count is how many panics became errors since the process began.
func Count() int64 { return caught.Load() }

// Run runs a part, and returns its error or what its panic became.
func Run(part func() error) (err error) {
	defer func() { err = Caught(recover(), err) }()
	return part()
}

// Stack is what a log says of the panic that an error comes from, and where it was; empty: it comes from none.
func Stack(err error) string {
	var p *Panic
	if !errors.As(err, &p) {
		return ""
	}
	return p.Error() + "\n\n" + p.Stack
}

// Bug is err, but with this text alone if it comes from a panic, whose value may be anything, also what is secret.
func Bug(err error, text string) error {
	if Stack(err) == "" {
		return err
	}
	return &bug{text, err}
}

type bug struct {
	text  string
	cause error
}

func (b *bug) Error() string { return b.text }

// Unwrap yields the cause.
func (b *bug) Unwrap() error { return b.cause }
