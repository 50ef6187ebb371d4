package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/envelope"
	"towline.dev/towline/pkg/fleet"
)

// doubts has the sendings of a process overtake each other in no way. A commit whose answer was lost may still be under way,
// and its own comparisons cannot tell a key that nobody has made yet from one that somebody made and deleted since. Therefore
// every commit also compares a key that only this process writes, and before anything is sent again that key is written:
// from then on the first sending has happened, or never will.
type doubts struct {
	key      string       // never deleted: without it the first sendings of the process would hold again
	revision atomic.Int64 // of the key; 0: nothing was ever in doubt
}

func newDoubts() *doubts { return &doubts{key: fmt.Sprintf("doubt/%016x", envelope.DrawNonce())} }

// fence is the comparison that every commit carries last.
func (x *doubts) fence() backend.Compare {
	return backend.Compare{Key: x.key, Revision: x.revision.Load()}
}

// fenced is a part with another fence.
func fenced(p backend.Part, fence backend.Compare) backend.Part {
	p.If = slices.Clone(p.If)
	p.If[len(p.If)-1] = fence
	return p
}

// settle ends whatever was sent with the part and is still under way. It returns a revision after which none of it happens.
func (e *Engine) settle(ctx context.Context, p backend.Part) (int64, error) {
	x, sent := e.doubts, p.If[len(p.If)-1]
	if x.revision.Load() != sent.Revision {
		return e.backend.Revision(ctx) // another commit of this process has ended it
	}
	rev, happened, err := e.backend.Commit(ctx, []backend.Part{{If: []backend.Compare{sent}, Then: []backend.Op{{Key: x.key, Value: []byte{1}}}}})
	switch {
	case errors.Is(err, fleet.ErrExhausted):
		return e.backend.Revision(ctx) // a store that is full takes no key, and no commit that makes one
	case err != nil:
		return 0, err
	case happened[0]:
		raise(&x.revision, rev)
		return rev, nil
	}
	// An answer to this was lost before, or another commit is faster.
	found, rev, err := e.backend.Get(ctx, 0, x.key)
	if err == nil {
		x.learn(found)
	}
	return rev, err
}

// learn takes over what is found under the key: it may have been written by a sending whose answer was lost, when nobody waits for it any
// more. Whoever finds that a commit has not happened asks for the key, too: nothing would happen any more by the revision of before.
func (x *doubts) learn(found map[string]backend.KV) { raise(&x.revision, found[x.key].Mod) }
