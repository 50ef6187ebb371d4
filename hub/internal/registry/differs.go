package registry

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// maxDiffers is how much of what differs is told.
const maxDiffers = 10

// differs tells what a put made of a cluster, for people who look at its history; empty: it is new.
func differs(was, is *v1.Cluster) string {
	if was == nil {
		return ""
	}
	var out []string
	switch before, now := was.GetSpec().GetCordoned(), is.GetSpec().GetCordoned(); {
	case now && !before:
		out = append(out, "cordoned")
	case before && !now:
		out = append(out, "uncordoned")
	}
	before, now := was.GetMetadata().GetLabels(), is.GetMetadata().GetLabels()
	keys := maps.Clone(before)
	if keys == nil {
		keys = map[string]string{}
	}
	maps.Copy(keys, now)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		old, had := before[key]
		value, has := now[key]
		switch {
		case had && !has:
			out = append(out, "label "+key+" removed, was "+old)
		case has && !had:
			out = append(out, "label "+key+"="+value)
		case old != value:
			out = append(out, "label "+key+"="+value+", was "+old)
		}
	}
	if !slices.EqualFunc(was.GetSpec().GetTaints(), is.GetSpec().GetTaints(), func(a, b *v1.Taint) bool { return proto.Equal(a, b) }) {
		out = append(out, "other taints")
	}
	if !maps.Equal(was.GetMetadata().GetAnnotations(), is.GetMetadata().GetAnnotations()) {
		out = append(out, "other annotations")
	}
	return fleet.Some(out, maxDiffers)
}
