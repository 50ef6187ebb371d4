package rollout

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Facts are what a person must know beside a code to understand it; a sentence is made of both where people read it. Which
// of them are set follows from the code. Facts are never changed once they are made.
type Facts struct {
	// Code says more: of the gate that holds a rollout, what a rollback waits for, what one failure too many does.
	Code     string   `json:"code,omitempty"`
	Stage    string   `json:"stage,omitempty"`
	Gate     string   `json:"gate,omitempty"`
	Position Position `json:"position,omitempty"`
	// Clusters are the first few of those that are meant, Names of anything else: overrides, or people.
	Clusters []string `json:"clusters,omitempty"`
	Names    []string `json:"names,omitempty"`
	// Count of Total.
	Count     int `json:"count,omitempty"`
	Total     int `json:"total,omitempty"`
	Limit     int `json:"limit,omitempty"`     // at once
	Tolerated int `json:"tolerated,omitempty"` // failures
	// Clusters by what became of them.
	Succeeded int `json:"succeeded,omitempty"`
	Running   int `json:"running,omitempty"`
	Failed    int `json:"failed,omitempty"`
	Deferred  int `json:"deferred,omitempty"`
	Skipped   int `json:"skipped,omitempty"`
	Removed   int `json:"removed,omitempty"`
	ToGo      int `json:"toGo,omitempty"`
	// Percent is what Limit was worked out from, such as 25%.
	Percent  string        `json:"percent,omitempty"`
	Revision int64         `json:"revision,omitempty"`
	Rollout  string        `json:"rollout,omitempty"` // the ID of another one
	Until    Instant       `json:"until,omitempty"`
	For      time.Duration `json:"for,omitempty"`
	By       string        `json:"by,omitempty"` // a person
	// Detail is in the words of others: of a person, an agent, a gate's program.
	Detail string `json:"detail,omitempty"`
	// Selector is of the clusters that are meant, as text; empty: the code speaks of no set of clusters, or of all.
	Selector string `json:"selector,omitempty"`
}

// String is one line for logs and scripts: the facts that are set, by name.
func (f *Facts) String() string {
	if f == nil {
		return ""
	}
	var parts []string
	v := reflect.ValueOf(*f)
	for i := range v.NumField() {
		x := v.Field(i)
		if x.IsZero() {
			continue
		}
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		switch value := x.Interface().(type) {
		case Instant:
			parts = append(parts, name+"="+value.Time().Format("15:04:05"))
		case []string:
			parts = append(parts, name+"="+strings.Join(value, ","))
		case string:
			parts = append(parts, fmt.Sprintf("%s=%q", name, value))
		default:
			parts = append(parts, fmt.Sprintf("%s=%v", name, value))
		}
	}
	return strings.Join(parts, " ")
}

// sameFacts reports that two say the same.
func sameFacts(a, b *Facts) bool { return a == b || a != nil && b != nil && reflect.DeepEqual(a, b) }

// detail are facts in the words of others; nil: there are none.
func detail(said string) *Facts {
	if said == "" {
		return nil
	}
	return &Facts{Detail: clip(said)}
}

// byWhom are the facts of what a person did.
func byWhom(v *Verb) *Facts { return &Facts{By: v.By, Detail: clip(v.Why)} }

// few are the first of some clusters: a sentence names no more.
func few(list []fleet.ClusterName) []string {
	const most = 5
	var out []string
	for _, c := range list[:min(len(list), most)] {
		out = append(out, string(c))
	}
	return out
}

// About is what a reason, or a line of a simulation, speaks of.
type About struct {
	Kind string
	// Name of the rollout, stage, gate, cluster or hold.
	Name string
	// Stage and Position of a gate.
	Stage    string
	Position Position
}

// What a reason speaks of.
const (
	AboutRollout  = "Rollout"
	AboutRollback = "Rollback"
	AboutEnd      = "End" // of a rollout
	AboutLeavers  = "Leavers"
	AboutStage    = "Stage"
	AboutSoak     = "Soak"
	AboutGate     = "Gate"
	AboutCluster  = "Cluster"
	AboutClusters = "Clusters"
	AboutBudget   = "Budget"
	AboutStep     = "Step"
)

// String is one line for logs and scripts.
func (a About) String() string {
	out := strings.TrimSpace(a.Kind + " " + a.Name)
	if a.Kind == AboutGate {
		out += " " + string(a.Position) + " " + a.Stage
	}
	return out
}

