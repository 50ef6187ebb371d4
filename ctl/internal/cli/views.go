package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

func left(names ...string) []table.Column {
	out := make([]table.Column, len(names))
	for i, n := range names {
		out[i] = table.Column{Name: n}
	}
	return out
}

func right(names ...string) []table.Column {
	out := left(names...)
	for i := range out {
		out[i].Right = true
	}
	return out
}

func wide(names ...string) []table.Column {
	out := left(names...)
	for i := range out {
		out[i].Wide = true
	}
	return out
}

// prose is a column of text that goes on below its row where a terminal is too narrow for it.
func prose(name string) []table.Column { return []table.Column{{Name: name, Sentence: true}} }

// spare says which columns a narrow terminal does without: the first of them first.
func spare(all []table.Column, names ...string) []table.Column {
	for i, n := range names {
		at := slices.IndexFunc(all, func(c table.Column) bool { return c.Name == n })
		all[at].Spare = len(names) - i
	}
	return all
}

func columns(groups ...[]table.Column) []table.Column {
	var out []table.Column
	for _, g := range groups {
		out = append(out, g...)
	}
	return out
}

// withProject puts a PROJECT column in front when several projects are shown.
func withProject(on bool, t *table.Table, project func(i int) string) *table.Table {
	if !on {
		return t
	}
	t.Columns = columns(left("PROJECT"), t.Columns)
	for i := range t.Rows {
		t.Rows[i] = append([]table.Cell{text(project(i))}, t.Rows[i]...)
	}
	return t
}

func moduleView(allProjects bool) view[*v1.Module] {
	return view[*v1.Module]{
		kind: "module",
		name: func(m *v1.Module) string { return moduleName(m.GetMetadata().GetProject(), m.GetMetadata().GetName()) },
		table: func(a *app, items []*v1.Module) *table.Table {
			t := &table.Table{Columns: spare(columns(left("NAME", "REVISION"), right("CLUSTERS", "UPDATED", "HEALTHY", "PROGR", "BAD", "AWAY", "DRIFT"),
				prose("ROLLOUT"), left("SINCE"), wide("OBJECTS", "UNJUDGED", "CHANGED BY", "ORIGIN", "SOURCE", "FOLLOWS", "LABELS")), "SINCE", "UPDATED", "PROGR", "AWAY", "DRIFT")}
			for _, m := range items {
				t.Add(a.moduleRow(m)...)
			}
			return withProject(allProjects, t, func(i int) string { return items[i].GetMetadata().GetProject() })
		},
	}
}

func (a *app) moduleRow(m *v1.Module) []table.Cell {
	meta, s := m.GetMetadata(), m.GetStatus()
	updated, drift := num(s.GetUpdated()), graded(table.Yellow, s.GetDrift())
	if meta.GetDeletionTimestamp() != nil {
		updated, drift = text("-"), text("-")
	}
	return []table.Cell{
		text(meta.GetName()), text(moduleRevision(s)), num(s.GetClusters()), updated, num(s.GetHealthy()),
		graded(table.Yellow, s.GetProgressing()), bad(s.GetBad()), graded(table.Grey, s.GetAway()), drift,
		a.moduleState(m), text(a.since(moduleSince(m))), num(s.GetObjects()), num(s.GetUnjudged()), text(orDash(meta.GetChangedBy())),
		text(orDash(originText(meta))), text(sourceText(m.GetSpec().GetSource())), a.followCell(s.GetFollow()), text(labelText(meta.GetLabels())),
	}
}

// originText is where a module comes from: set/NAME, or catalog/NAME with what its ref came to when it put the module as it is.
func originText(m *v1.Metadata) string {
	if at := strings.TrimSpace(shortRef(m.GetOriginRef())); at != "" {
		return m.GetOrigin() + " at " + at
	}
	return m.GetOrigin()
}

// holdSubject is the module, or the catalog, that a hold is of.
func holdSubject(h *v1.Hold) string {
	if h.GetCatalog() != "" {
		return fleet.CatalogOrigin(moduleName(h.GetProject(), h.GetCatalog()))
	}
	return moduleName(h.GetProject(), h.GetModule())
}

// moduleSince is since when a module stands as it does; nil: nobody noted that, as of a put that has not begun over a revision.
func moduleSince(m *v1.Module) *timestamppb.Timestamp {
	if t := m.GetStatus().GetSince(); t != nil || m.GetStatus().GetRevision() != 0 {
		return t
	}
	return m.GetMetadata().GetCreationTimestamp()
}

