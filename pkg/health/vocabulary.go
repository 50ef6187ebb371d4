package health

import (
	"strings"
	"unicode"
)

// class is what a word of the field's vocabulary says: the type of a condition when it is True, a phase, a reason.
type class uint8

const (
	unclear class = iota
	good
	// main is good for a condition that sums up the others.
	main
	// strong is good for a condition that a summary does not outweigh.
	strong
	busy
	bad
	stopped
)

// conditionTypes are the types whose meaning their spelling does not tell.
var conditionTypes = classes{
	main: "Ready Available Healthy Succeeded Success Successful Complete Completed Running Operational Functional",
	strong: "Synced Reconciled Accepted Programmed ResolvedRefs Established Applied Valid Validated Deployed Installed LastAsyncOperation " +
		"ReconcileSuccess ReconcileSucceeded InSync UpToDate Admitted Published",
	good: "Active Offered Compatible Verified Bound Health Compliant Consistent",
	busy: "Progressing Reconciling InProgress Pending Waiting RollingOut ScalingUp ScalingDown RolloutProgressing ReconciliationInProgress " +
		"Deleting Terminating",
	bad: "Failed Failing Failure Error Errored ErrorOccurred Degraded Stalled Stuck Invalid InvalidSpec InvalidRequest Denied Rejected Conflict Conflicted " +
		"Terminal Unhealthy NotReady PartiallyReady Unavailable Unreachable Blocked Aborted Expired Missing Lost Crashed TimedOut Timeout " +
		"NoPodsMatched NoMatchingInstance NoMatchingFolder NotificationPolicyLoopDetected Dangling Fallback Warning ErrorsDetected OutOfSync Recoverable Overloaded PolicyViolation FailureOccurred " +
		"Irreconcilable Unrecoverable Unresolvable Unschedulable Unscheduled Unstable Unsupported Unsynced Unauthorized Interrupted Cancelled Canceled " +
		"Killed Evicted Preempted Quarantined Exhausted Corrupted Damaged Revoked Outdated Stale NonCompliant NotCompliant Inconsistent Unsynchronized " +
		"Disconnected Offline Dead Broken Compromised",
	stopped: "Paused Suspended Stopped Hibernated Hibernation Suspend Pause hibernation",
	// What these say is no matter of health, in either direction.
	unclear: "Upgradeable ContainersReady Draining Scaling Idle Progress Drifted Created Orphaned EventsSynced Deprecated Limited ScalingLimited Disabled " +
		"Cordoned Throttled RateLimited Tainted Locked Skipped Ignored Truncated Terminated Deleted Drained Detached Deactivated Superseded Replaced " +
		"Modified Restarted Fenced Isolated Unmanaged Overridden Requeued BookingExpired",
}.byWord()

// phases are the words of phases and states, in lower case, letters and digits only.
var phases = classes{
	good: "ready running active bound healthy available ok okay succeed succeeded success successful complete completed done finished deployed installed " +
		"established synced insync applied provisioned connected online up green valid accepted enabled created issued registered configured " +
		"attached serving normal good alive reconciled uptodate operational released programmed live passed open joined present started " +
		"initialized published built clusterisready healthok stable operating working upgraded updated detached loaded processed executed " +
		"verified permitted validated activated stored checked approved resolved satisfied acknowledged clusterinhealthystate realized admitted allocated assigned compliant elected formed wellformed fulfilled initialised mounted optimal " +
		"onboarded synchronized synchronised unsealed readytouse readyforuse allgood failedover relocated",
	busy: "pending waiting queued new unknown inprogress progressing notready notstarted starting startingup init requested submitted " +
		"scheduled validating inreview planned planning draft deleted terminated preparing awaiting accepting delayed retry retrying partial " +
		"blocked uninitialized undefined none empty received opened notinstalled notprovisioned launched ready4setup rollout rollingout " +
		"recreate switchover failover rollback reconfigure update upgrade delete create refresh resize unready unsynced unbound unprovisioned undeployed " +
		"uninitialised unconfigured unreconciled",
	bad: "failed failure error errored degraded unhealthy nothealthy invalid lost red yellow dead faulted broken denied rejected aborted cancelled canceled " +
		"timeout timedout expired unavailable missing stalled conflict disconnected offline down critical evicted crashed warning warn healtherr " +
		"healthwarn stuck unreachable bad terminatedwitherror outofsync misconfigured notok rolledback unrecoverable incomplete fatal inconclusive " +
		"partiallyfailed partialfailure unstable disrupted unschedulable impaired nok unsupported corrupt corrupted outdated",
	stopped: "suspended paused hibernated hibernating stopped halted disabled frozen sleeping inactive shutdown poweredoff suspend pause",
}.byWord()

