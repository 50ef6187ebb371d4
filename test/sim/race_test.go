//go:build race

package sim

// fewSeeds are lived where no number is given: ten times as much takes each with the race detector.
const fewSeeds = 2