func moduleRevision(s *v1.ModuleStatus) string {
	if s.GetRolledBack() {
		return fmt.Sprintf("%s (spec %s)", revision(s.GetSucceededRevision()), revision(s.GetRevision()))
	}
	return move(s.GetSucceededRevision(), s.GetRevision())
}

// maxSuccessMessage is up to which length what a rollout that succeeded has to say stands in a table.
const maxSuccessMessage = 60

// moduleState is the newest rollout in a few words, and what stops the module beside that.
func (a *app) moduleState(m *v1.Module) table.Cell {
	cell, s := a.moduleRollout(m), m.GetStatus()
	confirms, everywhere := 0, ""
	for _, h := range s.GetHolds() {
		switch {
		case h.GetKind() != kindFreeze:
			confirms++
		case h.GetCluster() == "":
			everywhere = a.heldBy(h)
		}
	}
	switch {
	case everywhere != "":
		cell.Text += "; " + everywhere
	case s.GetHeldClusters() > 0:
		cell.Text += "; held in " + count(s.GetHeldClusters(), "cluster")
	}
	switch confirms {
	case 0:
	case 1:
		cell.Text += "; waits for a confirm"
	default:
		cell.Text += fmt.Sprintf("; waits for %d confirms", confirms)
	}
	cell.Text += a.followTrouble(s.GetFollow())
	return cell
}

// kindFreeze is the kind of holds that stop all writes; the others wait for a confirm.
const kindFreeze = "Freeze"

// heldBy is "held by ana until 05:00".
func (a *app) heldBy(h *v1.Hold) string {
	out := "held"
	switch {
	case h.GetSource() == fleet.HoldOfAnnotation && h.GetBy() != "":
		out += " by its annotation (" + h.GetBy() + ")"
	case h.GetSource() == fleet.HoldOfAnnotation:
		out += " by its annotation"
	case h.GetBy() != "":
		out += " by " + h.GetBy()
	}
	return out + a.until(h.GetUntil())
}

// until is " until 05:00", or nothing without a time.
func (a *app) until(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	at, now := t.AsTime().In(a.Zone), a.Now().In(a.Zone)
	switch left := at.Sub(now); {
	case left < 12*time.Hour:
		return " until " + at.Format("15:04")
	case at.Year() == now.Year():
		return " until " + at.Format("01-02")
	}
	return " until " + at.Format("2006-01-02")
}

// moduleRollout is the newest rollout in a few words: the state, its id unless it is done, and where it stands.
func (a *app) moduleRollout(m *v1.Module) table.Cell {
	cell, _ := a.rolloutCell(m)
	return cell
}

// rolloutCell is the newest rollout in a few words, and whether its message is among them.
func (a *app) rolloutCell(m *v1.Module) (cell table.Cell, told bool) {
	s := m.GetStatus()
	at, why := s.GetRolloutState(), a.rolloutSays(s.GetRolloutReason(), s.GetRolloutFacts())
	id := at + " " + s.GetRollout()
	switch {
	case m.GetMetadata().GetDeletionTimestamp() != nil:
		where := count(s.GetClusters(), "cluster")
		switch {
		case s.GetAhead() > 0:
			where += ", " + tally(counted{s.GetAway() - s.GetAhead(), "away"}, counted{s.GetAhead(), aheadOfStore}) + ": " + acceptRestore
		case s.GetAway() > 0 && s.GetAway() == s.GetClusters():
			where = count(s.GetAway(), "away cluster")
		}
		what := count(s.GetObjects(), "object")
		if leavesObjects(m) {
			what = "leaves " + what
		}
		return state(fmt.Sprintf("Deleting: %s in %s", what, where)), false
	case at == "":
		return text("-"), false
	case at == stateSucceeded && s.GetRolloutDeferred() > 0:
		return state(succeededWord(s.GetRolloutFacts(), s.GetRolloutDeferred())), false
	case at == stateSucceeded && why != "" && len(why) <= maxSuccessMessage:
		return state(at + ", " + why), true
	case at == stateSucceeded || s.GetRollout() == "":
		return state(at), false
	case at == stateRolledBack && s.GetRolledBackBy() != "":
		return state(id + " by " + s.GetRolledBackBy()), false
	case s.GetRolloutStage() != nil:
		stage := s.GetRolloutStage()
		return state(fmt.Sprintf("%s: %s %d/%d", id, stage.GetStage(), stage.GetSucceeded(), stage.GetTotal())), false
	case why != "":
		return state(id + ": " + why), true
	}
	return state(id), false
}

// leavesObjects reports that a module is being deleted and leaves what it has in the clusters.
func leavesObjects(m *v1.Module) bool {
	return m.GetMetadata().GetDeletionTimestamp() != nil && m.GetStatus().GetRolloutFacts().GetCode() == fleet.DeleteOrphan
}

