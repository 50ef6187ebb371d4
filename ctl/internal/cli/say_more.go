package cli

import (
	"cmp"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/rollout"
)

// subjectSays names what a reason speaks of.
func subjectSays(s *v1.Subject) string {
	switch s.GetKind() {
	case rollout.AboutRollback, rollout.AboutEnd, rollout.AboutLeavers, rollout.AboutSoak:
		return strings.ToLower(s.GetKind()) + " of " + s.GetName()
	case rollout.AboutGate:
		return gateName(s.GetName(), s.GetPosition(), s.GetStage())
	case subjectItem:
		return s.GetName()
	}
	return strings.TrimSpace(strings.ToLower(s.GetKind()) + " " + s.GetName())
}

// Subjects that the command line has beside those of rollouts.
const (
	subjectModule  = "Module"
	subjectModules = "Modules"
	subjectHold    = "Hold"
	subjectItem    = "Item"

	reasonNotAllReady  = "NotAllReady"
	reasonHealthyApart = "HealthyApart" // from holds, and what somebody changed

	// codeWhole says that a reason is of the cluster as a whole, codeToken that it is about the token of its agent.
	codeWhole = "Cluster"
	codeToken = "Token"
)

func about(kind, name string) *v1.Subject { return &v1.Subject{Kind: kind, Name: name} }

// reasonSays is what a link says of its subject, without naming it.
func (a *app) reasonSays(r *v1.Reason, memberState string) string {
	f := r.GetFacts()
	switch r.GetSubject().GetKind() {
	case rollout.AboutRollback:
		return fmt.Sprintf("%s of %s are back at %s", number(f.GetCount()), count(f.GetTotal(), "cluster"), revision(f.GetRevision())) + backWaits(f)
	case rollout.AboutStage:
		return a.stageReasonSays(r)
	case rollout.AboutSoak:
		if r.GetBlocks() {
			return soakSpan(f)
		}
		return soakSpan(f) + ", starts when no cluster of " + f.GetStage() + " is running"
	case rollout.AboutGate:
		return a.gateSays(f)
	case subjectCatalog:
		return f.GetDetail()
	case rollout.AboutEnd:
		if r.GetReason() == rollout.ReasonCatchingUp {
			return "all stages are done; clusters that catch up are awaited"
		}
	case rollout.AboutClusters:
		if r.GetReason() == rollout.ReasonNotListed {
			return number(f.GetCount()) + " more: towline rollout status --all lists them"
		}
		if r.GetReason() == rollout.ReasonHadFailed {
			return number(f.GetCount()) + " more had failed"
		}
		if r.GetReason() == rollout.ReasonMoreAwaited {
			module := strings.Join(f.GetNames(), ", ")
			return number(f.GetCount()) + " more: towline get trackers --module " + module + " lists them"
		}
		return notReadySays(r.GetReason(), f)
	case subjectModules:
		return notReadySays(r.GetReason(), f)
	case rollout.AboutCluster:
		if said := a.clusterSays(r.GetReason(), f); said != "" {
			return said
		}
		if said, known := a.attentionSays(r.GetSubject().GetName(), &v1.Note{Code: r.GetReason(), Facts: f}); known {
			return said
		}
		return a.memberSays(memberState, r.GetReason(), f)
	case rollout.AboutRollout:
		return a.rolloutSays(r.GetReason(), f) + whatEndsIt(r)
	case subjectHold:
		return cmp.Or(holdCodeSays(f.GetCode()), f.GetDetail(), r.GetReason())
	case subjectModule:
		if f.GetCode() == follow.Condition || f.GetCode() == fleet.ConditionSpecValid {
			return f.GetDetail()
		}
		if said := readySays(r.GetReason(), f); said != "" {
			return said
		}
	}
	return a.rolloutSays(r.GetReason(), f)
}

