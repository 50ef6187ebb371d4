package cli

import (
	"cmp"
	"fmt"
	"strings"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/rollout"
)

// setSays is for which module in which clusters others wait. Where no set is named it is the agent that says so, of a module in its own cluster.
func setSays(f *v1.Facts) string {
	if len(f.GetNames()) == 0 {
		return cmp.Or(f.GetDetail(), "waits for a module that it depends on")
	}
	module, rest := f.GetNames()[0], ""
	if more := f.GetNames()[1:]; len(more) > 0 {
		rest = ", and for " + strings.Join(more, ", ")
	}
	with := ""
	if f.GetSelector() != "" {
		with = " with " + f.GetSelector()
	}
	switch f.GetCode() {
	case rollout.SetNoModule:
		return "waits for " + module + ", which is no module yet" + rest
	case rollout.SetDeleting:
		return "waits for " + module + ", which is being deleted" + rest
	case rollout.SetSource:
		return "waits for " + module + ", whose newest put has no revision yet" + rest
	case rollout.SetFailed:
		return "waits for " + module + ", whose newest revision failed before it came anywhere: put it again" + rest
	case rollout.SetDamaged:
		return "waits for " + module + ", of which a record of the hub is damaged: put it again" + rest
	case rollout.SetNoCluster:
		return "waits for " + module + " in clusters" + with + ", and there are none: label one, or put other clusters into dependsOn" + rest
	case rollout.SetNotPlaced:
		return "waits for " + module + " in clusters" + with + ", and it is placed in none of them: place it there, or put other clusters into dependsOn" + rest
	}
	in := number(f.GetCount()) + " of " + count(f.GetTotal(), "cluster") + with
	return "waits for " + module + " in " + in + ": " + someClusters(f) + rest
}

// awaitedSays is why a cluster is waited for in which a module is to be ready first.
func awaitedSays(reason string, f *v1.Facts) string {
	module := strings.Join(f.GetNames(), ", ")
	switch reason {
	case rollout.ReasonDisconnected:
		return "it is away, so that nobody knows how " + module + " stands there"
	case rollout.ReasonLocked:
		return "it is locked, so that nobody knows how " + module + " stands there"
	case rollout.ReasonNotSeen:
		return "its agent does not see it, so that nobody knows how " + module + " stands there"
	case rollout.ReasonNotHeard:
		return "its agent is expected back, and says then how " + module + " stands there"
	case rollout.ReasonNotReached:
		return revision(f.GetRevision()) + " of " + module + " has not come there yet"
	case rollout.ReasonCordoned:
		return "it is cordoned, so that " + revision(f.GetRevision()) + " of " + module + " does not come there"
	case rollout.ReasonHeld:
		return "nothing is written there, so that " + revision(f.GetRevision()) + " of " + module + " does not come there"
	}
	return cmp.Or(f.GetDetail(), module+" is not ready there")
}

// whoMay says who can give an approval.
func whoMay(x *v1.Action) string {
	switch {
	case len(x.GetBy()) > 0:
		return "by " + strings.Join(x.GetBy(), " or ")
	case x.GetNotBy() != "":
		return "by another admin than " + x.GetNotBy()
	}
	return ""
}

func notReadySays(reason string, f *v1.Facts) string {
	what := "are not ready"
	if reason == reasonHealthyApart {
		what = "are healthy, and held or changed by somebody"
	}
	said := fmt.Sprintf("%s of %s %s", number(f.GetCount()), number(f.GetTotal()), what)
	if f.GetLimit() > 0 {
		said += fmt.Sprintf("; the first %d", f.GetLimit())
	}
	return said
}
