package wire

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// FeatureStatusSeen names the feature of agents that say whether they stand by what was reported before their start.
const FeatureStatusSeen = "status-seen"

// FeatureHealthRules names the feature of agents that judge objects by the health rules in the policies.
const FeatureHealthRules = "health-rules"

// FeatureIgnoreFields names the feature of agents that leave the fields which ignoreFields in the policies names.
const FeatureIgnoreFields = "ignore-fields"

// FeatureApplyOnce names the feature of agents that apply once what applyOnce in the policies names.
const FeatureApplyOnce = "apply-once"

// FeatureKeepLegacy names the feature of agents that keep what keepLegacy in the policies keeps.
const FeatureKeepLegacy = "keep-legacy"

// FeatureObjectHolds names the feature of agents that hold single objects.
const FeatureObjectHolds = "object-holds"

// FeatureConfirmedList names the feature of agents that let go by a confirm what was on the list that the person was shown, and nothing else.
const FeatureConfirmedList = "confirmed-list"

// FeatureReadOnly names the feature of agents that do not write what readOnly in the policies names.
const FeatureReadOnly = "read-only"

// FeatureTakeFrom names the feature of agents that take an object only from the tools which takeFrom in the policies names.
const FeatureTakeFrom = "take-from"

// FeatureShared names the feature of agents that have modules share an object where shared in the policies of all says so.
const FeatureShared = "shared"

// FeatureSubstitution names the feature of agents that read placeholders which are more than ${NAME}.
const FeatureSubstitution = "substitution"

// FeatureObjectBindings names the feature of agents that evaluate the bindings in the policies.
const FeatureObjectBindings = "object-bindings"

// FeatureSecretBindings names the feature of agents that take the values of secrets.
const FeatureSecretBindings = "secret-bindings"

// FeatureDependsOn names the feature of agents that keep the order of modules.
const FeatureDependsOn = "depends-on"

// FeatureWaves names the feature of agents that have waves wait for each other where the policies say so, and leave out of what is ready
// what those name.
const FeatureWaves = "waves"

// FeatureSuccession names the feature of agents that go on with a store of their hub which was restored from a backup.
const FeatureSuccession = "succession"

// FeatureCapabilities names the feature of agents that tell what charts may ask of their cluster.
const FeatureCapabilities = "capabilities"

// FeatureTraces names the feature of agents that send spans to a collector, and are told in which traces their work belongs.
const FeatureTraces = "traces"

// Features are those of agents of this version, but for FeatureTraces, which is up to how an agent was started.
func Features() []string {
	return []string{FeatureStatusSeen, FeatureHealthRules, FeatureWatch, FeatureIgnoreFields, FeatureApplyOnce, FeatureKeepLegacy, FeatureReadOnly, FeatureTakeFrom, FeatureShared, FeatureSubstitution, FeaturePreview, FeatureObjectHolds, FeatureConfirmedList, FeatureDependsOn, FeatureWaves, FeatureObjectBindings, FeatureSecretBindings, FeatureMoves, FeatureDictionaries, FeatureSuccession, FeatureCapabilities,
		QueryEvents, QueryLogs}
}

// Missing are the features of needs that an agent does not have.
func Missing(needs, has []string) []string {
	return slices.DeleteFunc(slices.Clone(needs), func(f string) bool { return slices.Contains(has, f) })
}

// Limits of one sync's status.
const (
	MaxExceptions   = 200
	MaxHolds        = 200
	MaxMessageBytes = 256
	plainStates     = 64 // states longer than this travel compressed
)

var phases = map[fleet.SyncPhase]bool{fleet.PhaseApplying: true, fleet.PhaseApplied: true,
	fleet.PhaseFailed: true, fleet.PhaseRemoving: true, fleet.PhaseRemoved: true,
	fleet.PhaseStray: true, fleet.PhaseHeld: true}