// clusterSays is about a cluster as a whole, whatever is rolled out there.
func (a *app) clusterSays(reason string, f *v1.Facts) string {
	switch {
	case reason == rollout.ReasonHadFailed:
		return strings.Trim(f.GetCode()+": "+f.GetDetail(), ": ")
	case f.GetCode() == rollout.ReasonAwaitingDependency && reason != rollout.ReasonAwaitingDependency:
		return awaitedSays(reason, f)
	case f.GetCode() == codeToken:
		return a.tokenSays(f.GetUntil())
	case f.GetCode() != codeWhole:
	case reason == rollout.ReasonCordoned:
		return "no new revisions go there; drift is corrected"
	case reason == string(fleet.ClusterRevoked):
		return "its identity is revoked: no agent is let in before it joins again"
	case reason == rollout.ReasonLocked:
		return "its identity is locked" + because(f.GetDetail()) + ": its agent is not let in, and writes nothing"
	case reason == string(fleet.ClusterRemoving):
		return "it is forgotten when its agent has confirmed of each module that it is removed, or let go"
	case reason == rollout.ReasonDisconnected:
		return "its agent keeps what it has; new revisions reach it when it is back"
	}
	return ""
}

// tokenSays is how long a join token may still be used.
func (a *app) tokenSays(expires *timestamppb.Timestamp) string {
	if expires == nil {
		return "no agent has joined, and there is no token for one"
	}
	left := expires.AsTime().Sub(a.Now())
	if left <= 0 {
		return "token expired " + span(-left) + " ago"
	}
	return "token expires in " + span(left)
}

// backWaits is what a rollback waits for.
func backWaits(f *v1.Facts) string {
	switch f.GetCode() {
	case "":
		return ""
	case rollout.ReasonRestored:
		return "; the hub's store was restored, and nothing begins before that is settled"
	case rollout.ReasonUnplaced:
		return "; the placement of " + revision(f.GetRevision()) + " is to be read first"
	}
	return "; a gate holds the rest"
}

func (a *app) stageReasonSays(r *v1.Reason) string {
	f := r.GetFacts()
	switch {
	case f.GetCode() == rollout.ReasonNotDone:
		return "is not done: " + fmt.Sprintf("%s of %s succeeded", number(f.GetSucceeded()), number(f.GetTotal())) + notDone(f)
	case r.GetReason() == rollout.ReasonCatchingUp:
		return count(f.GetCount(), "cluster") + " to catch up"
	case r.GetReason() == rollout.ReasonNextStage && f.GetLimit() == 0:
		return count(f.GetCount(), "cluster") + ", all at once"
	case r.GetReason() == rollout.ReasonNextStage:
		said := fmt.Sprintf("%s, %s at a time", count(f.GetCount(), "cluster"), number(f.GetLimit()))
		if f.GetPercent() != "" {
			said += fmt.Sprintf(" (%s of %s, rounded down)", f.GetPercent(), number(f.GetTotal()))
		}
		return said
	}
	return a.rolloutSays(r.GetReason(), f)
}

func notDone(f *v1.Facts) string {
	rest := tally(counted{f.GetRunning(), "running"}, counted{f.GetFailed(), "failed"}, counted{f.GetDeferred(), "deferred"},
		counted{f.GetSkipped(), "skipped"}, counted{f.GetRemoved(), "removed"}, counted{f.GetToGo(), "to go"})
	if rest == "" {
		return ""
	}
	return ", " + rest
}

