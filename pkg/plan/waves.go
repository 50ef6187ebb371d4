package plan

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// ReasonAwaitingWave is of a module whose next wave waits for the one before.
const ReasonAwaitingWave = "AwaitingWave"

// Turn is the place of an object in the order of waves that wait for each other: its wave, and before all waves what others live in, or are
// of a kind of.
type Turn int64

// Turns that are no wave.
const (
	// NoTurn is before all.
	NoTurn Turn = math.MinInt64
	// FirstTurn is of namespaces and definitions of kinds.
	FirstTurn Turn = math.MinInt64 + 1
	// EveryTurn is behind all.
	EveryTurn Turn = math.MaxInt64
)

// TurnOf is the turn of an object.
func TurnOf(id fleet.ObjectID, wave int32) Turn {
	if IsNamespace(id) || IsCRD(id) {
		return FirstTurn
	}
	return Turn(wave)
}

// String names it as people know it.
func (t Turn) String() string {
	if t == FirstTurn {
		return "the one of namespaces and definitions"
	}
	return "wave " + strconv.FormatInt(int64(t), 10)
}

// UnsettledObject is an object that is not as its sync says yet, or not healthy, and why.
type UnsettledObject struct {
	ID   fleet.ObjectID
	Turn Turn
	Why  string
}

// Waves are how far the waves of a sync are.
type Waves struct {
	// Begun is the last turn that is begun: what is of it, or comes before it, may be written.
	Begun Turn
	// Waits is the first turn with something unsettled; EveryTurn: there is none.
	Waits Turn
	// Of are the objects that it waits for.
	Of []UnsettledObject
}

// Advance says how far waves are: the first that has something unsettled is begun, for all before it are healthy, and so is all that was
// begun already, whatever became of what comes first.
func Advance(begun Turn, unsettled []UnsettledObject) Waves {
	out := Waves{Begun: begun, Waits: EveryTurn}
	for _, o := range unsettled {
		out.Waits = min(out.Waits, o.Turn)
	}
	for _, o := range unsettled {
		if o.Turn == out.Waits {
			out.Of = append(out.Of, o)
		}
	}
	out.Begun = max(begun, out.Waits)
	return out
}

// namedOf is how many objects a sentence names.
const namedOf = 2

// Text says what the wave next waits for.
func (w Waves) Text(next Turn) string {
	var of []string
	for _, o := range w.Of {
		of = append(of, o.ID.String()+": "+strings.TrimPrefix(o.Why, o.ID.String()+": "))
	}
	slices.Sort(of)
	text := fmt.Sprintf("%s waits until %s is healthy: ", next, w.Waits)
	if n := len(of) - namedOf; n > 0 {
		return text + fmt.Sprintf("%d more, and ", n) + strings.Join(of[:namedOf], "; ")
	}
	return text + strings.Join(of, "; ")
}