// SyncStatusToProto is the wire form of a status: sentences cut to MaxMessageBytes, at most MaxExceptions exceptions,
// long states compressed.
func SyncStatusToProto(s fleet.SyncStatus) *agentv1.SyncStatus {
	out := &agentv1.SyncStatus{Module: s.Module.String(), Generation: s.Generation, Bundle: s.Bundle.Bytes(),
		Phase: string(s.Phase), Ready: s.Ready && s.Phase == fleet.PhaseApplied, Reason: CutText(s.Reason), Message: CutText(s.Message),
		MoreExtras: s.MoreExtras, Corrections: s.Corrections, ObservedMillis: millis(s.Observed)}
	states := slices.Concat(s.States, s.Watched)
	out.States, out.Watched = make([]byte, len(states)), uint32(len(s.Watched))
	for i, state := range states {
		out.States[i] = state.Pack()
	}
	out.NoStatus, out.NoRule = unjudged(states, fleet.NoStatus), unjudged(states, fleet.NoRule)
	out.Uncounted = bitsOf(states, func(s fleet.ObjectState) bool { return s.Uncounted })
	out.Used = bitsOf(states, func(s fleet.ObjectState) bool { return s.Used })
	if len(out.States) > plainStates {
		out.States, out.StatesZstd = Compress(out.States), true
	}
	for _, e := range s.Exceptions[:min(len(s.Exceptions), MaxExceptions)] {
		out.Exceptions = append(out.Exceptions, &agentv1.ObjectException{Ordinal: uint32(e.Ordinal), Reason: CutText(e.Reason),
			Message: CutText(e.Message), SinceMillis: millis(e.Since), Field: CutText(e.Field), ChangedBy: CutText(e.ChangedBy),
			Want: CutText(e.Want), Live: CutText(e.Live), Seen: uint32(e.Seen), FirstMillis: millis(e.First), LastMillis: millis(e.Last)})
	}
	extrasToProto(out, s)
	out.Holds = holdsToProto(s.Holds)
	return out
}

// SyncStatusFromProto validates a status. A phase of a newer version reads as Applying, and Ready holds with phase
// Applied only.
func SyncStatusFromProto(in *agentv1.SyncStatus) (fleet.SyncStatus, error) {
	s, err := SyncSummaryFromProto(in)
	if err != nil {
		return s, err
	}
	if s.Extras, err = ExtrasFromProto(in); err != nil {
		return s, err
	}
	s.ExtraCount, s.HeldCount = s.Extra(), s.Waiting()
	return s, nil
}

// SyncSummaryFromProto is SyncStatusFromProto without a list of the objects of older revisions: they are only counted.
func SyncSummaryFromProto(in *agentv1.SyncStatus) (fleet.SyncStatus, error) {
	s := fleet.SyncStatus{Generation: in.GetGeneration(), Phase: fleet.SyncPhase(in.GetPhase()), Reason: CutText(in.GetReason()),
		Message: CutText(in.GetMessage()), Corrections: in.GetCorrections(), Observed: fromMillis(in.GetObservedMillis()),
		ExtraCount: max(int(min(in.GetExtraCount(), math.MaxInt32)), len(in.GetExtras())), HeldCount: int(min(in.GetHeldCount(), math.MaxInt32)),
		MoreExtras: in.GetMoreExtras()}
	var err error
	if s.Module, err = moduleFrom(in.GetModule()); err != nil {
		return s, err
	}
	if s.Bundle, err = fleet.DigestFromBytes(in.GetBundle()); err != nil {
		return s, fleet.Invalid("bundle", err.Error())
	}
	if !phases[s.Phase] {
		s.Phase = fleet.PhaseApplying
	}
	s.Ready = in.GetReady() && s.Phase == fleet.PhaseApplied
	states, err := statesFrom(in)
	if err != nil {
		return s, err
	}
	if uint64(in.GetWatched()) > uint64(len(states)) {
		return s, fleet.Invalidf("watched", "%d are more than the %d states", in.GetWatched(), len(states))
	}
	s.States = states
	if n := len(states) - int(in.GetWatched()); n < len(states) {
		s.States, s.Watched = states[:n:n], states[n:]
	}
	if s.Holds, err = holdsFrom(in.GetHolds()); err != nil {
		return s, err
	}
	s.Exceptions, err = exceptionsFrom(in.GetExceptions(), len(states))
	return s, err
}