// noteSays is what a person should know after a request was taken. Of what it is needed where the sentence names it.
func noteSays(module string, n *v1.Note) string {
	f := n.GetFacts()
	switch n.GetCode() {
	case rollout.NoteInSpite:
		return fmt.Sprintf("goes on in spite of %s failed; one more stops it again", number(f.GetFailed()))
	case rollout.NoteOnTheWay:
		return count(f.GetCount(), "cluster") + " on the way; nothing new moves"
	case rollout.NoteMixed:
		said := fmt.Sprintf("%s of %s have %s", number(f.GetCount()), count(f.GetTotal(), "cluster"), revision(f.GetRevision()))
		if f.GetCount() > 0 && f.GetCount() < f.GetTotal() {
			said += ", the others stay as they are"
		}
		return said
	case rollout.NoteAgain:
		var parts []string
		if f.GetCount() > 0 {
			parts = append(parts, count(f.GetCount(), "cluster"))
		}
		if f.GetTotal() > 0 {
			parts = append(parts, count(f.GetTotal(), "gate"))
		}
		said := "to begin anew: " + strings.Join(parts, ", ")
		if f.GetFailed() > 0 {
			said += "; not those that are away or cordoned: " + someClusters(&v1.Facts{Clusters: f.GetClusters(), Count: f.GetFailed()})
		}
		return said
	case rollout.NoteNewRollout:
		return "a new rollout of " + revision(f.GetRevision()) + " starts"
	case rollout.NoteSkipped:
		return "skipped clusters do not count as done"
	case rollout.NotePinOf:
		return "cluster " + strings.Join(f.GetClusters(), ", ") + " was " + bySays("pinned", f)
	case rollout.NoteStays:
		return someClusters(f) + ": stays as it is, for the rollout was aborted; rollout retry begins another one of " + revision(f.GetRevision())
	case rollout.NoteGoBack:
		return count(f.GetCount(), "cluster") + " to move back to " + revision(f.GetRevision()) + ", newest first"
	case rollout.NoteLoseAfter:
		return count(f.GetCount(), "cluster") + " to lose the module after that: " + revision(f.GetRevision()) + " does not place it there"
	case rollout.NoteLose:
		return "to lose the module: " + someClusters(f)
	case rollout.NoteSourceAgain:
		return "the source is fetched and rendered again"
	case rollout.NoteStands:
		return "it waits: " + standsSays
	}
	return warningSays(module, n)
}

// warningSays is what a person should know of what was put.
func warningSays(module string, n *v1.Note) string {
	f := n.GetFacts()
	switch n.GetCode() {
	case fleet.WarnDamaged:
		return "the hub's record of the module was damaged, and this takes its place; a deletion that was under way is ended by it, and the " +
			"numbers of its rollouts go on"
	case fleet.WarnNoSecret:
		return "secret " + strings.Join(f.GetNames(), ", ") + " is not there yet; the rollout waits for it: towline secret set " + strings.Join(f.GetNames(), " ") + " KEY=-"
	case fleet.WarnNoHooks:
		return "no call asks for a look at its source, which is looked at in the interval only: the hub takes webhooks where it is started with --hooks"
	case fleet.WarnNoWebhookKey:
		name := strings.Join(f.GetNames(), " ")
		return "no call is taken before its secret has what calls are signed with: towline secret set " + name + " webhook=-"
	case fleet.WarnNoSuchCluster:
		return "placement names cluster " + strings.Join(f.GetClusters(), ", ") + ", which is not registered"
	case fleet.WarnNoCluster:
		return "the placement selects no cluster now"
	case fleet.WarnNoStages:
		return "no rollout stages: a change goes to all " + count(f.GetCount(), "cluster") + " at once"
	case fleet.WarnEmptyStage:
		return "stage " + f.GetStage() + " matches no cluster: the rollout waits there"
	case fleet.WarnEmptyOverride:
		return "none of the selected clusters is matched by " + strings.Join(f.GetNames(), ", ") + ": the rollout waits before it moves anything; correct the selector, or set allowEmpty"
	case fleet.WarnUnmatched:
		return agree(f.GetCount(), "cluster matches", "clusters match") + " no stage and unmatched is Fail: the rollout will fail"
	case fleet.WarnNoDependency:
		return "depends on " + strings.Join(f.GetNames(), ", ") + ", which is no module yet: no cluster begins before it is there and ready"
	case fleet.WarnEmptySet:
		return setSays(f) + "; until then no cluster begins"
	case fleet.WarnDeletedFirst:
		return fmt.Sprintf("a deleted module of this name is still in %s, %s away: it is removed there first", count(f.GetTotal(), "cluster"), number(f.GetCount()))
	case fleet.WarnNearlyFull:
		return "the hub's store is nearly full (" + f.GetDetail() + "), and will take no new modules and revisions when it is: delete some, or start the hub with a larger --store-quota"
	case fleet.WarnFull:
		return "the hub's store is full (" + f.GetDetail() + "): it takes no new modules and revisions before some are deleted, or the hub is started with a larger --store-quota"
	case fleet.WarnOfCatalog:
		name := strings.Join(f.GetNames(), ", ")
		return "is of catalog " + name + ", which puts back what its files say when it looks the next time; change it there, or keep it from the catalog: towline apply --take"
	case fleet.WarnOfSet:
		name := strings.Join(f.GetNames(), ", ")
		return "is of set " + name + ", whose next apply puts what the files of that set say, and with --prune deletes it if they have it no more; if it is to be kept from here: towline apply --take, with --set for that of another set"
	case fleet.WarnHubVersions:
		return "the hubs of this store are of several versions (" + f.GetDetail() + "), and an older one does not know what a newer one has noted: have all be of one"
	case fleet.WarnRestored:
		return "it begins later: " + standsSays
	case fleet.WarnStaysBack:
		where := ""
		if f.GetCode() == string(rollout.ScopeFailed) {
			where = " where it failed"
		}
		return fmt.Sprintf("stays at %s%s since %s was rolled back; put a changed module, or: towline rollout retry %s", revision(f.GetRevision()), where, f.GetRollout(), module)
	}
	return n.GetCode()
}

