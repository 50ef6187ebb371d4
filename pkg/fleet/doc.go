// Package fleet is Towline's vocabulary: names, identities, digests, states, policies, syncs and the sentinel errors
// that every other package speaks in. It owns words only; it must not know how they are stored, sent or decided.
package fleet
