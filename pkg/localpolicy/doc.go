// Package localpolicy owns what a workload cluster accepts from its hub: it reads the file that says so, and judges one
// write at a time. It must not know where the file is, nor how writes are made.
package localpolicy
