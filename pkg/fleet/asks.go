package fleet

import "time"

// ClusterEvent is a Kubernetes Event.
type ClusterEvent struct {
	ID                        ObjectID
	Version                   string
	Type, Reason, Message, By string
	First, Last               time.Time
	Count                     int
}

// LogQuery says what of logs is read.
type LogQuery struct {
	// Container is the one to read; empty: the pod's default, or its first.
	Container string
	// Tail is how many of the last lines of each pod; 0: all.
	Tail int
	// Since is how old they are at most; 0: any.
	Since time.Duration
	// Previous is the container that ran before.
	Previous   bool
	Timestamps bool
	// After is how far pods are read, by their UIDs.
	After map[string]LogCursor
	// Bytes is how much there is room for.
	Bytes int
}

// LogCursor is how far the log of a pod is read.
type LogCursor struct {
	Pod, UID string
	At       time.Time
}

// PodLog is of one container of a pod: whole lines, or why there are none.
type PodLog struct {
	LogCursor
	Container string
	Data      []byte
	Cut       bool
	Error     string
}
