package desired

import (
	"context"
	"encoding/json"
	"fmt"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// HighWater is how far the agent has come. It is kept beside the state too, in a place that a disk which is put back does
// not take with it.
type HighWater struct {
	// Number of the lineage, and its name.
	Number uint64 `json:"lineage"`
	Lineage
	// Generation is the highest of an accepted index in it.
	Generation uint64 `json:"generation"`
}

func (h HighWater) String() string {
	raw, _ := json.Marshal(h) // never fails: numbers and strings
	return string(raw)
}

// beyond reports that h is of a newer state than w.
func (h HighWater) beyond(w HighWater) bool {
	if h.Number == w.Number && h.Lineage == w.Lineage {
		return h.Generation > w.Generation
	}
	return h.Number >= w.Number
}

// HighWater is the agent's own; the zero one before the first index.
func (s *Store) HighWater() HighWater {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.set.mark()
}

func (s *set) mark() HighWater {
	return HighWater{Number: s.number(), Lineage: s.lineage, Generation: s.highWater}
}

// Recall holds the state against the high water that was noted last, if any was. A state that is older was put back from a
// copy, or is another agent's from before: nothing that it holds is worked by or kept, until the hub has said what is
// desired now. It reports whether that is so.
func (s *Store) Recall(ctx context.Context, noted string) (bool, error) {
	own := s.current()
	if noted == "" {
		return own.behind != "", nil
	}
	var mark HighWater
	if err := json.Unmarshal([]byte(noted), &mark); err != nil || mark.Number == 0 {
		return own.behind != "", fleet.Errorf(fleet.ErrCorrupt, "desired: the high water that was noted cannot be read: %.200q", noted)
	}
	if !mark.beyond(own.mark()) {
		return own.behind != "", nil
	}
	next := emptySet()
	next.join, next.frozen = own.join, own.frozen
	next.adopt = own.adopt || own.lineage == (Lineage{}) && own.join != "" // joined anew, and the hub has not spoken
	next.lineage, next.highWater = mark.Lineage, mark.Generation
	next.past = own.past
	if own.number() < mark.Number {
		next.past = own.closed()
	}
	for uint64(len(next.past))+1 < mark.Number {
		next.past = append(next.past, Lineage{}) // of these the state has not heard
	}
	next.previous, next.loose = own.roots(), own.loose // most of it is wanted again
	next.behind = why(own.mark(), mark)
	next.listed = assemble.Build(nil, nil, false, mark.Generation)
	s.mu.Lock()
	s.set = next
	s.mu.Unlock()
	if err := writeSet(ctx, s.state, next); err != nil {
		s.log.Warn("that the state is older than the cluster is not saved", "error", err) // it is found again at the next start
	}
	return true, nil
}

// why says what is wrong with a state, in a sentence that goes on.
func why(own, mark HighWater) string {
	switch {
	case own.Lineage == (Lineage{}):
		return "the agent's state is empty, and the cluster was managed before"
	case own.Number == mark.Number && own.Lineage == mark.Lineage:
		return fmt.Sprintf("the agent's state is older than the cluster: it has generation %d, and generation %d was accepted here; "+
			"it was put back from a copy, or is another agent's", own.Generation, mark.Generation)
	}
	return "the agent's state is older than the cluster: the hub was joined anew since; it was put back from a copy, or is another agent's"
}
