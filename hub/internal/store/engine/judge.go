package engine

import (
	"context"

	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/fleet"
)

// What became of a commit whose answer was lost is told by the changes that the watch has delivered since, because it
// delivers every version of every key. What was sent is settled before (see doubts): it has happened by then, or never will. If
// it has not it is sent again. If that does not happen either, the changes tell that somebody else was faster.

// trace is what to look for: how a commit shows in the changes of its keys.
type trace struct {
	base    int64    // the commit happened only if none of its keys had changed after this revision
	nonce   uint64   // drawn for it, and carried by one of its puts
	carried bool     // false: it only deletes
	deletes []string // all its keys, if it only deletes
}

// traceOf is the trace of a part that was made with the nonce.
func traceOf(p backend.Part, base int64, nonce uint64) trace {
	t := trace{base: base, nonce: nonce}
	for _, o := range p.Then {
		t.carried = t.carried || !o.Delete
	}
	if !t.carried {
		for _, o := range p.Then {
			t.deletes = append(t.deletes, recordKey(o.Key))
		}
	}
	return t
}

// fate is what became of a commit.
type fate int

const (
	lost    fate = iota // it has not happened, and cannot any more
	done                // it has happened
	unknown             // history does not go back far enough
)

// judge says what became of a commit, and at which revision it happened. The changes are all those after the base, in
// order, if complete; there says what is there after the last of them.
//
// A put is known by its nonce. Deletions carry none: what deleted all the keys in one revision, with none of them changed
// between the base and then, has done what the commit was to do, whoever it was.
func judge(t trace, changes []change, complete bool, there func(key string) bool) (fate, int64) {
	if t.carried {
		for _, c := range changes {
			if c.nonce == t.nonce && c.revision > t.base {
				return done, c.revision
			}
		}
		if !complete {
			return unknown, 0
		}
		return lost, 0
	}
	if !complete {
		return unknown, 0
	}
	at := firstChange(t, changes)
	if at == 0 {
		return lost, 0
	}
	for _, key := range t.deletes {
		if !absentAfter(key, at, changes, there) {
			return lost, 0
		}
	}
	return done, at
}

// firstChange is the revision at which the first of the keys changed after the base; 0: none has.
func firstChange(t trace, changes []change) int64 {
	keys := make(map[string]struct{}, len(t.deletes))
	for _, k := range t.deletes {
		keys[k] = struct{}{}
	}
	for _, c := range changes {
		if _, ours := keys[c.key]; ours && c.revision > t.base {
			return c.revision
		}
	}
	return 0
}

// absentAfter reports that the key was not there after the revision, before which it had not changed: it was deleted just
// then, or was made anew later, or is not there now and nobody has deleted it since.
func absentAfter(key string, at int64, changes []change, there func(string) bool) bool {
	for _, c := range changes {
		if c.key != key || c.revision < at {
			continue
		}
		if c.revision == at {
			return c.deleted
		}
		return !c.deleted && c.created == c.revision
	}
	return !there(key)
}

// change is one version of a record as the watch told it, or its deletion.
type change struct {
	key               string
	revision, created int64
	nonce             uint64 // 0: it carries none
	deleted           bool
}

// keptChanges is how many changes history keeps: an outage in which an answer is lost lets few others through.
const keptChanges = 4096

// history is the last changes of records, the oldest first. It is complete after the revision of its floor.
type history struct {
	changes []change
	floor   int64
}

// add appends changes, and drops the oldest, half of them at a time.
func (h *history) add(list []change) {
	h.changes = append(h.changes, list...)
	if over := len(h.changes) - keptChanges; over > keptChanges {
		h.floor = max(h.floor, h.changes[over-1].revision)
		h.changes = append([]change(nil), h.changes[over:]...)
	}
}

// gap says that changes up to the revision were missed: a list shows only the newest version of each key, and no deletion.
func (h *history) gap(revision int64) { h.floor = revision }

// judge applies the pure judge to what the model remembers.
func (m *model) judge(t trace) (fate, int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	there := func(key string) bool { return m.snapshot().find(key) != nil }
	return judge(t, m.history.changes, m.history.floor <= t.base, there)
}

// inquire finds out what has become of a commit up to a revision. what is the key that an error names.
func (e *Engine) inquire(ctx context.Context, what string, t trace, revision int64) (happened bool, at int64, err error) {
	if _, err := e.await(ctx, revision); err != nil {
		return false, 0, err
	}
	f, at := e.model.judge(t)
	if f == unknown {
		err = fleet.Errorf(fleet.ErrConflict, "%s: whether it was written is unknown: too much has changed since", what)
	}
	return f == done, at, err
}
