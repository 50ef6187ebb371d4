package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

// keptText is what the agents said that they left of a module that is gone, such as a Namespace in which others have something: the hub has noted
// that. Where it cannot be had nothing is said. What was noted before the module was made is of another one of its name.
func (a *app) keptText(ctx context.Context, c *client.Client, ref fleet.ModuleRef, was *v1.Module) string {
	ordered := a.Now()
	if at := was.GetMetadata().GetDeletionTimestamp(); at != nil {
		ordered = at.AsTime()
	}
	since := ordered.Add(-auditLate)
	if made := was.GetMetadata().GetCreationTimestamp(); made != nil && made.AsTime().After(since) {
		since = made.AsTime()
	}
	entries, err := collect(c.AllAuditEntries(ctx, &v1.ListAuditEntriesRequest{Subject: ref.String(), Method: fleet.DidRemoveModule, Since: timestamppb.New(since)}))
	if err != nil {
		return ""
	}
	out := ""
	for i, e := range slices.Backward(entries) { // the newest comes first
		if len(entries)-1-i == maxKeptSaid {
			return out + fmt.Sprintf("; and %d more: towline get audit %s", i+1, ref.Display())
		}
		out += "; " + table.Clean(placeLast(e.GetDetail()))
	}
	return out
}

// maxKeptSaid is how much a line says of what was left.
const maxKeptSaid = 3

// removesText is "removes 12 objects, or hands them to modules that list them".
func removesText(objects int32) string {
	return "removes " + count(objects, "object") + orHands(objects)
}

// orHands says of objects that go that other modules may have them.
func orHands(objects int32) string {
	switch objects {
	case 0:
		return ""
	case 1:
		return ", or hands it to a module that lists it"
	}
	return ", or hands them to modules that list them"
}

// deleteText is "removes 4,200 objects in 300 clusters, or hands them to modules that list them; keeps 300 PersistentVolumeClaims". Which of the
// two becomes of each, its agent decides when it is to go.
func deleteText(plan *v1.DeleteModuleResponse, orphan bool) string {
	switch {
	case plan.GetBefore() != "" && plan.GetClusters() == 0:
		return "no cluster has it any more" + toldText(plan, orphan)
	case orphan:
		return "leaves its objects in " + count(plan.GetClusters(), "cluster") + toldText(plan, orphan)
	}
	clusters := plan.GetClusters() - plan.GetLeavingClusters()
	out := fmt.Sprintf("removes %s in %s%s", count(plan.GetObjects(), "object"), count(clusters, "cluster"), orHands(plan.GetObjects()))
	if clusters == 0 && plan.GetLeavingClusters() > 0 {
		out = "removes nothing"
	}
	if len(plan.GetKeeps()) > 0 {
		out += "; keeps " + kindsText(plan.GetKeeps())
	}
	return out + leavingText(plan) + toldText(plan, orphan)
}

// toldText is "; what was deleted before stays gone, and cluster prod-eu-01 deletes on until it hears of this" of a module that was being deleted by
// the other word, or that clusters were to lose: no word takes back what is done; empty: it was not.
func toldText(plan *v1.DeleteModuleResponse, orphan bool) string {
	n := plan.GetToldClusters()
	other, done, on := plan.GetBefore() == fleet.DeleteDelete, "deleted before stays gone", "delete"
	if !orphan {
		other, done, on = plan.GetBefore() == fleet.DeleteOrphan, "left before stays", "leave"
	}
	if n == 0 && !other {
		return ""
	}
	out := "; what was " + done
	switch names := plan.GetTold(); {
	case n == 0:
		return out
	case n == 1:
		return out + ", and cluster " + strings.Join(names, "") + " " + on + "s on until it hears of this"
	case int(n) > maxLeavingNamed || int(n) > len(names):
		return out + ", and " + count(n, "cluster") + ", such as " + strings.Join(names[:min(1, len(names))], "") + ", " + on + " on until they hear of this"
	default:
		return out + ", and clusters " + enumerate(names, "and") + " " + on + " on until they hear of this"
	}
}

