package main

import "testing"

// TestEachBugHasItsPlace plants all bugs: code that moves away from under one would be found only by who runs the simulation with them.
func TestEachBugHasItsPlace(t *testing.T) {
	if err := write("../../..", t.TempDir()); err != nil {
		t.Error(err)
	}
}
