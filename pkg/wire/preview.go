package wire

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// FeaturePreview: the agent answers what a sync would do.
const FeaturePreview = "preview"

// Queries of the hub.
const (
	// QueryGet asks for an object as it is.
	QueryGet = "get"
	// QueryPreview asks what a sync would do.
	QueryPreview = "preview"
)

// maxPreviewFields is how many changed fields of one object are told.
const maxPreviewFields = 50

// PreviewToProto writes a preview in at most so many bytes: what does not fit is counted.
func PreviewToProto(p fleet.Preview, most int) *agentv1.Preview {
	out := &agentv1.Preview{Unchanged: uint32(p.Unchanged)}
	size := 0
	for i, o := range p.Objects {
		x := previewedToProto(o)
		if size += proto.Size(x) + 8; size > most {
			out.Omitted = uint32(len(p.Objects) - i)
			break
		}
		out.Objects = append(out.Objects, x)
	}
	return out
}

func previewedToProto(o fleet.PreviewedObject) *agentv1.PreviewedObject {
	out := &agentv1.PreviewedObject{Object: BundleEntryToProto(fleet.BundleEntry{ID: o.ID, Version: o.Version}), Action: o.Action, Reason: o.Reason,
		Message: CutText(o.Message), By: CutText(o.By)}
	for i, f := range o.Fields {
		if i == maxPreviewFields {
			out.MoreFields = uint32(len(o.Fields) - i)
			break
		}
		out.Fields = append(out.Fields, &agentv1.FieldChange{Field: CutText(f.Field), Live: CutText(f.Live), Want: CutText(f.Want)})
	}
	return out
}

// DiffOf is what an agent's preview says, for people, in about so many bytes: what does not fit is counted. Agents are not trusted
// with more than they were asked for.
func DiffOf(p *agentv1.Preview, most int) (*towlinev1.DiffGroup, error) {
	out := &towlinev1.DiffGroup{Unchanged: counted(p.GetUnchanged()), Omitted: counted(p.GetOmitted())}
	size := 0
	for i, o := range p.GetObjects() {
		if !partsOfIdentity(o.GetObject()) {
			return nil, fleet.Invalidf(fmt.Sprintf("objects[%d]", i), "is no object")
		}
		x := objectDiff(o)
		if size += proto.Size(x); size > most {
			out.Omitted = counted(uint32(min(int64(out.GetOmitted())+int64(len(p.GetObjects())-i), math.MaxInt32)))
			break
		}
		out.Objects = append(out.Objects, x)
	}
	return out, nil
}

func objectDiff(o *agentv1.PreviewedObject) *towlinev1.ObjectDiff {
	e := o.GetObject()
	version := fleet.BundleEntry{ID: fleet.ObjectID{Group: e.GetGroup()}, Version: e.GetVersion()}.APIVersion()
	out := &towlinev1.ObjectDiff{Object: &towlinev1.ObjectReference{ApiVersion: version, Kind: e.GetKind(), Namespace: e.GetNamespace(), Name: e.GetName()},
		Action: CutText(o.GetAction()), Reason: CutText(o.GetReason()), Message: CutText(o.GetMessage()), By: CutText(o.GetBy()), MoreFields: counted(o.GetMoreFields())}
	for i, f := range o.GetFields() {
		if i == maxPreviewFields {
			out.MoreFields = counted(uint32(min(int64(out.GetMoreFields())+int64(len(o.GetFields())-i), math.MaxInt32)))
			break
		}
		out.Fields = append(out.Fields, &towlinev1.FieldDiff{Field: CutText(f.GetField()), Live: CutText(f.GetLive()), Want: CutText(f.GetWant())})
	}
	return out
}

// partsOfIdentity reports that an entry names an object in parts that one can have.
func partsOfIdentity(e *agentv1.BundleEntry) bool {
	return e.GetKind() != "" && e.GetName() != "" &&
		!slices.ContainsFunc([]string{e.GetGroup(), e.GetVersion(), e.GetKind(), e.GetNamespace(), e.GetName()}, func(part string) bool { return !partOfIdentity(part) })
}

func counted(n uint32) int32 { return int32(min(n, math.MaxInt32)) }