// leavingText is "; 12 objects stay in cluster prod-eu-01, which leaves with what it has"; empty: no cluster does.
func leavingText(plan *v1.DeleteModuleResponse) string {
	n := plan.GetLeavingClusters()
	if n == 0 {
		return ""
	}
	out := "; " + agree(plan.GetLeft(), "object stays", "objects stay") + " in "
	switch names := plan.GetLeaving(); {
	case n == 1:
		return out + "cluster " + strings.Join(names, "") + ", which leaves with what it has"
	case int(n) > maxLeavingNamed || int(n) > len(names):
		return out + count(n, "cluster") + ", such as " + strings.Join(names[:min(1, len(names))], "") + ", which leave with what they have"
	default:
		return out + "clusters " + enumerate(names, "and") + ", which leave with what they have"
	}
}

// maxLeavingNamed is how many clusters a line names.
const maxLeavingNamed = 3

// deletedText says that every cluster has confirmed, and what was ordered. Nobody counts what each then did: an object may
// have gone over to another module meanwhile, or somebody else may have deleted it.
func deletedText(ordered *v1.DeleteModuleResponse, orphan bool) string {
	clusters := ordered.GetClusters()
	switch {
	case clusters == 0 && ordered.GetBefore() != "":
		return "no cluster had it any more" + hadText(ordered, orphan)
	case clusters == 0:
		return "no cluster had it"
	case orphan:
		return "gone from " + count(clusters, "cluster") + ", which " + wereTo(clusters) + " leave its objects" + hadText(ordered, orphan)
	}
	if clusters -= ordered.GetLeavingClusters(); clusters == 0 {
		return "no cluster was to remove anything" + leavingText(ordered)
	}
	out := "gone from " + count(clusters, "cluster") + ", which " + wereTo(clusters) + " remove " + count(ordered.GetObjects(), "object")
	if len(ordered.GetKeeps()) > 0 {
		out += " and to keep " + kindsText(ordered.GetKeeps())
	}
	return out + leavingText(ordered) + hadText(ordered, orphan)
}

// hadText is "; what was deleted before that stays gone" of what had been told another word before; empty: nothing had.
func hadText(ordered *v1.DeleteModuleResponse, orphan bool) string {
	switch {
	case toldText(ordered, orphan) == "":
		return ""
	case orphan:
		return "; what was deleted before they heard of that stays gone"
	}
	return "; what was left before they heard of that stays"
}

// kindsText is "300 PersistentVolumeClaims, 1 ConfigMap".
func kindsText(all []*v1.KindCount) string {
	out := make([]string, len(all))
	for i, k := range all {
		out[i] = "1 " + k.GetKind()
		if k.GetObjects() != 1 {
			out[i] = number(k.GetObjects()) + " " + pluralKind(k.GetKind())
		}
	}
	return strings.Join(out, ", ")
}

// pluralKind is such as Ingresses, NetworkPolicies or ConfigMaps.
func pluralKind(kind string) string {
	stem, ends := strings.CutSuffix(kind, "y")
	switch {
	case ends && !strings.HasSuffix(stem, "a") && !strings.HasSuffix(stem, "e") && !strings.HasSuffix(stem, "o"):
		return stem + "ies"
	case strings.HasSuffix(kind, "s") || strings.HasSuffix(kind, "x") || strings.HasSuffix(kind, "ch"):
		return kind + "es"
	}
	return kind + "s"
}

func wereTo(n int32) string {
	if n == 1 {
		return "was to"
	}
	return "were to"
}

// maxPlaces is how many clusters a line names.
const maxPlaces = 5

// placeLast is a detail of the audit that begins with the clusters where that was, with these at its end.
func placeLast(detail string) string {
	list, begins := strings.CutPrefix(detail, "in ")
	list, said, goesOn := strings.Cut(list, "; ")
	if !begins || !goesOn {
		return detail
	}
	list, more, _ := strings.Cut(list, " and ") // of very many the audit names some
	names := strings.Split(list, ", ")
	if len(names) == 1 {
		return said + ", in cluster " + list
	}
	n, _ := strconv.Atoi(strings.TrimSuffix(more, " more"))
	named := names[:min(len(names), maxPlaces)]
	said += ", in clusters " + strings.Join(named, ", ")
	if n += len(names) - len(named); n > 0 {
		said += fmt.Sprintf(" and %d more", n)
	}
	return said
}