// Parts of reasons and messages, in lower case. What is bad outweighs what is under way.
var (
	badParts = []string{"fail", "error", "invalid", "notfound", "not found", "denied", "forbidden", "unauthori", "timeout", "timed out", "timedout",
		"exceed", "missing", "conflict", "reject", "unsupported", "backoff", "degraded", "stalled", "unhealthy", "mismatch", "refused", "crash",
		"abort", "lost", "unreachable", "cannot", "unable", "expired", "notallowed", "not allowed", "notpermitted", "incompatible", "duplicate",
		"insufficient", "unschedulable", "doesnotexist", "does not exist", "no such", "broken", "corrupt", "misconfigur", "disconnected",
		"unresolved", "notaccepted", "notexist", "notsupported", "cancel", "unrecoverable", "malformed", "couldn't", "could not", "couldnot", "wrong",
		"outofsync", "x509", "violation", "blocked", "evicted", "oomkill", "unrecogni", "exhaust"}
	busyParts = []string{"progress", "pending", "wait", "creating", "provisioning", "install", "initial", "reconciling", "updating", "upgrad",
		"deploying", "starting", "scaling", "issuing", "queued", "scheduling", "notready", "not ready", "notyet", " yet", "deleting",
		"terminating", "requested", "bootstrap", "configuring", "building", "pulling", "binding", "restoring", "syncing", "migrating", "rolling",
		"restarting", "launching", "attaching", "joining", "running", "preparing", "generating", "replicasunavailable", "retry",
		"notstarted", "uninitialized", "lessreplicas", "missingreplicas", "uploading", "downloading", "unpacking", "processing", "loading",
		"notinitialized", "notcomplete", "not complete", "importing", "promoting", "activating"}
)

// classes lists words by what they say.
type classes map[class]string

func (c classes) byWord() map[string]class {
	out := map[string]class{}
	for k, words := range c {
		for _, w := range strings.Fields(words) {
			out[w] = k
		}
	}
	return out
}

