package fleet

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinel errors. Errors wrap one of them with %w; pkg/rpc translates them to codes and back, so that errors.Is holds
// across the wire.
var (
	ErrInvalid      = errors.New("invalid")            // the input is wrong, whatever the state
	ErrNotFound     = errors.New("not found")          // no such thing
	ErrExists       = errors.New("already exists")     // it is there, and is another's
	ErrConflict     = errors.New("conflict")           // lost a race or a precondition; read again
	ErrPrecondition = errors.New("not possible now")   // the state forbids it
	ErrDenied       = errors.New("permission denied")  // known, but not allowed
	ErrUnknownUser  = errors.New("not authenticated")  // not known
	ErrUnavailable  = errors.New("unavailable")        // try again
	ErrExhausted    = errors.New("resource exhausted") // over a limit
	ErrStale        = errors.New("stale")              // an older session, epoch or generation
	ErrCorrupt      = errors.New("corrupt")            // stored or received bytes do not match their checksum
)

// ErrStopped is an ErrUnavailable of work that was stopped in the middle. Each try may cost as much as the last one, so it is tried a few times only.
var ErrStopped = fmt.Errorf("stopped: %w", ErrUnavailable)

// FieldError is an ErrInvalid that names the field.
type FieldError struct {
	Path    string // such as spec.placement.selector
	Message string // what is wrong and what to do
}

func (e *FieldError) Error() string {
	if e.Path == "" {
		return e.Message
	}
	return e.Path + ": " + e.Message
}

// Is makes every FieldError an ErrInvalid.
func (e *FieldError) Is(target error) bool { return target == ErrInvalid }

// Invalid is a FieldError.
func Invalid(path, message string) error { return &FieldError{Path: path, Message: message} }

// Invalidf is a FieldError with a formatted message.
func Invalidf(path, format string, args ...any) error {
	return &FieldError{Path: path, Message: fmt.Sprintf(format, args...)}
}

// Named is an error with a sentence of its own that is one of the sentinels.
type Named struct {
	Kind    error
	Message string
}

func (e *Named) Error() string { return e.Message }

// Unwrap yields the sentinel.
func (e *Named) Unwrap() error { return e.Kind }

// Errorf makes an error of a sentinel kind whose text is the sentence alone: no "conflict:" in front.
func Errorf(kind error, format string, args ...any) error {
	return &Named{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// Join puts a field path in front of a FieldError's own.
func Join(path string, err error) error {
	var fe *FieldError
	if !errors.As(err, &fe) {
		return err
	}
	sep := "."
	if fe.Path == "" || strings.HasPrefix(fe.Path, "[") {
		sep = ""
	}
	return &FieldError{Path: path + sep + fe.Path, Message: fe.Message}
}
