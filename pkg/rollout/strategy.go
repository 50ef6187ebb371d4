package rollout

import (
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Values of choices.
const (
	OnFailurePause    = "Pause"
	OnFailureAbort    = "Abort"
	OnFailureRollback = "Rollback"

	OfflineDefer = "Defer"
	OfflineWait  = "Wait"
	OfflineFail  = "Fail"

	LateFollow  = "Follow"
	LateInclude = "Include"
	LateIgnore  = "Ignore"

	UnmatchedFail = "Fail"
	UnmatchedLast = "Last"

	SupersedeReplace = "Replace"
	SupersedeQueue   = "Queue"
	SupersedeReject  = "Reject"

	ScopeMoved  = "Moved"
	ScopeFailed = "Failed"

	RollbackGatesSkip = "Skip"
	RollbackGatesRun  = "Run"
)

// Defaults.
const (
	DefaultProgressDeadline     = 10 * time.Minute
	DefaultRevisionHistoryLimit = 10
	// AllStage is the one stage of a module without stages.
	AllStage = "all"
	// UnmatchedStage is the last stage that clusters go to which no stage takes.
	UnmatchedStage = "unmatched"
)

// Strategy says how a change moves through the clusters. Prepare fills in defaults and checks it.
type Strategy struct {
	Stages               []Stage
	MaxFailures          Amount
	OnFailure            string
	Rollback             Rollback
	MinReadyTime         time.Duration
	ProgressDeadline     time.Duration
	Offline              string
	LateJoiners          string
	Unmatched            string
	OnSupersede          string
	RevisionHistoryLimit int
	External             bool

	prepared bool
}

// Stage is an ordered group of clusters.
type Stage struct {
	Name           string
	Selector       *fleet.Selector // nil: all that no earlier stage took
	MaxConcurrency Amount          // unset: the whole stage
	MaxFailures    Amount          // unset: only the rollout's limit counts
	SortBy         string          // name, or a label's key, with "-" in front for descending; empty: name
	Soak           time.Duration
	Before, After  []Gate
	AllowEmpty     bool
}

// Rollback says how a rollback goes.
type Rollback struct {
	Scope          string
	MaxConcurrency Amount // unset: all at once
	Gates          string
}

// Kinds of gates.
const (
	GateApproval   = "approval"
	GateWindow     = "window"
	GateWebhook    = "webhook"
	GateMetric     = "metric"
	GateExpression = "expression"
)

// Gate is a condition to enter or leave a stage; exactly one of its kinds is set.
type Gate struct {
	Name       string
	Approval   *Approval
	Window     *WindowGate
	Webhook    *Webhook
	Metric     *Metric
	Expression *Expression
}

// Kind names the kind that is set.
func (g *Gate) Kind() string {
	switch {
	case g.Approval != nil:
		return GateApproval
	case g.Window != nil:
		return GateWindow
	case g.Webhook != nil:
		return GateWebhook
	case g.Metric != nil:
		return GateMetric
	case g.Expression != nil:
		return GateExpression
	}
	return ""
}

// Approval waits for people other than the one who started the rollout.
type Approval struct {
	Approvers int           // default 1
	Expires   time.Duration // how long an approval counts while the gate waits; 0: for ever
	Users     []string      // only these may approve; empty: everybody who may approve at all
}

// WindowGate is open while an allow window is open (or there is none) and no deny window is.
type WindowGate struct {
	Allow, Deny []Window
}

// Webhook asks another program; the asking is done outside.
type Webhook struct {
	URL        string
	HMACKeyEnv string
	Timeout    time.Duration // for one try; default 10s
	Retries    *int          // after the first try; default 3
	Interval   time.Duration // while the answer is Running or an error; default 30s
}

// Metric asks a Prometheus server; the asking is done outside.
type Metric struct {
	Address, Query    string
	SuccessCondition  string
	FailureCondition  string
	Count             int           // measurements; default 1
	Interval          time.Duration // default 1m
	FailureLimit      int           // failed measurements tolerated
	InconclusiveLimit int           // inconclusive measurements tolerated
	ErrorLimit        *int          // errors in a row tolerated; default 4
}

// Expression is CEL over clusters and rollout; it is evaluated outside, by package expr.
type Expression struct {
	Expression        string
	FailureExpression string
}