// attentionSays is what a person must look at in a cluster; false: the code is none of these.
func (a *app) attentionSays(cluster string, n *v1.Note) (said string, known bool) {
	f := n.GetFacts()
	again := "towline cluster join " + cluster
	switch n.GetCode() {
	case fleet.AttentionStrays:
		return count(f.GetCount(), "stray sync"), true
	case fleet.AttentionExpected:
		return "expected back until " + a.clock(f.GetUntil()) + ": the hub has just started", true
	case fleet.AttentionRegressed:
		return "REGRESSED: " + f.GetDetail() + ": the hub's store is older than the cluster; restore a newer one, or go on with this one: towline restore accept, " +
			"if towline-hub restore made it, else " + again + " --reissue", true
	case fleet.AttentionUnknownCert:
		return "REGRESSED: the agent has a certificate that this hub does not know and that is newer than those it does: the hub's store is " +
			"older than the cluster; restore a newer one, or run: " + again + " --reissue", true
	case fleet.AttentionOtherCluster:
		return "cloned UID: an agent with this identity runs in another Kubernetes cluster, and is refused: find and stop it; or, if the cluster " +
			"was made anew: " + again + " --reissue", true
	case fleet.AttentionCloned:
		return "cloned: two agents with this identity run at once, and one of them is refused: the cluster or its agent's state was copied; " +
			"stop the copy, and give this one a new identity: " + again + " --reissue", true
	case fleet.AttentionCopied:
		return "copied identity: a certificate was shown that had been replaced, and was refused: an agent with an older copy of the state runs, " +
			"or somebody has its key; keep both out until you know which is right: towline cluster lock " + cluster, true
	case fleet.AttentionFormer:
		return "former identity: an agent runs that has an identity from before this cluster joined last, and is refused: stop it; or, if it is " +
			"to have the cluster's name: " + again + " --reissue", true
	case fleet.AttentionUnregistered:
		return "UNREGISTERED: its agent has an identity of this hub, which does not have the cluster: the store was made anew, or the cluster " +
			"was removed; the agent keeps its objects as they are; run: " + again, true
	case fleet.AttentionDamaged:
		return "the hub's record of it is damaged, so its agent is not let in; it keeps what it has. Let the hub forget it, and join it again " +
			"with its labels: towline cluster remove " + cluster + ", " + again, true
	case fleet.AttentionRefused:
		return f.GetCode() + ": " + f.GetDetail(), true
	}
	return "", false
}

// holdSays is why a hold is there: what a person said who put it, or why it waits for one.
func holdSays(h *v1.Hold) string {
	if h.GetSource() != fleet.HoldOfAnnotation {
		return cmp.Or(holdCodeSays(h.GetCode()), h.GetReason())
	}
	return strings.Trim(h.GetReason()+"; "+holdCodeSays(h.GetCode()), "; ")
}

// holdEnd is the command that ends a freeze.
func holdEnd(h *v1.Hold) string {
	if h.GetSource() != fleet.HoldOfAnnotation {
		return "towline unhold " + h.GetId()
	}
	o := h.GetObject()
	kind, in := strings.ToLower(o.GetKind()), ""
	if group, _ := fleet.SplitAPIVersion(o.GetApiVersion()); group != "" {
		kind += "." + group
	}
	if o.GetNamespace() != "" {
		in = "-n " + o.GetNamespace() + " "
	}
	return "kubectl " + in + "annotate " + kind + "/" + o.GetName() + " " + fleet.HoldAnnotation + "-"
}

