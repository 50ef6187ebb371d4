package fleet

import (
	"errors"
	"strings"
	"time"
)

// Object names one object of the API.
type Object struct {
	Kind string // as in the resource's kind, such as Module
	Name string // in full, such as default/shop
}

// String is how people write it, such as module shop.
func (o Object) String() string {
	return strings.ToLower(o.Kind) + " " + strings.TrimPrefix(o.Name, DefaultProject+"/")
}

// Precondition is a kind of condition under which a request is possible.
type Precondition string

// Preconditions.
const (
	PreconditionUID        Precondition = "UID"              // the object is the one that the caller saw, not another one of its name
	PreconditionGeneration Precondition = "GENERATION"       // nobody changed the spec since the caller saw it
	PreconditionVersion    Precondition = "RESOURCE_VERSION" // nobody changed the object since the caller saw it
	PreconditionState      Precondition = "STATE"            // the state of the object allows it
	PreconditionUnlocked   Precondition = "UNLOCKED"         // no person has locked the cluster, or revoked it
)

// Hint is what an error says to programs beside its kind.
type Hint struct {
	// About is the object that is not there, is there already, or forbids the request; the zero Object: none is named.
	About Object
	// Unmet is the precondition that does not hold; empty: none is named.
	Unmet Precondition
	// RetryAfter is when the same request is worth another try; 0: nothing is said.
	RetryAfter time.Duration
}

type hinted struct {
	error
	hint Hint
}

// Unwrap yields the error without the hint.
func (e *hinted) Unwrap() error { return e.error }

// With adds a hint to an error. The text and the kind stay.
func With(err error, h Hint) error {
	if err == nil {
		return nil
	}
	return &hinted{err, h}
}

// HintOf is the hint of an error; the zero Hint if it has none. Of several the outermost counts.
func HintOf(err error) Hint {
	var e *hinted
	if errors.As(err, &e) {
		return e.hint
	}
	return Hint{}
}

// NotFound is an ErrNotFound that names the object.
func NotFound(about Object, format string, args ...any) error {
	return With(Errorf(ErrNotFound, format, args...), Hint{About: about})
}

// Forbids is an ErrPrecondition that names the object whose state forbids the request.
func Forbids(about Object, format string, args ...any) error {
	return With(Errorf(ErrPrecondition, format, args...), Hint{About: about, Unmet: PreconditionState})
}

// SameUID refuses a request that is meant for another object than the one that has the name by now. Without want any is meant.
func SameUID(about Object, have, want string) error {
	if want == "" || want == have {
		return nil
	}
	return With(Errorf(ErrPrecondition, "%s is another one by now: the one that was meant is deleted; look at it again", about),
		Hint{About: about, Unmet: PreconditionUID})
}

// SameVersion refuses what is meant for another version than the present one. Without want any is meant.
func SameVersion(about Object, have, want int64) error {
	if want == 0 || want == have {
		return nil
	}
	return With(Errorf(ErrConflict, "%s was changed meanwhile: its resource version is %d, not %d; read it again", about, have, want),
		Hint{About: about, Unmet: PreconditionVersion})
}

// SameGeneration refuses a put that is meant for another generation. Without want any is meant.
func SameGeneration(about Object, have, want int64) error {
	if want == 0 || want == have {
		return nil
	}
	return With(Errorf(ErrConflict, "%s is at generation %d, not %d; read it again", about, have, want),
		Hint{About: about, Unmet: PreconditionGeneration})
}
