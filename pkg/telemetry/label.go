package telemetry

import "google.golang.org/protobuf/reflect/protoreflect"

// Answer is how an agent answers what its hub sent.
type Answer string

// Answers.
const (
	Accepted Answer = "accepted"
	Partly   Answer = "partly" // some modules were refused
	Refused  Answer = "refused"
)

// AnswerOf says which it is: refused as a whole, or some of it.
func AnswerOf(refused, some bool) Answer {
	switch {
	case refused:
		return Refused
	case some:
		return Partly
	}
	return Accepted
}

// KindOf is the name of what a frame of a stream holds; unknown: a newer peer has sent what this one does not know.
func KindOf(frame protoreflect.ProtoMessage) string {
	x := frame.ProtoReflect()
	if f := x.WhichOneof(x.Descriptor().Oneofs().Get(0)); f != nil {
		return string(f.Name())
	}
	return "unknown"
}