func clusterView(hubVersion string) view[*v1.Cluster] {
	return view[*v1.Cluster]{
		kind: "cluster", name: metaName[*v1.Cluster],
		table: func(a *app, items []*v1.Cluster) *table.Table {
			t := &table.Table{Columns: spare(columns(left("NAME", "STATE", "LAST SEEN"), right("MODULES", "HEALTHY", "DRIFT"),
				prose("HOLD"), left("AGENT", "KUBERNETES"), wide("LABELS", "UID", "CERTIFICATE UNTIL")), "KUBERNETES", "AGENT", "MODULES")}
			for _, c := range items {
				t.Add(a.clusterRow(c, hubVersion)...)
			}
			return t
		},
	}
}

func (a *app) clusterRow(c *v1.Cluster, hubVersion string) []table.Cell {
	s := c.GetStatus()
	healthy, drift := num(s.GetHealthy()), graded(table.Yellow, s.GetDrift())
	switch {
	case fleet.ClusterState(s.GetState()) == fleet.ClusterPending:
		healthy, drift = text("-"), text("-")
	case slices.Contains([]string{"Damaged", stateUnregistered}, s.GetState()), uncounted(s): // nobody has counted
		healthy, drift = colored(table.Grey, "?"), colored(table.Grey, "?")
	case unseen(s):
		healthy, drift = colored(table.Grey, fmt.Sprintf("? (was %d)", s.GetWasHealthy())), colored(table.Grey, "?")
	}
	return []table.Cell{
		text(c.GetMetadata().GetName()), state(s.GetState()), text(a.lastSeen(s)), num(s.GetModules()), healthy, drift, a.stops(c),
		agentVersion(s.GetAgentVersion(), hubVersion), text(orDash(s.GetKubernetesVersion())),
		text(labelText(c.GetMetadata().GetLabels())), text(orDash(s.GetUid())), text(a.stamp(s.GetCertificateNotAfter())),
	}
}

// lastSeen is now while the agent is connected.
func (a *app) lastSeen(s *v1.ClusterStatus) string {
	switch {
	case s.GetLastSeen() == nil:
		return "never"
	case fleet.ClusterState(s.GetState()) == fleet.ClusterReady, fleet.ClusterState(s.GetState()) == fleet.ClusterCordoned:
		return "now"
	case fleet.ClusterState(s.GetState()) != fleet.ClusterDisconnected && s.GetLock() == nil && !s.GetAway() && a.Now().Sub(s.GetLastSeen().AsTime()) < 30*time.Second:
		return "now"
	}
	return a.since(s.GetLastSeen()) + " ago"
}

const agentAway = "its agent is away"

// agentAhead is said of one that is told nothing: what it holds is newer than the hub's store.
const agentAhead, accepted = "its agent is told nothing, for it has seen a newer store of the hub", "that is accepted"

// aheadOfStore is said of clusters whose agents have seen a newer store of the hub, acceptRestore is what ends that.
const aheadOfStore, acceptRestore = "ahead of the hub's store", "towline restore accept"

// awayText is "3 away", with those beside that are no matter of being there.
func awayText(s *v1.ModuleStatus) string {
	out := fmt.Sprintf("%d away", s.GetAway()-s.GetAhead())
	if n := s.GetAhead(); n > 0 {
		out += fmt.Sprintf(", %d %s", n, aheadOfStore)
	}
	return out
}

// absence says why the agent of a cluster hears of nothing now, and until when; empty: it is there, or there is none.
func absence(s *v1.ClusterStatus) (why, until string) {
	switch state := fleet.ClusterState(s.GetState()); {
	case state == fleet.ClusterRevoked:
		return "its identity is revoked", "it has joined again"
	case s.GetLock() != nil:
		return "it is locked", "it is unlocked"
	case state == fleet.ClusterDisconnected, s.GetAway():
		return agentAway, "it is back"
	case ahead(s):
		return agentAhead, accepted
	case state == fleet.ClusterRemoving && unseen(s): // an older hub does not say who is away
		return agentAway, "it is back"
	}
	return "", ""
}

// unseen reports that nothing is known of the cluster as of now.
func unseen(s *v1.ClusterStatus) bool {
	switch fleet.ClusterState(s.GetState()) {
	case fleet.ClusterDisconnected, fleet.ClusterRevoked, fleet.ClusterLocked:
		return true
	}
	// One whose agent has come back says nothing of what it has in the first moment, nor does one that is told nothing.
	return s.GetAway() || blind(s) || ahead(s) || s.GetHealthy() == 0 && s.GetWasHealthy() > 0
}