func statesFrom(in *agentv1.SyncStatus) ([]fleet.ObjectState, error) {
	most := assemble.MaxBundleObjects + int(min(in.GetWatched(), MaxWatched))
	packed := in.GetStates()
	if in.GetStatesZstd() {
		var err error
		if packed, err = Decompress(packed, most); err != nil {
			return nil, fleet.Invalid("states", err.Error())
		}
	}
	if len(packed) > most {
		return nil, fleet.Invalidf("states", "%d are too many; at most %d", len(packed), most)
	}
	if len(packed) == 0 {
		return nil, nil
	}
	out := make([]fleet.ObjectState, len(packed))
	for i, b := range packed {
		out[i] = fleet.UnpackState(b)
	}
	judge(out, in.GetNoStatus(), fleet.NoStatus)
	judge(out, in.GetNoRule(), fleet.NoRule)
	for i := range out {
		out[i].Uncounted, out[i].Used = has(in.GetUncounted(), i), has(in.GetUsed(), i)
	}
	return out, nil
}

// unjudged is a bit for each state that is Healthy for the reason; nil: none is.
func unjudged(states []fleet.ObjectState, reason string) (bits []byte) {
	return bitsOf(states, func(s fleet.ObjectState) bool { return s.Unjudged == reason })
}

// bitsOf is a bit for each state that is so; nil: none is.
func bitsOf(states []fleet.ObjectState, is func(fleet.ObjectState) bool) (bits []byte) {
	for i, s := range states {
		if !is(s) {
			continue
		}
		if bits == nil {
			bits = make([]byte, (len(states)+7)/8)
		}
		bits[i/8] |= 1 << (i % 8)
	}
	return bits
}

func has(bits []byte, i int) bool { return i/8 < len(bits) && bits[i/8]&(1<<(i%8)) != 0 }

// judge notes the reason in the states that have a bit. A state that is not Healthy has nothing to excuse.
func judge(states []fleet.ObjectState, bits []byte, reason string) {
	for i := range states {
		if has(bits, i) && states[i].Health == fleet.HealthHealthy {
			states[i].Unjudged = reason
		}
	}
}

func exceptionsFrom(in []*agentv1.ObjectException, objects int) ([]fleet.ObjectException, error) {
	if len(in) > MaxExceptions {
		return nil, fleet.Invalidf("exceptions", "%d are too many; at most %d", len(in), MaxExceptions)
	}
	var out []fleet.ObjectException
	for i, e := range in {
		if uint64(e.GetOrdinal()) >= uint64(objects) {
			return nil, fleet.Invalidf(fmt.Sprintf("exceptions[%d].ordinal", i), "%d is none of the %d objects", e.GetOrdinal(), objects)
		}
		out = append(out, fleet.ObjectException{Ordinal: int(e.GetOrdinal()), Reason: CutText(e.GetReason()), Message: CutText(e.GetMessage()),
			Since: fromMillis(e.GetSinceMillis()), Field: CutText(e.GetField()), ChangedBy: CutText(e.GetChangedBy()),
			Want: CutText(e.GetWant()), Live: CutText(e.GetLive()), Seen: int(min(e.GetSeen(), math.MaxInt32)),
			First: fromMillis(e.GetFirstMillis()), Last: fromMillis(e.GetLastMillis())})
	}
	return out, nil
}

// CutText makes valid UTF-8 of at most MaxMessageBytes, in one line and without control characters: agents quote what
// anybody in their clusters wrote, and it ends on terminals.
func CutText(s string) string {
	s = fleet.CleanText(strings.ToValidUTF8(s, "\uFFFD"))
	return fleet.Clip(s, MaxMessageBytes)
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
