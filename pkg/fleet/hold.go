package fleet

import (
	"fmt"
	"time"
)

// ObjectHold is a hold of one object that its annotation in the cluster puts.
type ObjectHold struct {
	ID      ObjectID
	Version string
	// Reason is what people say why.
	Reason string
	// By is the field manager that set the annotation, and Since when that wrote last; empty and zero: it is not known.
	By    string
	Since time.Time
	// Until is when the hold ends by itself; zero: never. Unread is what stands where that should be said, and is no time.
	Until  time.Time
	Unread string
}

// HoldOfAnnotation is the source of an ObjectHold where holds of all sources are told.
const HoldOfAnnotation = "Annotation"

// Lasts reports that the hold has not ended by itself.
func (h ObjectHold) Lasts(now time.Time) bool { return h.Until.IsZero() || now.Before(h.Until) }

// maxReasonText is how much of a reason stands in a sentence.
const maxReasonText = 100

// Text says of an object that it is held, by whom, why and until when.
func (h ObjectHold) Text() string {
	text := "held in the cluster by its annotation " + HoldAnnotation
	if h.By != "" {
		text += " (" + h.By + ")"
	}
	if h.Reason != "" {
		text += ": " + Clip(h.Reason, maxReasonText)
	}
	switch {
	case h.Unread != "":
		text += fmt.Sprintf("; without an end, for %s is no time: %q", HoldUntilAnnotation, h.Unread)
	case !h.Until.IsZero():
		text += "; until " + h.Until.UTC().Format(time.RFC3339)
	}
	return text
}
