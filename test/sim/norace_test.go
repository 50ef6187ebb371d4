//go:build !race

package sim

// fewSeeds are lived where no number is given.
const fewSeeds = 8