// conditionClass is what a condition of this type says when it is True.
func conditionClass(kind string) class {
	if c, ok := conditionTypes[kind]; ok {
		return c
	}
	if at := strings.LastIndexAny(kind, "./"); at >= 0 {
		return conditionClass(kind[at+1:]) // such as ACK.Terminal and cnpg.io/hibernation
	}
	if spelled := camelType(kind); spelled != kind {
		return conditionClass(spelled)
	}
	switch {
	case lacksTrouble(kind):
		return good
	case hasSuffix(kind, "Found", "Exists", "Exist", "Detected", "Occurred", "Encountered", "Present", "Reported") && namesTrouble(kind):
		return bad
	case hasSuffix(kind, "UpdateAvailable", "UpdatesAvailable", "UpgradeAvailable", "UpgradesAvailable", "VersionAvailable", "DriftDetected", "ChangeDetected",
		"ChangesDetected"):
		return unclear
	case hasSuffix(kind, "Failed", "Failure", "Failures", "Error", "Errors", "Pressure", "Conflict", "Conflicts", "Conflicted", "Unhealthy",
		"Missing", "Mismatch", "Invalid", "Unavailable", "Exceeded", "Violated", "Denied", "Degraded", "Stalled", "NotFound", "NotReady", "Blocked",
		"Misconfigured", "Rejected", "Refused", "Aborted", "Cancelled", "Canceled", "Interrupted", "Expired", "Revoked", "Exhausted", "Corrupted",
		"Unschedulable", "Unsupported", "Unreachable", "Outdated", "Crashed", "Failing", "Crashing", "CrashLooping", "TimedOut", "Timeout", "Irreconcilable", "Disconnected", "Overloaded", "Compromised",
		"Preempted", "Killed", "Quarantined", "Damaged", "Dropped", "Missed", "Unauthorized", "Unsynced", "Unscheduled", "Unresolved", "Lost", "Stuck", "Stale",
		"Broken", "Dead", "Offline"),
		hasPrefix(kind, "Not") && !hasPrefix(kind, "Notif", "Note", "Notar"), hasPrefix(kind, "Failed", "Error", "Invalid", "Unhealthy", "Unable", "Insufficient", "Misconfigured"):
		return bad
	case hasSuffix(kind, "Paused", "Suspended", "Stopped", "Hibernated"):
		return stopped
	case hasSuffix(kind, "Deprecated", "Disabled", "Throttled", "Limited", "Skipped", "Ignored", "Terminated", "Deleted", "Drained", "Detached", "Overridden", "Evicted"):
		return unclear
	case hasSuffix(kind, "Streaming", "Monitoring", "Replicating", "Archiving", "Watching", "Tracking", "Polling", "Listening"):
		return good
	case hasSuffix(kind, "InProgress", "Pending", "ing") && !hasSuffix(kind, "Running", "Serving", "Working", "Operating", "Succeeding"):
		return busy
	case hasPrefix(kind, "Updating", "Upgrading", "Migrating", "Restoring", "Deploying", "Installing", "Provisioning", "Rebalancing") && !hasSuffix(kind, "ed", "able"):
		return busy
	case hasSuffix(kind, "Synced", "Accepted", "Programmed", "Reconciled", "Applied"):
		return strong
	case hasPrefix(kind, "Valid"), hasSuffix(kind, "Ready", "Available", "Healthy", "Succeeded", "Succeeding", "Success", "Complete", "Valid", "UpToDate",
		"InSync", "ed", "able", "Running", "Serving", "Working", "Operating", "Bound", "Built", "Found", "Met", "Exists", "Sufficient", "Consistent",
		"Alive", "Online", "OK", "Ok"):
		return good
	}
	return unclear
}

// namesTrouble reports that one of the words of a type is a trouble, or some of it: Error and Errors, and not the Issue of an Issuer.
func namesTrouble(kind string) bool {
	for _, p := range troubles {
		for rest := kind; ; {
			_, after, found := strings.Cut(rest, p)
			if !found {
				break
			}
			end := strings.TrimPrefix(strings.TrimPrefix(after, "ies"), "y")
			if end == after {
				end = strings.TrimPrefix(after, "s")
			}
			if end == "" || end[0] < 'a' || end[0] > 'z' {
				return true
			}
			rest = after
		}
	}
	return false
}

// troubles are what a condition may say that it found.
var troubles = []string{"Conflict", "Error", "Failure", "Fault", "Issue", "Problem", "Violation", "Vulnerabilit", "Duplicate", "Collision", "Mismatch", "Loop",
	"Cycle", "Deadlock", "SplitBrain", "Corruption", "Anomal", "Threat", "Warning"}

// camelType is the type of a condition as most spell it, of one such as In-progress, in_progress, ready or READY.
func camelType(kind string) string {
	if kind == "" {
		return ""
	}
	shouts := !strings.ContainsFunc(kind, unicode.IsLower)
	if !shouts && kind[0] >= 'A' && kind[0] <= 'Z' && !strings.ContainsAny(kind, " -_") {
		return kind
	}
	words := strings.FieldsFunc(kind, func(r rune) bool { return r == ' ' || r == '-' || r == '_' })
	for i, w := range words {
		if shouts {
			w = strings.ToLower(w)
		}
		words[i] = camelKey(w)
	}
	return strings.Join(words, "")
}