// holdSource is where a hold was put.
func holdSource(h *v1.Hold) string {
	switch {
	case h.GetSource() == fleet.HoldOfAnnotation:
		return "annotation"
	case h.GetKind() == kindFreeze:
		return "hub"
	}
	return "-"
}

func holdCodeSays(code string) string {
	switch code {
	case fleet.HoldLeaves:
		return "the module would leave these clusters"
	case fleet.HoldPrunes:
		return "more than half of the catalog's modules are in its files no more, and would be deleted"
	case fleet.HoldGoesBack:
		return "the source has older files than those that the catalog took up last, in which these modules are not: a cache or a mirror that is behind looks the same as somebody who puts them back"
	case fleet.HoldDrops:
		return "the new revision drops more than half of the module's objects"
	case fleet.HoldUnreadEnd:
		return "its annotation " + fleet.HoldUntilAnnotation + " is no time, so that it has no end"
	case fleet.HoldDamaged:
		return "the hub's record of it is damaged; what it froze stays frozen until it is ended"
	}
	return ""
}

// conditionSays is a condition of a cluster: in the words of its agent, or what the hub says of its reports.
func conditionSays(c *v1.Condition) string {
	f := c.GetFacts()
	switch {
	case c.GetMessage() != "":
		return c.GetMessage()
	case c.GetReason() == fleet.ReportsNotDesired:
		return agree(f.GetCount(), "report", "reports") + " of modules that this cluster was not given dropped, such as " + strings.Join(f.GetNames(), ", ")
	case c.GetReason() == fleet.ReportsTooLarge:
		return agree(f.GetCount(), "report was", "reports were") + " kept without their sentences, or dropped: those of this cluster are too large together"
	case c.GetReason() == "":
		return c.GetType() + " is " + c.GetStatus()
	}
	return c.GetType() + " is " + c.GetStatus() + ": " + c.GetReason()
}

// trackerSays is why a module stands in a cluster as it does.
func (a *app) trackerSays(t *v1.Tracker) string {
	said := t.GetMessage()
	switch t.GetReason() {
	case fleet.TrackerNotAssigned:
		return cmp.Or(said, "nothing is assigned")
	case fleet.TrackerSending:
		return cmp.Or(said, fmt.Sprintf("the agent has not reported on generation %d yet", t.GetGeneration()))
	case fleet.TrackerRemovingFirst:
		return strings.TrimSuffix("first what a deleted module of this name left here is removed: "+said, ": ")
	case fleet.TrackerRemoving:
		return cmp.Or(said, "its agent removes it")
	case fleet.TrackerReleasing:
		return cmp.Or(said, "its agent lets go of it; its objects stay")
	case fleet.TrackerLeaving:
		return cmp.Or(said, "goes with its cluster, which leaves the fleet")
	case fleet.TrackerPlacedAgain:
		return cmp.Or(said, "nothing more is removed, for it is placed here again, and nobody holds it; it stays as it is until the cluster may have the module: towline explain cluster "+t.GetCluster())
	case fleet.TrackerNotSeen:
		if t.GetRemoving() {
			return strings.TrimSuffix("removed when its agent sees the cluster again: "+said, ": ")
		}
		return said + a.lastWord(t, "")
	case fleet.TrackerDisconnected:
		said = "its agent is not connected" + a.lastWord(t, said)
	case fleet.TrackerNotHeard:
		said = "its agent is back and has not said yet how it stands" + a.lastWord(t, said)
	case fleet.TrackerRegressed:
		said = "its agent has seen a newer store of the hub than there is, and is told nothing until that is accepted, or it joins again" + a.lastWord(t, said)
	default:
		return said
	}
	if t.GetRemoving() && t.GetReason() != fleet.TrackerRegressed {
		return "removed when the cluster is back"
	}
	return said
}

// lastWord is the end of a sentence about what cannot be seen.
func (a *app) lastWord(t *v1.Tracker, said string) string {
	if t.GetWasHealth() == "" {
		return ""
	}
	return strings.TrimSuffix("; "+a.asLastHeard(t.GetLastHeard())+t.GetWasHealth()+", "+said, ", ")
}

