// Package cli owns the towline command: its verbs, what they print and how they exit. It speaks to a hub through
// pkg/client only and must not know how the hub or an agent works inside.
package cli