// ahead reports that the agent has seen a newer store of the hub than there is: what it says counts for nothing.
func ahead(s *v1.ClusterStatus) bool { return s.GetAttention().GetCode() == fleet.AttentionRegressed }

// uncounted reports that nothing was known of what an agent has that is ahead of the hub's store, before it was, either.
func uncounted(s *v1.ClusterStatus) bool { return ahead(s) && s.GetWasHealthy() == 0 }

// blind reports that the agent does not see its cluster, so that what is known of it is as last heard.
func blind(s *v1.ClusterStatus) bool {
	return slices.ContainsFunc(s.GetConditions(), func(c *v1.Condition) bool {
		return fleet.Condition{Type: fleet.ConditionType(c.GetType()), Status: c.GetStatus()}.Blinds()
	})
}

// troubles are the conditions of a cluster that a person should look at.
func troubles(s *v1.ClusterStatus) []*v1.Condition {
	return slices.DeleteFunc(slices.Clone(s.GetConditions()), func(c *v1.Condition) bool {
		return fleet.Condition{Type: fleet.ConditionType(c.GetType()), Reason: c.GetReason()}.Fine()
	})
}

// heardThen begins what a cluster's agent said of it, if that is not there any more.
func heardThen(s *v1.ClusterStatus) string {
	if s.GetAway() || fleet.ClusterState(s.GetState()) == fleet.ClusterDisconnected {
		return "as last heard: "
	}
	return ""
}

// localPolicy is what the cluster's agent says of the policy that its own people gave it.
func (a *app) localPolicy(s *v1.ClusterStatus) string {
	for _, c := range s.GetConditions() {
		if c.GetType() == string(fleet.ConditionLocalPolicy) {
			return heardThen(s) + a.condition(c)
		}
	}
	return "none"
}

// condition is a condition as a sentence, and for how long it has held.
func (a *app) condition(c *v1.Condition) string {
	said := conditionSays(c)
	if c.GetLastTransitionTime() != nil {
		said += " (" + a.since(c.GetLastTransitionTime()) + ")"
	}
	return said
}

// attention is what a person should look at. What is merely told is plain; what is wrong is red.
func (a *app) attention(c *v1.Cluster) table.Cell {
	s := c.GetStatus()
	if expires := s.GetTokenExpires(); fleet.ClusterState(s.GetState()) == fleet.ClusterPending {
		if said := a.tokenSays(expires); expires != nil && expires.AsTime().After(a.Now()) {
			return text(said)
		}
		return colored(table.Red, a.tokenSays(expires))
	}
	said := ""
	if n := s.GetAttention(); n != nil {
		words, known := a.attentionSays(c.GetMetadata().GetName(), n)
		said = words
		if !known {
			said = n.GetCode()
		}
	}
	if troubles := troubles(s); len(troubles) > 0 {
		all := make([]string, 0, len(troubles)+1)
		for _, c := range troubles {
			all = append(all, a.condition(c))
		}
		if said != "" {
			all = append(all, said)
		}
		if then := heardThen(s); then != "" { // what is said by the hub is as of now
			all = []string{strings.TrimPrefix(said+"; "+then+strings.Join(all[:len(troubles)], "; "), "; ")}
		}
		return colored(table.Red, strings.Join(all, "; "))
	}
	if said == "" {
		return text("-")
	}
	return colored(table.Red, said)
}

// stops is what a person should look at, what somebody holds there, and what keeps its revision.
func (a *app) stops(c *v1.Cluster) table.Cell {
	cell, s := a.attention(c), c.GetStatus()
	var all []string
	if l := s.GetLock(); l != nil {
		all, cell.Color = append(all, strings.TrimSuffix("locked by "+orDash(l.GetBy())+": "+l.GetReason(), ": ")), table.Red
	}
	if cell.Text != "-" {
		all = append(all, cell.Text)
	}
	if state := fleet.ClusterState(s.GetState()); c.GetSpec().GetCordoned() && state != fleet.ClusterCordoned && state != fleet.ClusterRemoving {
		all = append(all, "cordoned")
	}
	for _, h := range s.GetHolds() {
		said := "waits for a confirm"
		if h.GetKind() == kindFreeze {
			said = a.heldBy(h)
		}
		of := moduleName(h.GetProject(), h.GetModule())
		if h.GetObject() != nil {
			of += " " + objectText(h.GetObject())
		}
		all = append(all, strings.TrimPrefix(of+" "+said, " "))
	}
	for _, p := range s.GetPins() {
		all = append(all, a.pinned(p))
	}
	if len(all) == 0 {
		return cell
	}
	cell.Text = strings.Join(all, "; ")
	return cell
}

