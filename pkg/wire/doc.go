// Package wire turns protobuf messages into values and back. It owns the validation of what comes in, with errors by
// field path; it must not know who sent a message or what is done with it.
package wire
