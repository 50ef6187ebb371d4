package plan

// Outcome says how an object ended that runs to an end, such as a Job: it may be taken away afterwards, and must not run
// again because it is gone.
type Outcome uint8

// Outcomes. They are stored by number.
const (
	// Running has not ended, is of a kind that does not end, or nobody saw how it did.
	Running Outcome = iota
	// Completed and Failed are what the object itself said last.
	Completed
	Failed
	// Interrupted was deleted before it ended: by somebody, not by the cluster.
	Interrupted
	// OutcomeUnknown went while nobody looked, may have been taken away by the cluster, and left no word of how it ended.
	OutcomeUnknown
)

func (o Outcome) String() string {
	return [...]string{"Running", "Completed", "Failed", "Interrupted", "OutcomeUnknown"}[min(o, OutcomeUnknown)]
}

// done reports that the object is not made again for the same content.
func (o Outcome) done() bool { return o == Completed || o == Failed || o == OutcomeUnknown }

// Ran reports that an object which is gone now ran for this record's content, as far as is known.
func (r Record) Ran() bool { return r.State == Owned && r.Outcome.done() }

// OutcomeOf reads from a live object how it ended.
func OutcomeOf(obj map[string]any) Outcome {
	status, _ := obj["status"].(map[string]any)
	switch obj["kind"] {
	case "Job":
		if obj["apiVersion"] == "batch/v1" {
			return outcomeOfJob(status)
		}
	case "Pod":
		if obj["apiVersion"] == "v1" && status["phase"] == "Succeeded" {
			return Completed
		}
	}
	return Running
}

func outcomeOfJob(status map[string]any) Outcome {
	conditions, _ := status["conditions"].([]any)
	for _, x := range conditions {
		c, _ := x.(map[string]any)
		switch {
		case c["status"] != "True":
		case c["type"] == "Complete":
			return Completed
		case c["type"] == "Failed":
			return Failed
		}
	}
	return Running
}

// OutcomeOfEvents is what the Events about an object that is gone tell of its end. That it ended is the last that they
// say, so that those which began earlier are forgotten earlier: if any are left and none says so, it was interrupted.
func OutcomeOfEvents(reasons []string) Outcome {
	if len(reasons) == 0 {
		return OutcomeUnknown
	}
	for _, reason := range reasons {
		switch reason {
		case "Completed":
			return Completed
		case "BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy":
			return Failed
		}
	}
	return Interrupted
}

// Event is what the cluster says of an object, with the time in seconds.
type Event struct {
	UID, Reason string
	At          int64
}

// Attempt finds, by the Events about all objects that had a name, the one that began since a time and has ended, but for one that is
// known. An empty UID: there is none.
func Attempt(events []Event, since int64, known string) (uid string, o Outcome) {
	reasons, older := map[string][]string{}, map[string]bool{known: true}
	for _, e := range events {
		reasons[e.UID] = append(reasons[e.UID], e.Reason)
		if e.At < since {
			older[e.UID] = true
		}
	}
	for of, list := range reasons {
		if end := OutcomeOfEvents(list); !older[of] && end.Told() {
			return of, end
		}
	}
	return "", Running
}

// Told reports that the object itself, or an Event about it, said how it ended.
func (o Outcome) Told() bool { return o == Completed || o == Failed }

// Fleeting reports that the cluster takes the object away by itself when it has ended.
func Fleeting(obj map[string]any) bool {
	spec, _ := obj["spec"].(map[string]any)
	_, ttl := spec["ttlSecondsAfterFinished"]
	return ttl && obj["kind"] == "Job" && obj["apiVersion"] == "batch/v1"
}

// End notes how the object with this UID ended. It reports whether that is news.
func (r *Record) End(uid string, o Outcome) bool {
	if o == Running || r.State != Owned || r.UID != uid || r.Outcome == o || r.Outcome.done() {
		return false
	}
	r.Outcome = o
	return true
}

// Gone notes that somebody saw the object with this UID go after it had ended so.
func (r *Record) Gone(uid string, o Outcome) bool {
	if o == Running && r.ends() {
		o = Interrupted
	}
	return r.End(uid, o)
}

// Back takes back that the object with this UID was deleted before it ended: it is there. A watch that filters by our label says of one which
// has lost it that it is gone. It reports whether that is news.
func (r *Record) Back(uid string) bool {
	if r.UID != uid || r.Outcome != Interrupted {
		return false
	}
	r.Outcome = Running
	return true
}

// Unseen reports that the object, if it is gone, may have ended while nobody looked.
func (r Record) Unseen() bool { return r.State == Owned && r.ends() && r.Outcome == Running }

// MayHaveRun reports that the object, if it is gone, is not known to have been taken away before its end: it is not made again for the same content.
func (r Record) MayHaveRun() bool { return r.Ran() || r.Unseen() }

// ends reports that the object runs to an end, and is done then, whoever takes it away.
func (r Record) ends() bool { return r.Fleeting || r.ID.Group == "batch" && r.ID.Kind == "Job" }

// Ended is how the object of a record ended that went while nobody looked, by what Events tell of it. Only the cluster takes one away
// that nobody heard the end of: of others a person does, who may mean to have it run once more.
func (r Record) Ended(told Outcome) Outcome {
	if !told.Told() && !r.Fleeting {
		return Interrupted
	}
	return told
}
