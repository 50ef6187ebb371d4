package wire

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// Questions about what happens in a cluster; the words are the names of the features, too.
const (
	// QueryEvents asks for Events about a module's objects.
	QueryEvents = "events"
	// QueryLogs asks for logs of pods.
	QueryLogs = "logs"
)

// maxTail is how many lines of a pod may be asked for.
const maxTail = 1_000_000

// EventsToProto writes events in at most so many bytes: the oldest that do not fit are counted, beside those that were omitted already.
func EventsToProto(list []fleet.ClusterEvent, omitted, most int) *agentv1.Events {
	out := &agentv1.Events{Omitted: uint32(omitted)}
	all := make([]*agentv1.Event, len(list))
	size, from := 0, len(list)
	for from > 0 {
		e := list[from-1]
		x := &agentv1.Event{Object: BundleEntryToProto(fleet.BundleEntry{ID: e.ID, Version: e.Version}), Type: e.Type, Reason: e.Reason, Message: e.Message, By: e.By,
			FirstMillis: e.First.UnixMilli(), LastMillis: e.Last.UnixMilli(), Count: uint32(e.Count)}
		if size += proto.Size(x) + 8; size > most {
			break
		}
		from--
		all[from] = x
	}
	out.Events, out.Omitted = all[from:], out.Omitted+uint32(from)
	return out
}

// EventsOf is what an agent says of events, for people. What it says is cut to what is shown.
func EventsOf(in *agentv1.Events, m fleet.ModuleRef) (out []*towlinev1.ObjectEvent, omitted int32) {
	for _, e := range in.GetEvents() {
		out = append(out, &towlinev1.ObjectEvent{Object: referenceOf(e.GetObject()), Type: CutText(e.GetType()), Reason: CutText(e.GetReason()), Message: fleet.Clip(e.GetMessage(), maxEventText),
			By: CutText(e.GetBy()), First: timestamppb.New(time.UnixMilli(e.GetFirstMillis())), Last: timestamppb.New(time.UnixMilli(e.GetLastMillis())), Count: counted(e.GetCount()),
			Project: m.Project, Module: m.Name})
	}
	return out, counted(in.GetOmitted())
}

// maxEventText is how long the message of an event may be.
const maxEventText = 1024

func referenceOf(e *agentv1.BundleEntry) *towlinev1.ObjectReference {
	return &towlinev1.ObjectReference{ApiVersion: fleet.BundleEntry{ID: fleet.ObjectID{Group: e.GetGroup()}, Version: e.GetVersion()}.APIVersion(), Kind: e.GetKind(),
		Namespace: e.GetNamespace(), Name: e.GetName()}
}

// LogQueryFromProto reads what of logs is asked for.
func LogQueryFromProto(in *agentv1.LogOptions) (fleet.LogQuery, error) {
	q := fleet.LogQuery{Container: in.GetContainer(), Tail: int(in.GetTail()), Since: time.Duration(in.GetSinceMillis()) * time.Millisecond, Previous: in.GetPrevious(),
		Timestamps: in.GetTimestamps(), After: map[string]fleet.LogCursor{}}
	if in.GetTail() > maxTail || q.Since < 0 || q.Since.Milliseconds() != int64(in.GetSinceMillis()) {
		return q, fleet.Invalid("logs", "tail or since_millis is out of range")
	}
	for _, c := range in.GetAfter() {
		q.After[c.GetUid()] = fleet.LogCursor{Pod: c.GetPod(), UID: c.GetUid(), At: time.Unix(0, c.GetNanos())}
	}
	return q, nil
}

// LogsToProto is the wire form of logs.
func LogsToProto(list []fleet.PodLog, omitted int) *agentv1.Logs {
	out := &agentv1.Logs{Omitted: uint32(omitted)}
	for _, p := range list {
		x := &agentv1.PodLog{At: &agentv1.LogCursor{Pod: p.Pod, Uid: p.UID}, Container: p.Container, Data: p.Data, Cut: p.Cut, Error: fleet.Clip(p.Error, maxEventText)}
		if !p.At.IsZero() {
			x.At.Nanos = p.At.UnixNano()
		}
		out.Pods = append(out.Pods, x)
	}
	return out
}
