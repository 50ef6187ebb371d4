package cli

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/rollout"
)

// codesIn are the string constants of a source file whose names have one of the prefixes: name to value.
func codesIn(t *testing.T, path string, prefixes ...string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../../"+path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			spec, _ := s.(*ast.ValueSpec)
			for i, name := range spec.Names {
				for _, p := range prefixes {
					if !strings.HasPrefix(name.Name, p) || i >= len(spec.Values) {
						continue
					}
					switch x := spec.Values[i].(type) {
					case *ast.BasicLit:
						out[name.Name], err = strconv.Unquote(x.Value)
						if err != nil {
							t.Fatal(err)
						}
					default:
						out[name.Name] = strings.TrimPrefix(name.Name, "Reason") // a conversion of a state of the same name
					}
				}
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s has no such constants", path)
	}
	return out
}

// saying is a code as the hub gives it, with what it comes with.
type saying struct {
	code  string
	state string // of a cluster
	facts *v1.Facts
}

const gateFacts = "gate"

func (s saying) of(a *app, sayer string) string {
	subject := about(sayer, "")
	r := &v1.Reason{Subject: subject, Reason: s.code, Facts: s.facts, Blocks: true}
	switch sayer {
	case "rollout":
		return a.rolloutSays(s.code, s.facts)
	case gateFacts:
		f := s.facts
		if f == nil {
			f = &v1.Facts{}
		}
		f.Code = s.code
		return a.gateSays(f)
	case "member":
		return a.memberSays(s.state, s.code, s.facts)
	case "note":
		return noteSays("shop", &v1.Note{Code: s.code, Facts: s.facts})
	case "attention":
		said, _ := a.attentionSays("edge-112", &v1.Note{Code: s.code, Facts: s.facts})
		return said
	case "hold":
		return holdCodeSays(s.code)
	case "ready":
		return readySays(s.code, s.facts)
	case "follow":
		return followSays(s.code, &v1.ModuleStatus{Follow: &v1.FollowStatus{Message: s.facts.GetDetail(), SuspendedRevision: s.facts.GetRevision()}})
	case "reports":
		return conditionSays(&v1.Condition{Type: "ReportsAccepted", Status: "False", Reason: s.code, Facts: s.facts})
	case "tracker":
		return a.trackerSays(&v1.Tracker{Reason: s.code, Message: s.facts.GetDetail(), Generation: 7, WasHealth: s.state, LastHeard: ago(time.Hour)})
	case "secret":
		return secretSays(&v1.Secret{Metadata: &v1.Metadata{Name: "repo", Project: "default"}, Reason: s.code, Facts: s.facts})
	case "object":
		return driftSays(&v1.Object{Drift: "Drifted", Reason: s.code})
	case "simulation":
		return a.simSays(&rollout.SimEvent{Reason: s.code, Facts: &rollout.Facts{Count: 2, Revision: 42}})
	case "action":
		c := commandOf(&v1.Action{Method: s.code, Module: "shop", Cluster: "edge-112", Stage: "canary", Gate: "approval", Revision: 42, Hold: "leave-1", NotBy: "ana"}, nil)
		return strings.TrimSpace(c.line + "   " + c.note)
	}
	return a.reasonSays(r, s.state)
}

