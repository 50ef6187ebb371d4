package rollout

// Odd is an event that the table of transitions does not have for the state in which it found a member; empty: there was none.
func (d Decision) Odd() string { return d.odd }

// Confirmed reports that a person let it lose the module.
func (r *Record) Confirmed() bool { return r.has(flagConfirmed) }