// asLastHeard begins what was said of a cluster that cannot be seen; nil: nobody knows when.
func (a *app) asLastHeard(at *timestamppb.Timestamp) string {
	if at == nil {
		return "as last heard: "
	}
	return "as last heard at " + a.clock(at) + ": "
}

// objectSays is why an object stands as it does, or did when its cluster was last heard of.
func (a *app) objectSays(o *v1.Object) string {
	switch {
	case o.GetReason() == fleet.TrackerRemoving && o.GetMessage() == "":
		return "goes, or stays as its policy says, when its agent takes the removal"
	case o.GetReason() == fleet.TrackerReleasing && o.GetMessage() == "":
		return "stays, without our marks, when its agent takes the removal"
	case o.GetLastHeard() != nil && o.GetMessage() != "":
		return a.asLastHeard(o.GetLastHeard()) + o.GetMessage()
	}
	return o.GetMessage()
}

// command is a line to run, and what is told beside it.
type command struct{ line, note string }

func commandsOf(lines ...string) []command {
	out := make([]command, len(lines))
	for i, l := range lines {
		out[i].line = l
	}
	return out
}

// commandOf is the command for an action; of is the reason that has it, if one has.
func commandOf(x *v1.Action, of *v1.Reason) command {
	on := moduleArgs(x.GetProject(), x.GetModule())
	at := func(verb, flags string) command {
		return command{line: strings.TrimSpace("towline rollout " + verb + " " + on + " " + flags)}
	}
	cluster, gate := "", ""
	if x.GetCluster() != "" {
		cluster = "--cluster " + x.GetCluster()
	}
	if x.GetGate() != "" {
		gate = "--stage " + x.GetStage() + " --gate " + x.GetGate() + " "
	}
	switch x.GetMethod() {
	case rollout.DoResume:
		return at("resume", "")
	case rollout.DoRetry:
		c := at("retry", cluster)
		if imageReasons[of.GetReason()] {
			c.note = "after the image is there"
		}
		return c
	case rollout.DoRollBack:
		return command{line: rollbackLine(x.GetProject(), x.GetModule(), of.GetSubject().GetName(), "")}
	case rollout.DoPromote:
		return at("promote", "-m …")
	case rollout.DoApprove:
		c := at("approve", fmt.Sprintf("%s--revision %d -m …", gate, x.GetRevision()))
		c.note = whoMay(x)
		return c
	case rollout.DoOverride:
		return at("override", gate+"-m …")
	case rollout.DoSkip:
		c := at("skip", cluster+" -m …")
		c.note = "go on without it; does not count as done"
		return c
	case rollout.DoUnpin:
		return at("unpin", cluster)
	case rollout.DoConfirm:
		if of.GetReason() == kindFreeze {
			return command{line: "towline unhold " + x.GetHold()}
		}
		return command{line: "towline confirm " + x.GetHold()}
	case rollout.DoPutCluster:
		return command{line: "towline cluster uncordon " + x.GetCluster()}
	case rollout.DoListHolds:
		return command{"towline get holds" + moduleArgs(x.GetProject(), ""), "who holds it; towline unhold ends that"}
	case rollout.DoUnlockCluster:
		return command{"towline cluster unlock " + x.GetCluster(), "with --reissue if its identity may be known to others"}
	case rollout.DoPutModule:
		return command{"towline apply -f FILE", "with other users of gate " + x.GetGate() + ", or without it"}
	case rollout.DoAcceptRestore:
		return command{"towline restore accept", "what came after the backup counts no more, for all clusters"}
	case rollout.DoResumeRestore:
		return command{"towline restore resume", "go on without the clusters that are ahead or were not heard"}
	case rollout.DoCreateUser:
		return command{"towline user create NAME --role admin --save FILE", "makes one, who approves with --config FILE"}
	case rollout.DoJoinCluster:
		return command{joinAnew(x.GetCluster()), "a new token for its agent"}
	}
	return command{}
}

// joinAnew is the command by which the agent of a cluster that is registered gets a new token.
func joinAnew(cluster string) string { return "towline cluster join " + cluster + " --reissue" }

// imageReasons are those of containers whose image is missing.
var imageReasons = map[string]bool{"ImagePullBackOff": true, "ErrImagePull": true}