// sayings are all codes with the facts that they come with, by who says them.
func sayings() map[string][]saying {
	noon := in(time.Hour)
	stage := func(f *v1.Facts) *v1.Facts { f.Stage = "canary"; return f }
	some := []string{"c1", "c2"}
	set := func(f *v1.Facts) *v1.Facts {
		f.Names, f.Selector = []string{"crds"}, "role=control"
		return f
	}
	awaited := &v1.Facts{Code: rollout.ReasonAwaitingDependency, Names: []string{"crds"}, Revision: 3}
	gate := &v1.Facts{Code: rollout.GateRejected, Gate: "approval", Position: "after", Stage: "canary", By: "bob", Detail: "not now"}
	failures := &v1.Facts{Count: 1, Total: 4}
	open := &v1.Facts{Code: rollout.GateNoAnswer, Gate: "smoke", Position: "before", Stage: "rest"}
	by := &v1.Facts{By: "ana", Detail: "lunch"}
	return map[string][]saying{
		"rollout": {
			{"", "", &v1.Facts{Deferred: 3, Skipped: 1, Failed: 2}},
			{rollout.ReasonApproval, "", &v1.Facts{Code: rollout.GateApproving, Gate: "approval", Position: "after", Stage: "canary", Total: 2, By: "ana"}},
			{rollout.ReasonWindow, "", &v1.Facts{Code: rollout.GateClosed, Gate: "night", Position: "before", Stage: "rest", Until: noon}},
			{rollout.ReasonWebhook, "", open}, {rollout.ReasonMetric, "", open}, {rollout.ReasonExpression, "", open},
			{rollout.ReasonGateError, "", open}, {rollout.ReasonGateInconclusive, "", open},
			{rollout.ReasonSoak, "", stage(&v1.Facts{Until: noon})},
			{rollout.ReasonNotYetHeard, "", stage(&v1.Facts{Count: 1})}, {rollout.ReasonNotYetHeard, "", stage(&v1.Facts{Count: 2})},
			{rollout.ReasonEmptyStage, "", stage(&v1.Facts{})}, {rollout.ReasonEmptyStage, "", stage(&v1.Facts{Count: 1, Revision: 42})},
			{rollout.ReasonEmptyStage, "", stage(&v1.Facts{Count: 2, Revision: 42})},
			{rollout.ReasonEmptyOverride, "", &v1.Facts{Names: []string{"overrides[0]", "overrides[2]"}}},
			{rollout.ReasonAllDeferred, "", stage(&v1.Facts{Clusters: some, Count: 7, Revision: 42})},
			{rollout.ReasonAllDeferred, "", stage(&v1.Facts{Clusters: some, Count: 7, Revision: 42, Failed: 7})},
			{rollout.ReasonAllDeferred, "", stage(&v1.Facts{Clusters: some, Count: 7, Revision: 42, Failed: 3})},
			{rollout.ReasonAllAway, "", stage(&v1.Facts{Count: 2, Revision: 42})},
			{rollout.ReasonHeldUnready, "", stage(&v1.Facts{Clusters: some[:1], Count: 1, Revision: 42})},
			{rollout.ReasonHeldUnready, "", stage(&v1.Facts{Clusters: some, Count: 7, Revision: 42})},
			{rollout.ReasonHeldUnready, "", &v1.Facts{Clusters: some, Count: 7, Revision: 42}},
			{rollout.ReasonOffline, "", stage(&v1.Facts{Count: 1})},
			{rollout.ReasonRestored, "", nil}, {rollout.ReasonFailures, "", &v1.Facts{Code: rollout.ReasonRestored}},
			{rollout.ReasonConfirm, "", &v1.Facts{Count: 2, Total: 3}}, {rollout.ReasonConfirm, "", &v1.Facts{Count: 1}},
			{rollout.ReasonAwaitingDependency, "", set(&v1.Facts{Clusters: some, Count: 2, Total: 3})},
			{rollout.ReasonAwaitingDependency, "", &v1.Facts{Names: []string{"crds", "db"}, Clusters: some[:1], Count: 1, Total: 1}},
			{rollout.ReasonAwaitingDependency, "", set(&v1.Facts{Code: rollout.SetNoModule})}, {rollout.ReasonAwaitingDependency, "", set(&v1.Facts{Code: rollout.SetDeleting})},
			{rollout.ReasonAwaitingDependency, "", set(&v1.Facts{Code: rollout.SetSource})}, {rollout.ReasonAwaitingDependency, "", set(&v1.Facts{Code: rollout.SetDamaged})}, {rollout.ReasonAwaitingDependency, "", set(&v1.Facts{Code: rollout.SetFailed})},
			{rollout.ReasonAwaitingDependency, "", set(&v1.Facts{Code: rollout.SetNoCluster})}, {rollout.ReasonAwaitingDependency, "", set(&v1.Facts{Code: rollout.SetNotPlaced})},
			{rollout.ReasonUnplaced, "", &v1.Facts{Revision: 42}}, {rollout.ReasonAwaitingSource, "", &v1.Facts{Count: 2}},
			{rollout.ReasonFailures, "", failures}, {rollout.ReasonFailures, "", stage(&v1.Facts{Count: 2, Total: 3, Tolerated: 1})},
			{rollout.ReasonFailures, "", &v1.Facts{Count: 5, Revision: 41, Deferred: 1, ToGo: 1, Failed: 1}}, {rollout.ReasonFailures, "", &v1.Facts{Count: 5, Revision: 41, Deferred: 1}},
			{rollout.ReasonFailures, "", &v1.Facts{Count: 1, Revision: 41, Code: rollout.ScopeFailed}},
			{rollout.ReasonFailures, "", &v1.Facts{Code: rollout.ReasonUnplaced, Revision: 41}},
			{rollout.ReasonGateFailed, "", gate},
			{rollout.ReasonRollbackFailed, "", &v1.Facts{Count: 1, Total: 4, Revision: 41}}, {rollout.ReasonRollbackFailed, "", gate},
			{rollout.ReasonNoEarlierRevision, "", failures}, {rollout.ReasonNoEarlierRevision, "", &v1.Facts{Count: 1, Total: 4, Revision: 41}},
			{rollout.ReasonPausedByUser, "", by}, {rollout.ReasonAbortedByUser, "", by},
			{rollout.ReasonRolledBackByUser, "", by}, {rollout.ReasonRolledBackByUser, "", &v1.Facts{Count: 5, Revision: 41, By: "ana"}},
			{rollout.ReasonUnmatched, "", &v1.Facts{Clusters: some, Count: 2}},
			{rollout.ReasonModuleDeleted, "", nil}, {rollout.ReasonExternal, "", &v1.Facts{Revision: 42}},
			{rollout.ReasonSuperseded, "", &v1.Facts{Rollout: "shop/58"}},
			{rollout.ReasonWentBack, "", nil}, {rollout.ReasonNeedsStage, "", stage(&v1.Facts{})}, {rollout.ReasonNotReached, "", nil},
			{rollout.ReasonResolving, "", nil}, {rollout.ReasonQueued, "", &v1.Facts{Rollout: "shop/57"}},
			{rollout.ReasonDependentsFirst, "", &v1.Facts{Names: []string{"shop", "web"}}},
			{rollout.ReasonSourcesAhead, "", &v1.Facts{Names: []string{"base", "db"}}},
			{rollout.ReasonBehindPause, "", &v1.Facts{Rollout: "shop/57"}}, {rollout.ReasonPutsAhead, "", &v1.Facts{For: durationpb.New(30 * time.Second)}},
			{rollout.ReasonPutsMissing, "", &v1.Facts{Detail: "the rest of what it was put with never came, so that it has not begun"}},
			{rollout.ReasonHubTrouble, "", &v1.Facts{Detail: "etcd does not answer"}}, {rollout.ReasonStoreFull, "", &v1.Facts{Detail: "the store is full"}},
			{rollout.ReasonNeedsSecret, "", &v1.Facts{Detail: "source.http.secretName: secret repo is not there: towline secret set repo KEY=-"}},
			{rollout.ReasonSourceAway, "", &v1.Facts{Names: []string{"charts.example.com"}, For: durationpb.New(12 * time.Minute), Detail: "source https://charts.example.com: cannot be reached: connection refused"}},
			{fleet.ReasonDamagedModule, "", nil}, {fleet.ReasonDamagedRollout, "", nil},
		},
		gateFacts: {
			{rollout.GateNotReached, "", nil}, {rollout.GateNoAnswer, "", nil}, {rollout.GateAnswered, "", nil},
			{rollout.GateAnswered, "", &v1.Facts{Detail: "error rate is 0.02"}}, {rollout.GateNotYet, "", nil},
			{rollout.GateApproving, "", &v1.Facts{Total: 1}}, {rollout.GateApproved, "", &v1.Facts{Names: []string{"bob", "eve"}}},
			{rollout.GateRejected, "", &v1.Facts{By: "bob", Detail: "not now"}}, {rollout.GateOverridden, "", &v1.Facts{By: "bob"}},
			{rollout.GateOpen, "", nil}, {rollout.GateClosed, "", nil}, {rollout.GateClosed, "", &v1.Facts{Until: noon}},
			{rollout.GateMeasuring, "", nil}, {rollout.GateMeasuring, "", &v1.Facts{Count: 2, Total: 5, Failed: 1}},
			{rollout.GateFailedTooOften, "", &v1.Facts{Count: 2, Total: 3, Tolerated: 1, Detail: "[0.9]"}},
			{rollout.GateUnclearTooOften, "", &v1.Facts{Count: 2, Total: 3, Tolerated: 1, Detail: "[]"}},
			{rollout.GateErrorTooOften, "", &v1.Facts{Count: 5, Tolerated: 4, Detail: "no route"}},
		},
		"member": {
			{rollout.ReasonDisconnected, stateDeferred, nil}, {rollout.ReasonDisconnected, stateDeferred, &v1.Facts{Revision: 42}},
			{rollout.ReasonDisconnected, stateDeferred, &v1.Facts{Code: rollout.NotJoined, Clusters: []string{"edge-113"}}}, {rollout.ReasonDisconnected, stateFailed, &v1.Facts{Code: rollout.NotJoined, Clusters: []string{"edge-113"}}},
			{rollout.ReasonDisconnected, stateDeferred, &v1.Facts{Code: rollout.PassedBy}}, {rollout.ReasonCordoned, stateDeferred, &v1.Facts{Code: rollout.PassedBy}},
			{rollout.ReasonDisconnected, stateDeferred, &v1.Facts{Code: rollout.Overtaken}}, {"", stateProgressing, &v1.Facts{Code: rollout.Overtaken}},
			{rollout.ReasonDisconnected, stateFailed, nil}, {rollout.ReasonDisconnected, stateFailed, &v1.Facts{Revision: 42}},
			{rollout.ReasonLocked, stateDeferred, nil}, {rollout.ReasonLocked, stateDeferred, &v1.Facts{Revision: 42}}, {rollout.ReasonLocked, stateFailed, nil},
			{rollout.ReasonLocked, "Waiting", &v1.Facts{Code: rollout.ReasonAwaited}},
			{rollout.ReasonNotSeen, stateDeferred, nil}, {rollout.ReasonDisconnected, "Waiting", &v1.Facts{Code: rollout.ReasonAwaited}}, {rollout.ReasonNotHeard, stateProgressing, nil}, {rollout.ReasonRestored, stateProgressing, nil},
			{rollout.ReasonCordoned, stateDeferred, nil}, {rollout.ReasonHeld, stateDeferred, nil}, {rollout.ReasonAwaitingDependency, "Waiting", set(&v1.Facts{Clusters: some, Count: 2, Total: 3})},
			{rollout.ReasonAwaitingDependency, "Progressing", &v1.Facts{Detail: "waits for module crds: not ready (ConfigMap default/a: belongs to module old)"}}, {rollout.ReasonAwaitingDependency, "Progressing", nil},
			{rollout.ReasonPinned, "Skipped", &v1.Facts{By: "ana", Detail: "audit"}}, {rollout.ReasonSkipped, "Skipped", by}, {rollout.ReasonSkipped, "Skipped", &v1.Facts{By: "ana", Code: rollout.ReasonWouldLeave}},
			{rollout.ReasonTimedOut, stateTimedOut, &v1.Facts{For: durationpb.New(10 * time.Minute), Detail: "1 of 2 pods"}},
			{rollout.ReasonTimedOut, stateTimedOut, &v1.Facts{For: durationpb.New(10 * time.Minute), Until: noon}},
			{rollout.ReasonNotReady, stateProgressing, nil}, {rollout.ReasonNotReady, stateProgressing, &v1.Facts{Detail: "1 of 2 pods"}},
			{rollout.ReasonRegressed, stateProgressing, nil}, {rollout.ReasonReady, stateSoaking, &v1.Facts{Until: noon}},
			{rollout.ReasonLeaving, stateProgressing, nil}, {rollout.ReasonAwaitingSource, "ToApply", nil}, {rollout.ReasonWouldLeave, "", nil}, {rollout.ReasonGone, "Removed", nil},
			{rollout.ReasonJoined, "ToApply", stage(&v1.Facts{})}, {rollout.ReasonRollingBack, stateProgressing, nil},
			{rollout.ReasonAwaitingRollback, "Waiting", &v1.Facts{Revision: 41}}, {rollout.ReasonLeavingAfter, "Waiting", &v1.Facts{Revision: 41}},
			{rollout.SimFails, stateFailed, nil},
		},
		rollout.AboutStage: {
			{string(rollout.Progressing), "", &v1.Facts{Code: rollout.ReasonNotDone, Total: 6, Succeeded: 3, Running: 1, Failed: 1, Deferred: 1}},
			{rollout.ReasonCatchingUp, "", &v1.Facts{Count: 2}},
			{rollout.ReasonNextStage, "", &v1.Facts{Count: 4}}, {rollout.ReasonNextStage, "", &v1.Facts{Count: 294, Limit: 73, Percent: "25%", Total: 294}},
		},
		rollout.AboutSoak:     {{rollout.ReasonSoak, "", stage(&v1.Facts{For: durationpb.New(5 * time.Minute)})}},
		rollout.AboutEnd:      {{rollout.ReasonCatchingUp, "", nil}},
		rollout.AboutLeavers:  {{rollout.ReasonConfirm, "", &v1.Facts{Count: 2}}},
		rollout.AboutRollback: {{rollout.ReasonFailures, "", &v1.Facts{Count: 1, Total: 3, Revision: 41}}, {rollout.ReasonFailures, "", &v1.Facts{Count: 1, Total: 3, Revision: 41, Code: rollout.ReasonUnplaced}}},
		rollout.AboutRollout:  {{rollout.ReasonFailures, "", failures}, {rollout.ReasonFailures, "", &v1.Facts{Count: 1, Total: 300, Removed: 1}}},
		rollout.AboutClusters: {{rollout.ReasonNotListed, "", &v1.Facts{Count: 20}}, {rollout.ReasonMoreAwaited, "", &v1.Facts{Count: 20, Names: []string{"crds"}}}, {rollout.ReasonHadFailed, "", &v1.Facts{Count: 2}}},
		rollout.AboutGate:     {{rollout.ReasonWebhook, "", open}},
		rollout.AboutCluster: {{rollout.ReasonHadFailed, "", &v1.Facts{Code: "ImagePullBackOff", Detail: "image shop:1.5.0: not found"}}, {rollout.ReasonHadFailed, "", &v1.Facts{Code: rollout.ReasonTimedOut}},
			{rollout.ReasonCordoned, stateDeferred, nil}, {rollout.ReasonDisconnected, "", awaited}, {rollout.ReasonLocked, "", awaited},
			{rollout.ReasonLocked, "", &v1.Facts{Code: codeWhole}}, {rollout.ReasonLocked, "", &v1.Facts{Code: codeWhole, Detail: "a node was broken into"}}, {rollout.ReasonNotSeen, "", awaited}, {rollout.ReasonNotHeard, "", awaited},
			{rollout.ReasonNotReached, "", awaited}, {rollout.ReasonCordoned, "", awaited}, {rollout.ReasonHeld, "", awaited}, {"Degraded", "", awaited}},
		"note": {
			{rollout.NoteInSpite, "", &v1.Facts{Failed: 2}}, {rollout.NoteOnTheWay, "", &v1.Facts{Count: 1}},
			{rollout.NoteMixed, "", &v1.Facts{Count: 5, Total: 300, Revision: 42}}, {rollout.NoteMixed, "", &v1.Facts{Total: 300, Revision: 42}},
			{rollout.NoteAgain, "", &v1.Facts{Count: 1, Total: 2}}, {rollout.NoteAgain, "", &v1.Facts{Count: 1, Failed: 2, Clusters: some}},
			{rollout.NoteNewRollout, "", &v1.Facts{Revision: 42}},
			{rollout.NoteSkipped, "", nil}, {rollout.NotePinOf, "", &v1.Facts{Clusters: some[:1], By: "ana", Detail: "lunch"}}, {rollout.NoteGoBack, "", &v1.Facts{Count: 3, Revision: 41}},
			{rollout.NoteLoseAfter, "", &v1.Facts{Count: 1, Revision: 41}}, {rollout.NoteSourceAgain, "", nil}, {rollout.NoteStands, "", nil},
			{rollout.NoteLose, "", &v1.Facts{Clusters: some, Count: 2}}, {rollout.NoteStays, "", &v1.Facts{Clusters: some, Count: 2, Revision: 42}},
			{fleet.WarnDamaged, "", nil}, {fleet.WarnNoSuchCluster, "", &v1.Facts{Clusters: []string{"c9"}}}, {fleet.WarnNoCluster, "", nil},
			{fleet.WarnNoSecret, "", &v1.Facts{Names: []string{"repo"}}}, {fleet.WarnNoHooks, "", nil}, {fleet.WarnNoWebhookKey, "", &v1.Facts{Names: []string{"hooks"}}},
			{fleet.WarnNoDependency, "", &v1.Facts{Names: []string{"base"}}}, {fleet.WarnEmptySet, "", set(&v1.Facts{Code: rollout.SetNoCluster})},
			{fleet.WarnNoStages, "", &v1.Facts{Count: 300}}, {fleet.WarnEmptyStage, "", stage(&v1.Facts{})}, {fleet.WarnUnmatched, "", &v1.Facts{Count: 1}},
			{fleet.WarnEmptyOverride, "", &v1.Facts{Names: []string{"overrides[0]", "overrides[2]"}}},
			{fleet.WarnDeletedFirst, "", &v1.Facts{Count: 1, Total: 3}}, {fleet.WarnStaysBack, "", &v1.Facts{Revision: 41, Rollout: "shop/57"}},
			{fleet.WarnStaysBack, "", &v1.Facts{Code: "Failed", Revision: 41, Rollout: "shop/57"}},
			{fleet.WarnOfCatalog, "", &v1.Facts{Names: []string{"team"}}}, {fleet.WarnOfSet, "", &v1.Facts{Names: []string{"team"}}},
			{fleet.WarnNearlyFull, "", &v1.Facts{Detail: "3400 MiB of 4096 MiB"}}, {fleet.WarnFull, "", &v1.Facts{Detail: "4096 MiB of 4096 MiB"}},
			{fleet.WarnRestored, "", nil}, {fleet.WarnHubVersions, "", &v1.Facts{Detail: "v1.4.1 at a:7443, v1.4.2 at b:7443"}},
		},
		"attention": {
			{fleet.AttentionStrays, "", &v1.Facts{Count: 2}}, {fleet.AttentionExpected, "", &v1.Facts{Until: noon}},
			{fleet.AttentionRegressed, "", &v1.Facts{Detail: "the agent holds generation 9, this hub gave at most 5"}},
			{fleet.AttentionOtherCluster, "", nil}, {fleet.AttentionCloned, "", nil}, {fleet.AttentionCopied, "", nil}, {fleet.AttentionUnknownCert, "", nil}, {fleet.AttentionFormer, "", nil},
			{fleet.AttentionUnregistered, "", nil}, {fleet.AttentionDamaged, "", nil},
			{fleet.AttentionRefused, "", &v1.Facts{Code: "DIGEST_MISMATCH", Detail: "the index is not what its digest says"}},
		},
		"hold":       {{fleet.HoldLeaves, "", nil}, {fleet.HoldDrops, "", nil}, {fleet.HoldPrunes, "", nil}, {fleet.HoldGoesBack, "", nil}, {fleet.HoldDamaged, "", nil}, {fleet.HoldUnreadEnd, "", nil}},
		"ready":      {{fleet.ReadyDegraded, "", &v1.Facts{Count: 2, Total: 9, Deferred: 1, ToGo: 1, Skipped: 3}}, {fleet.ReadyAway, "", &v1.Facts{Count: 9, Total: 9}}, {fleet.ReadyRegressed, "", &v1.Facts{Count: 2, Total: 9, Ahead: 2, Deferred: 1}}, {fleet.ReadyDegraded, "", &v1.Facts{Count: 2, Total: 9, Ahead: 1}}, {fleet.ReadyNowhere, "", &v1.Facts{Count: 9, Total: 9, ToGo: 9}}, {fleet.ReadyNowhere, "", nil}, {string(rollout.Succeeded), "", &v1.Facts{Count: 9, Total: 9}}, {string(rollout.Progressing), "", &v1.Facts{Count: 1, Total: 9}}},
		"reports":    {{fleet.ReportsNotDesired, "", &v1.Facts{Count: 180, Names: []string{"default/x"}}}, {fleet.ReportsTooLarge, "", &v1.Facts{Count: 1}}},
		"simulation": {{rollout.SimConfirmed, "", nil}, {rollout.SimAssign, "", nil}, {rollout.SimTake, "", nil}},
		"tracker": {{fleet.TrackerNotAssigned, "", nil}, {fleet.TrackerCannotAssign, "", &v1.Facts{Detail: "${REGION} has no value"}},
			{fleet.TrackerRefused, "", &v1.Facts{Detail: "too large"}}, {fleet.TrackerTooOld, "", &v1.Facts{Detail: "needs v1.5"}},
			{fleet.TrackerSending, "", nil}, {fleet.TrackerRemoving, "", nil}, {fleet.TrackerReleasing, "", nil}, {fleet.TrackerRemovingFirst, "", nil}, {fleet.TrackerPlacedAgain, "", nil}, {fleet.TrackerLeaving, "", nil},
			{fleet.TrackerDisconnected, "", nil}, {fleet.TrackerDisconnected, "Degraded", &v1.Facts{Detail: "Deployment shop/web: 0 of 3 ready"}},
			{fleet.TrackerNotHeard, "Healthy", nil}, {fleet.TrackerRegressed, "Healthy", nil},
			{fleet.TrackerNotSeen, "Healthy", &v1.Facts{Detail: "the API server does not answer"}}},
		"object": {{fleet.ObjectDrifted, "", nil}, {fleet.ObjectLeftSo, "", nil}, {fleet.ObjectShared, "", nil}, {fleet.ObjectTwoWriters, "", nil}},
		"secret": {{fleet.SecretNoKey, "", &v1.Facts{Detail: "/var/lib/towline/secrets.key is missing"}}, {fleet.SecretOtherKey, "", &v1.Facts{Detail: "11223344"}},
			{fleet.SecretAltered, "", &v1.Facts{Detail: "11223344"}}, {fleet.SecretDamaged, "", nil}},
		"follow": {{follow.ReasonFollows, "", nil}, {follow.ReasonRolledBack, "", &v1.Facts{Revision: 42}},
			{follow.ReasonUnavailable, "", &v1.Facts{Detail: "source https://git.example.com/shop.git: cannot be reached"}},
			{follow.ReasonNotFound, "", &v1.Facts{Detail: "source https://git.example.com/shop.git: has no branch \"main\""}},
			{follow.ReasonDenied, "", &v1.Facts{Detail: "source https://git.example.com/shop.git: the server answers 401 Unauthorized"}},
			{follow.ReasonNeedsSecret, "", &v1.Facts{Detail: "source.git.secretName: secret git-login does not exist"}},
			{follow.ReasonTooLarge, "", &v1.Facts{Detail: "source https://git.example.com/shop.git: has more than 64 MiB"}},
			{follow.ReasonUnverified, "", &v1.Facts{Detail: "source https://git.example.com/shop.git: commit 1f2e3d is signed by no key of the list"}},
			{follow.ReasonInvalid, "", &v1.Facts{Detail: "a.yaml: line 3: is no YAML"}},
			{follow.ReasonRefused, "", &v1.Facts{Detail: "rollout shop/7 is Progressing and onSupersede is Reject"}},
			{follow.ReasonUnverified, "", &v1.Facts{Detail: "source https://git.example.com/shop.git: commit 4f1c is not signed"}},
			{follow.ReasonPaused, "", &v1.Facts{Detail: "somebody paused the rollout that runs"}}},
		"action": {{rollout.DoResume, "", nil}, {rollout.DoRetry, "", nil}, {rollout.DoRollBack, "", nil}, {rollout.DoPromote, "", nil}, {rollout.DoApprove, "", nil},
			{rollout.DoOverride, "", nil}, {rollout.DoSkip, "", nil}, {rollout.DoUnpin, "", nil}, {rollout.DoConfirm, "", nil}, {rollout.DoPutCluster, "", nil}, {rollout.DoListHolds, "", nil},
			{rollout.DoUnlockCluster, "", nil}, {rollout.DoJoinCluster, "", nil},
			{rollout.DoPutModule, "", nil}, {rollout.DoCreateUser, "", nil}, {rollout.DoAcceptRestore, "", nil}, {rollout.DoResumeRestore, "", nil}},
	}
}