// lacksGood reports a phase such as notdeployed; one that is notapplicable, notrequired or notenabled is as it should be.
func lacksGood(word string) bool {
	rest, not := strings.CutPrefix(word, "not")
	return not && rest != "enabled" && phases[rest] == good
}

// lacksTrouble reports a type such as NoErrors.
func lacksTrouble(kind string) bool {
	rest, no := strings.CutPrefix(kind, "No")
	return no && rest != "" && rest[0] >= 'A' && rest[0] <= 'Z' && conditionClass(rest) == bad
}

// phaseClass is what a phase or a state says, however it is spelled.
func phaseClass(phase string) class {
	word := plain(phase)
	if c, ok := phases[word]; ok {
		return c
	}
	switch {
	case hasPrefix(word, "noerror", "nofail", "noviolation", "noconflict", "nomismatch", "noissue", "notexceeded", "notexpired", "notinterrupted", "notviolated"):
		return good
	case contains(word, "fail", "error", "crash", "invalid", "lost", "reject", "denied", "unhealthy", "degraded", "broken", "abort", "timeout",
		"missing", "unrecover", "unavailable", "conflict", "stalled", "unable", "cannot", "notfound", "exception", "backoff", "oomkill", "splitbrain",
		"noquorum", "exceed", "insufficient", "expired", "exhaust", "incompatib", "malformed", "mismatch", "inconsistent", "abnormal", "forbidden",
		"unauthori", "refused", "violat", "noncomplian", "notcomplian", "unresolv", "unrespons", "notrespond", "interrupted", "killed", "outofdate",
		"deadlock", "diskfull", "lowdisk", "misconfig"), hasPrefix(word, "err"):
		return bad
	case contains(word, "paused", "suspended", "hibernat"):
		return stopped
	case hasSuffix(word, lasting...) && !contains(word, "not", "wait", "pending"):
		return good
	case contains(word, "progress", "pending", "waiting", "ing", "await", "notready", "notyet", "partial", "readyto"), lacksGood(word):
		return busy
	}
	return unclear
}

// plainPhase is bad or busy for a phase that leaves no doubt, wherever it stands.
func plainPhase(phase string) class {
	word := plain(phase)
	switch k := phaseClass(phase); {
	case k == bad && (contains(word, "fail", "error", "crash", "degraded", "unhealthy", "invalid", "rolledback") || hasPrefix(word, "err")):
		return bad
	case k == busy && (hasSuffix(word, "ing") || contains(strings.ToLower(phase), "ing_", "ing ", "progress", "pending")) && !hasSuffix(word, steady...):
		return busy
	}
	return unclear
}

// lasting ends a phase in which something does what it is for.
var lasting = []string{"running", "streaming", "monitoring", "watching", "listening"}

// steady ends what goes on without an end.
var steady = []string{"streaming", "monitoring", "replicating", "archiving", "watching", "tracking", "polling", "listening", "nothing"}

// reasonClass is whether a reason or, where it says nothing, a message tells of trouble or of work.
func reasonClass(reason, message string) class {
	for _, s := range [2]string{strings.ToLower(reason), strings.ToLower(message)} {
		if strings.HasPrefix(s, "err") || contains(s, badParts...) {
			return bad
		}
		if contains(s, busyParts...) {
			return busy
		}
	}
	return unclear
}

// plain is a word in lower case, letters and digits only.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return -1
	}, s)
}

func contains(s string, parts ...string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

func hasSuffix(s string, ends ...string) bool {
	for _, e := range ends {
		if strings.HasSuffix(s, e) {
			return true
		}
	}
	return false
}

func hasPrefix(s string, starts ...string) bool {
	for _, e := range starts {
		if strings.HasPrefix(s, e) {
			return true
		}
	}
	return false
}

// has reports that a word is in a list of words with single spaces.
func has(list, word string) bool {
	for word != "" && list != "" {
		var first string
		if first, list, _ = strings.Cut(list, " "); first == word {
			return true
		}
	}
	return false
}
