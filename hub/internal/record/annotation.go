package record

import (
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// annotationID begins the id of a freeze that an annotation puts on an object in its cluster. It names no record of the hub: such a freeze
// follows from what the agent reports.
const annotationID = "annotation-"

// IsAnnotation reports that an id is that of a hold by an annotation, whether it is there still.
func IsAnnotation(id string) bool { return strings.HasPrefix(id, annotationID) }

// HeldThere are the holds of objects that annotations in the cluster put, by the newest word of its agent.
func (t Tracked) HeldThere() []fleet.ObjectHold {
	if t.Input.Observed == nil {
		return nil
	}
	return t.Input.Observed.Holds
}

// AnnotationHolds are the holds that annotations in a cluster put on objects of a module, as what people put at the hub looks.
func (t Tracked) AnnotationHolds() (out []*towlinev1.Hold) {
	for _, x := range t.HeldThere() {
		h := &towlinev1.Hold{Kind: HoldFreeze, Source: fleet.HoldOfAnnotation, Project: t.Module.Project, Module: t.Module.Name, Cluster: string(t.Cluster),
			Object: objectReference(x.ID, x.Version), Items: []string{x.ID.String()}, Count: 1, Reason: x.Reason, By: x.By}
		if x.Unread != "" {
			h.Code = fleet.HoldUnreadEnd
		}
		if !x.Since.IsZero() {
			h.Since = timestamppb.New(x.Since)
		}
		if !x.Until.IsZero() {
			h.Until = timestamppb.New(x.Until)
		}
		d := DigestOfFreeze(h)
		h.Digest, h.Id = d.String(), HoldID(annotationID, d)
		out = append(out, h)
	}
	return out
}

func objectReference(id fleet.ObjectID, version string) *towlinev1.ObjectReference {
	return &towlinev1.ObjectReference{ApiVersion: fleet.BundleEntry{ID: id, Version: version}.APIVersion(), Kind: id.Kind, Namespace: id.Namespace, Name: id.Name}
}