// apart are the codes that are said in another way: the state of a module that goes is its own word, the budget has a line of
// its own, and NotDone stands beside a reason.
var apart = map[string]bool{fleet.ReasonDeleting: true, rollout.ReasonBudget: true, rollout.ReasonNotDone: true, rollout.ReasonAwaited: true}

// TestEveryCodeIsSaid: each code that the hub may give has a sentence, and the golden file has them all.
func TestEveryCodeIsSaid(t *testing.T) {
	a := &app{Streams: Streams{Now: func() time.Time { return now }, Zone: time.UTC}}
	said := map[string]bool{}
	var got strings.Builder
	all := sayings()
	for _, sayer := range sortedKeys(all) {
		fmt.Fprintf(&got, "%s\n", sayer)
		for _, s := range all[sayer] {
			said[s.code] = true
			words := s.of(a, sayer)
			if words == "" || words == s.code {
				t.Errorf("%s %s is not said", sayer, s.code)
			}
			fmt.Fprintf(&got, "  %s: %s\n", strings.TrimSpace(s.code+" "+s.state), words)
		}
	}
	for path, prefixes := range map[string][]string{
		"pkg/rollout/types.go": {"Reason"}, "pkg/rollout/gates.go": {"Gate"}, "pkg/rollout/facts.go": {"Note", "Do"}, "pkg/rollout/simulate.go": {"Sim"},
		"pkg/follow/follow.go": {"Reason"},
		"pkg/fleet/codes.go":   {"Attention", "Hold", "Warn", "Reason", "Ready", "Reports", "Object", "Tracker", "Secret"},
	} {
		for name, code := range codesIn(t, path, prefixes...) {
			if !said[code] && !apart[code] {
				t.Errorf("%s (%s) of %s has no sentence here", name, code, path)
			}
		}
	}
	const golden = "testdata/say/codes.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("(-want +got); -update rewrites it\n%s", diff)
	}
}

// TestWaitInTheSameClusterNamesNoOthers: a cluster that has the revision may wait for a module of its own, and its agent says for which; only of
// a rollout that waits for sets of clusters it is known that the module is elsewhere.
func TestWaitInTheSameClusterNamesNoOthers(t *testing.T) {
	a := &app{}
	agents := "waits for module crds: not ready (ConfigMap default/a: belongs to module old)"
	if said := a.memberSays("Progressing", rollout.ReasonAwaitingDependency, &v1.Facts{Detail: agents}); said != agents {
		t.Errorf("%q instead of what the agent says: %q", said, agents)
	}
	for _, f := range []*v1.Facts{nil, {}} {
		if said := a.memberSays("Progressing", rollout.ReasonAwaitingDependency, f); strings.Contains(said, "other clusters") || said == "" {
			t.Errorf("%v: %q", f, said)
		}
	}
	if said := a.memberSays("Waiting", rollout.ReasonAwaitingDependency, &v1.Facts{Names: []string{"crds"}, Count: 1, Total: 2, Clusters: []string{"c1"}}); said != "waits for crds in 1 of 2 clusters: c1" {
		t.Error(said)
	}
}
