package rollout

// LetBy reports that a person let a stage go on without the member while it was held.
func (r *Record) LetBy() bool { return r.has(flagLetBy) }

// MayHave reports that the member may have the revision by a rollout before.
func (r *Record) MayHave() bool { return r.has(flagMayHave) }

// Accepted reports that the member has failed, and a person went on in spite of that.
func (r *Record) Accepted() bool { return r.has(flagAccepted) }

// UnmarkAccepted has the state be that of a hub which only counted the failures in spite of which a person went on.
func (s *State) UnmarkAccepted() {
	for c := range s.Chunks {
		for k := range s.Chunks[c] {
			s.Chunks[c][k].flags &^= flagAccepted
		}
	}
}

// Retried reports that the member is to be assigned again what it has.
func (r *Record) Retried() bool { return r.has(flagRetry) }

// Odd is an event that the table of transitions does not have for the state in which it found a member; empty: there was none.
func (d Decision) Odd() string { return d.odd }

// GoesBack reports that the member is one of those that go back.
func (r *Record) GoesBack() bool { return r.has(flagBack) }
