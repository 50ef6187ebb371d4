package rollout

// Odd is an event that the table of transitions does not have for the state in which it found a member; empty: there was none.
func (d Decision) Odd() string { return d.odd }
