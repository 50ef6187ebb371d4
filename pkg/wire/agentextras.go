package wire

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// Limits of the objects of older revisions in one status.
const (
	// MaxExtras is how many may be listed.
	MaxExtras   = 2 * assemble.MaxBundleObjects
	plainExtras = 16 // longer lists travel compressed
	// maxIdentityPart is the longest name, namespace, kind or group of an object.
	maxIdentityPart = 253
)

// extrasToProto lists the objects, compressed if they are many, and counts them.
func extrasToProto(out *agentv1.SyncStatus, s fleet.SyncStatus) {
	out.ExtraCount, out.HeldCount = uint32(s.Extra()), uint32(s.Waiting())
	listed := s.Extras[:min(len(s.Extras), MaxExtras)]
	list := make([]*agentv1.ExtraObject, 0, len(listed))
	for _, e := range listed {
		list = append(list, &agentv1.ExtraObject{Group: e.ID.Group, Version: e.Version, Kind: e.ID.Kind, Namespace: e.ID.Namespace,
			Name: e.ID.Name, State: uint32(e.State.Pack()), Reason: CutText(e.Reason), Message: CutText(e.Message), Held: e.Held, Revision: e.Revision, Root: e.Root})
	}
	setExtras(out, list)
}

func setExtras(out *agentv1.SyncStatus, list []*agentv1.ExtraObject) {
	out.Extras, out.ExtrasZstd = nil, nil
	if len(list) <= plainExtras {
		out.Extras = list
		return
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(&agentv1.ExtraObjects{Extras: list})
	if err != nil {
		return // of valid UTF-8 every message can be marshalled
	}
	out.ExtrasZstd = Compress(raw)
}

// ExtrasFromProto lists the objects of older revisions of a status.
func ExtrasFromProto(in *agentv1.SyncStatus) ([]fleet.ExtraObject, error) {
	list, err := listExtras(in)
	if err != nil {
		return nil, err
	}
	if len(list) > MaxExtras {
		return nil, fleet.Invalidf("extras", "%d are too many; at most %d", len(list), MaxExtras)
	}
	var out []fleet.ExtraObject
	for i, e := range list {
		if e.GetKind() == "" || e.GetName() == "" {
			return nil, fleet.Invalid(fmt.Sprintf("extras[%d]", i), "kind and name are required")
		}
		for _, part := range []string{e.GetGroup(), e.GetVersion(), e.GetKind(), e.GetNamespace(), e.GetName()} {
			if !partOfIdentity(part) {
				return nil, fleet.Invalidf(fmt.Sprintf("extras[%d]", i), "%.80q is no part of an identity", part)
			}
		}
		out = append(out, fleet.ExtraObject{ID: fleet.ObjectID{Group: e.GetGroup(), Kind: e.GetKind(), Namespace: e.GetNamespace(), Name: e.GetName()},
			Version: e.GetVersion(), State: fleet.UnpackState(byte(min(e.GetState(), 255))), Reason: CutText(e.GetReason()), Message: CutText(e.GetMessage()),
			Held: e.GetHeld(), Revision: max(e.GetRevision(), 0), Root: e.GetRoot()})
	}
	return out, nil
}

// partOfIdentity reports that text can be a part of an object's identity; an empty one may be missing.
func partOfIdentity(text string) bool {
	return len(text) <= maxIdentityPart && !strings.ContainsFunc(text, unicode.IsControl)
}

func listExtras(in *agentv1.SyncStatus) ([]*agentv1.ExtraObject, error) {
	if len(in.GetExtrasZstd()) == 0 {
		return in.GetExtras(), nil
	}
	raw, err := Decompress(in.GetExtrasZstd(), MaxContentBytes)
	if err != nil {
		return nil, fleet.Invalid("extrasZstd", err.Error())
	}
	if err := boundedFields(raw, MaxExtras); err != nil {
		return nil, fleet.Invalid("extrasZstd", err.Error())
	}
	var list agentv1.ExtraObjects
	if err := proto.Unmarshal(raw, &list); err != nil {
		return nil, fleet.Invalid("extrasZstd", err.Error())
	}
	return list.GetExtras(), nil
}

// boundedFields refuses a message with more than max fields before any of them is made: two bytes of it are hundreds in
// memory.
func boundedFields(raw []byte, max int) error {
	for n := 0; len(raw) > 0; n++ {
		_, _, size := protowire.ConsumeField(raw)
		if size < 0 {
			return protowire.ParseError(size)
		}
		if n == max {
			return fmt.Errorf("more than %d entries", max)
		}
		raw = raw[size:]
	}
	return nil
}

// FitSyncStatus cuts the lists of a status that is larger than limit: first what is only detail, last the identities of
// objects of older revisions. States and counts stay exact.
func FitSyncStatus(m *agentv1.SyncStatus, limit int) *agentv1.SyncStatus {
	if proto.Size(m) <= limit {
		return m
	}
	m = proto.CloneOf(m)
	for len(m.Exceptions) > 0 && proto.Size(m) > limit {
		m.Exceptions = m.Exceptions[:len(m.Exceptions)/2]
	}
	if proto.Size(m) <= limit {
		return m
	}
	list, err := listExtras(m)
	if err != nil {
		return m
	}
	list = slices.Clone(list)
	for i, x := range list {
		list[i] = proto.CloneOf(x)
		list[i].Message = ""
	}
	for setExtras(m, list); len(list) > 0 && proto.Size(m) > limit; setExtras(m, list) {
		list = list[:len(list)*3/4]
	}
	return m
}