// pinned is "shop pinned r41 until 07-03".
func (a *app) pinned(p *v1.Pin) string {
	out := moduleName(p.GetProject(), p.GetModule()) + " pinned"
	if p.GetRevision() > 0 {
		out += " " + revision(p.GetRevision())
	}
	return out + a.until(p.GetUntil())
}

// agentVersion marks an agent of an older minor version than the hub with "!".
func agentVersion(agent, hub string) table.Cell {
	if agent == "" {
		return text("-")
	}
	if a, h := minor(agent), minor(hub); a > 0 && h > 0 && a < h {
		return colored(table.Yellow, agent+" !")
	}
	return text(agent)
}

// minor is major and minor of v1.4.2 as one number; 0 if it is no release.
func minor(v string) int {
	var major, minor, patch int
	if n, err := fmt.Sscanf(v, "v%d.%d.%d", &major, &minor, &patch); n < 2 && err != nil {
		return 0
	}
	return major*100_000 + minor + 1
}

var projectView = view[*v1.Project]{
	kind: "project", name: metaName[*v1.Project],
	table: func(a *app, items []*v1.Project) *table.Table {
		t := &table.Table{Columns: columns(left("NAME"), right("MODULES", "SECRETS"), left("AGE"), wide("LABELS"))}
		for _, p := range items {
			t.Add(text(p.GetMetadata().GetName()), num(p.GetModules()), num(p.GetSecrets()), text(a.since(p.GetMetadata().GetCreationTimestamp())),
				text(labelText(p.GetMetadata().GetLabels())))
		}
		return t
	},
}

var tokenView = view[*v1.Token]{
	kind: "token", name: metaName[*v1.Token],
	table: func(a *app, items []*v1.Token) *table.Table {
		t := &table.Table{Columns: left("ID", "CLUSTER", "STATE", "EXPIRES")}
		for _, k := range items {
			t.Add(text(k.GetMetadata().GetName()), text(k.GetCluster()), state(k.GetState()), text(a.stamp(k.GetExpires())))
		}
		return t
	},
}

var userView = view[*v1.User]{
	kind: "user", name: metaName[*v1.User],
	table: func(a *app, items []*v1.User) *table.Table {
		t := &table.Table{Columns: left("NAME", "ROLE", "TOKEN EXPIRES")}
		for _, u := range items {
			expires := "never"
			if u.GetExpires() != nil {
				expires = a.stamp(u.GetExpires())
			}
			t.Add(text(u.GetMetadata().GetName()), text(u.GetRole()), text(expires))
		}
		return t
	},
}

var certificateView = view[*v1.Certificate]{
	kind: "certificate", name: metaName[*v1.Certificate],
	table: func(a *app, items []*v1.Certificate) *table.Table {
		t := &table.Table{Columns: columns(left("SERIAL", "USER", "ROLE", "STATE", "EXPIRES"), wide("ISSUED"), left("REVOKED"), wide("BY", "REASON"))}
		for _, c := range items {
			revoked := "-"
			if c.GetRevoked() != nil {
				revoked = a.stamp(c.GetRevoked())
			}
			t.Add(text(c.GetMetadata().GetName()), text(orDash(c.GetUser())), text(orDash(c.GetRole())), state(c.GetState()), text(a.stamp(c.GetExpires())),
				text(a.stamp(c.GetIssued())), text(revoked), text(orDash(c.GetMetadata().GetChangedBy())), text(orDash(c.GetMetadata().GetChangeReason())))
		}
		return t
	},
}

// heldObjectText is the object that a hold is of.
func heldObjectText(h *v1.Hold) string {
	if h.GetObject() == nil {
		return "-"
	}
	return objectText(h.GetObject())
}

var holdView = view[*v1.Hold]{
	kind: "hold", name: (*v1.Hold).GetId,
	table: func(a *app, items []*v1.Hold) *table.Table {
		t := &table.Table{Columns: columns(left("ID", "KIND", "MODULE", "CLUSTER", "OBJECT"), right("ITEMS"), left("SOURCE", "BY", "SINCE", "UNTIL"), prose("REASON"))}
		for _, h := range items {
			t.Add(colored(table.Cyan, h.GetId()), text(h.GetKind()), text(orDash(holdSubject(h))),
				text(orDash(h.GetCluster())), text(heldObjectText(h)), num(itemCount(h)), text(holdSource(h)), text(orDash(h.GetBy())), text(a.since(h.GetSince())),
				text(a.clock(h.GetUntil())), text(orDash(holdSays(h))))
		}
		return t
	},
}