// Action is a word to the API that changes what a reason says.
type Action struct {
	// Method of the API, one of the constants below.
	Method   string
	Cluster  string
	Stage    string
	Gate     string
	Revision int64
	Hold     string
	// By are the people who may say it; empty: every admin, but NotBy.
	By    []string
	NotBy string
}

// Methods of the API that help.
const (
	DoResume   = "ResumeRollout"
	DoRetry    = "RetryRollout"
	DoRollBack = "RollBackRollout"
	DoPromote  = "PromoteStage"
	DoApprove  = "ApproveGate"
	DoOverride = "OverrideGate"
	DoSkip     = "SkipClusters"
	DoUnpin    = "UnpinClusters"
	DoConfirm  = "ConfirmHold"
	// DoPutCluster is to end the cordon of a cluster.
	DoPutCluster = "PutCluster"
	// DoListHolds is to see what holds clusters, and to end that.
	DoListHolds = "ListHolds"
	// DoJoinCluster makes a new token for the agent of a cluster.
	DoJoinCluster = "JoinCluster"
	// DoUnlockCluster is to let the agent of a cluster in again.
	DoUnlockCluster = "UnlockCluster"
	// DoPutModule is to put the module with other users of a gate, or without it.
	DoPutModule = "PutModule"
	// DoAcceptRestore and DoResumeRestore end that a restored store of the hub stands still.
	DoAcceptRestore = "AcceptRestore"
	DoResumeRestore = "ResumeRestore"
	// DoCreateUser is to make another admin.
	DoCreateUser = "CreateUser"
)

// String is one line for logs and scripts.
func (a Action) String() string {
	out := a.Method
	for _, x := range []struct{ name, value string }{{"cluster", a.Cluster}, {"stage", a.Stage}, {"gate", a.Gate}, {"hold", a.Hold},
		{"by", strings.Join(a.By, ",")}, {"notBy", a.NotBy}} {
		if x.value != "" {
			out += " " + x.name + "=" + x.value
		}
	}
	if a.Revision != 0 {
		out += fmt.Sprintf(" revision=%d", a.Revision)
	}
	return out
}

// Note is what a person should know after a word was taken: a code with its facts, and what may be done.
type Note struct {
	Code    string   `json:"code"`
	Facts   *Facts   `json:"facts,omitempty"`
	Actions []Action `json:"actions,omitempty"`
}

// Codes of notes.
const (
	NoteInSpite     = "GoesOnInSpite"
	NoteOnTheWay    = "StillOnTheWay"
	NoteMixed       = "Mixed"
	NoteAgain       = "BeginsAnew"
	NoteNewRollout  = "NewRollout"
	NoteSkipped     = "SkippedNotDone"
	NotePinOf       = "PinOfSomebodyElse"
	NoteGoBack      = "GoBack"
	NoteLoseAfter   = "LoseAfter"
	NoteLose        = "Lose"
	NoteSourceAgain = "SourceAgain"
	NoteStands      = "StandsRestored"
	NoteStays       = "StaysAfterAbort"
)

func note(code string, f Facts) []Note { return []Note{{Code: code, Facts: &f}} }

// memberFacts are those that a member may have: most have none, and there are many.
type memberFacts struct {
	Code       string
	Revision   int64
	Until      Instant
	For        time.Duration
	By, Detail string
}

// facts are nil where there are none.
func (f memberFacts) facts() *Facts {
	if f == (memberFacts{}) {
		return nil
	}
	return &Facts{Code: f.Code, Revision: f.Revision, Until: f.Until, For: f.For, By: f.By, Detail: f.Detail}
}

// with adds what is known of the member itself to who keeps it there.
func (f memberFacts) with(member memberFacts) memberFacts {
	f.Revision, f.Detail = member.Revision, cmp.Or(f.Detail, member.Detail)
	return f
}

// skippedBy is the word by which a member is left out, if there is one.
func (h *Head) skippedBy(cluster fleet.ClusterName) memberFacts {
	for i := len(h.Verbs) - 1; i >= 0; i-- {
		if v := &h.Verbs[i]; v.Verb.Verb == VerbSkip && v.Outcome.Accepted && slices.Contains(v.Clusters, cluster) {
			return memberFacts{By: v.By, Detail: clip(v.Why)}
		}
	}
	return memberFacts{}
}

// pinnedBy is the word by which a member keeps its revision, if there is one.
func (h *Head) pinnedBy(cluster fleet.ClusterName) memberFacts {
	for i := range h.Pins {
		if p := &h.Pins[i]; p.Cluster == cluster {
			return memberFacts{By: p.By, Detail: p.Why, Until: p.Until}
		}
	}
	return memberFacts{}
}
