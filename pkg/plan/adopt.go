package plan

import (
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// Existing is what a live object says of itself that no record of ours has by its UID.
type Existing struct {
	Labels, Annotations map[string]string
	Owners              []OwnerReference
	// Appliers are the managers beside ours that apply it.
	Appliers []string
	// Holders are the managers beside ours that apply any of it but its metadata, and those of tools that are known.
	Holders []string
	// Creator is the manager that wrote first.
	Creator string
	// Proof is what its managedFields prove.
	Proof Proof
}

// OwnerReference is an object that another one goes with.
type OwnerReference struct {
	Kind, Name string
	Controller bool
}

// Proof is what an object's managedFields prove of our field manager.
type Proof struct {
	// Applied says that our manager has fields of the object.
	Applied bool
	// Marked says that both marks are among them: whoever copies an object's labels and annotations writes them himself.
	Marked bool
}

// Claimant is the module that lists an object, in a cluster, for a hub.
type Claimant struct {
	Module          fleet.ModuleRef
	Hub, ClusterUID string
	// Hubs are those of the lineages, one after the other. What was written for one that the agent does not belong to any more carries the
	// mark of that until it is written again.
	Hubs []string
	// From is the module that handed the object over: what it wrote carries its mark until Module writes it. Zero: none did.
	From fleet.ModuleRef
}

// After is the claimant of the object of a record; nil: there is none. What was written in a lineage carries the mark of its hub, or of a later
// one: that of an earlier one is another agent's, which the cluster has for that hub by now.
func (c Claimant) After(r *Record) Claimant {
	if r == nil {
		return c
	}
	c.From = r.From
	if r.State == Owned && !r.Found && r.Lineage > 0 {
		c.Hubs = c.Hubs[min(r.Lineage-1, uint64(len(c.Hubs))):]
	}
	return c
}

// own reports that a mark is the module's, or that of the one which handed the object over.
func (c Claimant) own(mark fleet.ModuleRef) bool {
	return mark != fleet.ModuleRef{} && (mark == c.Module || mark == c.From)
}

// Marked reports that the label of a hub is on an object, of one that the agent belongs to or did.
func (c Claimant) Marked(labels map[string]string) bool {
	hub := labels[fleet.HubLabel]
	return hub != "" && (hub == c.Hub || slices.Contains(c.Hubs, hub))
}

// Mark reads the owner mark of an object: whose it is, and whether it was written for the object with this identity.
func (c Claimant) Mark(annotations map[string]string, id fleet.ObjectID) (of fleet.ModuleRef, exact bool) {
	mark := annotations[fleet.OwnerAnnotation]
	of, uid, ok := fleet.ParseOwnerMark(mark)
	if !ok || uid != c.ClusterUID {
		return fleet.ModuleRef{}, false
	}
	return of, mark == fleet.OwnerMark(of, uid, id)
}

// Proven reports that a live object is one that the module wrote, or the one that handed it over, by nothing but what stands
// on it: both marks, written by our manager, for this very object.
func (c Claimant) Proven(id fleet.ObjectID, labels, annotations map[string]string, p Proof) bool {
	of, exact := c.Mark(annotations, id)
	return exact && c.own(of) && c.Marked(labels) && p.Applied && p.Marked
}

// AdoptVerdict is what is to be done about an object that is there already.
type AdoptVerdict int

// Verdicts.
const (
	// AdoptRefuse: it is somebody else's.
	AdoptRefuse AdoptVerdict = iota
	// AdoptOwn: it is proven to be the module's.
	AdoptOwn
	// AdoptAgain: our manager wrote it once and let it go; its fields are ours, those of others are not.
	AdoptAgain
	// AdoptIfEqual: it may be taken if it is as desired.
	AdoptIfEqual
	// AdoptForced: it is taken whatever it says.
	AdoptForced
)

// Adoption is a verdict, with a sentence that says whose the object is, and what makes it the module's.
type Adoption struct {
	Verdict AdoptVerdict
	// By names who has the object.
	By            string
	Whose, Remedy string
	// Owners are what the tools have it by from which it is taken: while one of them is there, it is theirs.
	Owners []ToolOwner
}

// Adopt says whether a module takes over an object that exists. policies are the module's, id the live identity.
func Adopt(c Claimant, id fleet.ObjectID, e Existing, policies []fleet.Policy, resolved fleet.Policy) Adoption {
	if c.Proven(id, e.Labels, e.Annotations, e.Proof) {
		return Adoption{Verdict: AdoptOwn}
	}
	always, limited := resolved.Adopt == fleet.AdoptAlways, false
	if always && len(resolved.TakeFrom) > 0 {
		always, limited = false, true
	}
	of, exact := c.Mark(e.Annotations, id)
	hub, marked := e.Labels[fleet.HubLabel]
	switch tool, has := toolOf(e); {
	case marked && !c.Marked(e.Labels):
		return unless(always, Adoption{By: "towline", Whose: fmt.Sprintf("is managed by Towline for the hub %q", hub),
			Remedy: "have that hub let it go, or set the policy adopt: Always for it, without takeFrom"})
	case exact && of != c.Module && e.Proof.Applied && !marked:
		return unless(always, Adoption{By: of.Display(), Whose: "carries the owner mark of module " + of.Display() + ", without its label",
			Remedy: "remove the annotation " + fleet.OwnerAnnotation + ", or set the policy adopt: Always for it"})
	case exact && of != c.Module && e.Proof.Applied:
		return Adoption{By: of.Display(), Whose: "belongs to module " + of.Display(), Remedy: "take it out of one of the two modules"}
	case limited:
		return takeFrom(e, resolved.TakeFrom)
	case has && tool.controller:
		named := namesKind(policies, id, func(p fleet.Policy) bool { return p.Adopt == fleet.AdoptAlways })
		return unless(always && named, Adoption{By: tool.by, Whose: "is " + tool.by,
			Remedy: "leave it to its controller, or set the policy adopt: Always with its kind in match.kinds"})
	case has:
		return unless(always, Adoption{By: tool.by, Whose: "belongs to " + tool.by + " (" + tool.mark + ")",
			Remedy: "have that let it go, or set the policy adopt: Always for it"})
	case always:
		return Adoption{Verdict: AdoptForced, By: e.Creator}
	case resolved.Adopt == fleet.AdoptNever:
		return Adoption{By: e.Creator, Whose: e.madeBy(), Remedy: "delete it, or set the policy adopt: IfNoDiff or Always"}
	case e.Proof.Applied && (exact || of == fleet.ModuleRef{}):
		return Adoption{Verdict: AdoptAgain, By: e.Creator}
	}
	return Adoption{Verdict: AdoptIfEqual, By: e.Creator, Whose: e.madeBy(), Remedy: "make them equal, delete it, or set the policy adopt: Always"}
}

func unless(allowed bool, a Adoption) Adoption {
	if allowed {
		a.Verdict = AdoptForced
	}
	return a
}

func (e Existing) madeBy() string {
	if mark := e.Annotations[fleet.OwnerAnnotation]; mark != "" {
		return fmt.Sprintf("exists and carries the owner mark %q of another object", mark)
	}
	return fmt.Sprintf("exists and was made by %q", e.Creator)
}

// keeper is who keeps an object as it is, or takes it away, beside us.
type keeper struct {
	by, mark, value string
	controller      bool
}

// toolOf finds who else answers for the object: its controller, or a tool by the marks that it leaves.
func toolOf(e Existing) (keeper, bool) {
	for _, o := range e.Owners {
		if o.Controller {
			return keeper{by: fmt.Sprintf("controlled by %s %q", o.Kind, o.Name), controller: true}, true
		}
		if o.Kind == "AppliedManifestWork" {
			return keeper{by: fmt.Sprintf("Open Cluster Management's work %q", o.Name), mark: "its owner reference"}, true
		}
	}
	if list := marksOf(e.Labels, e.Annotations); len(list) > 0 {
		return list[0], true
	}
	for _, name := range e.Appliers {
		if Deploys(name) {
			return keeper{by: deployers[name], mark: "field manager " + name}, true
		}
	}
	return keeper{}, false
}

// deployers are tools by the field managers under which they write what they keep, and nothing else. The label by which Argo CD
// knows its own, app.kubernetes.io/instance, may be anybody's.
var deployers = map[string]string{"argocd-controller": "Argo CD", "argocd-application-controller": "Argo CD"}

// ByHand reports that a field manager is kubectl: what a person, or a script that a module takes the place of, applied is
// nobody's who would miss it.
func ByHand(manager string) bool { return strings.HasPrefix(manager, "kubectl") }

// Deploys reports that a field manager is of a tool that writes nothing but what it keeps.
func Deploys(manager string) bool { return deployers[manager] != "" }

// markers are all who leave marks on what they keep.
var markers = slices.Concat(tools, serverMarks)

// marksOf are the marks of tools on an object. One that says false is of somebody who took the object from the tool.
func marksOf(labels, annotations map[string]string) (out []keeper) {
	for _, t := range markers {
		if v, ok := labels[t.key]; ok && v != "false" {
			out = append(out, keeper{by: t.named(v), mark: "label " + t.key, value: v})
		}
		if v, ok := annotations[t.key]; ok && v != "false" {
			out = append(out, keeper{by: t.named(v), mark: "annotation " + t.key, value: v})
		}
	}
	return out
}

// tool is a label or an annotation by which a tool knows the objects that it keeps and deletes.
type tool struct{ key, name string }

func (t tool) named(value string) string {
	if value == "" || value == "true" {
		return t.name
	}
	return fmt.Sprintf("%s %q", t.name, value)
}

// InstanceMarks are labels and annotations that say which release, Kustomization or Application keeps an object. They go when a module
// takes it: a tool that has it again puts them on again.
var InstanceMarks = []string{"meta.helm.sh/release-name", "meta.helm.sh/release-namespace", "argocd.argoproj.io/tracking-id",
	"argocd.argoproj.io/instance", "kustomize.toolkit.fluxcd.io/name", "kustomize.toolkit.fluxcd.io/namespace",
	"helm.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/namespace"}

// tools are named by labels and annotations that nothing but the tool itself has a use for. What charts and people write,
// too, such as app.kubernetes.io/managed-by and app.kubernetes.io/instance, proves nothing.
var tools = []tool{
	{"meta.helm.sh/release-name", "Helm release"},
	{"argocd.argoproj.io/tracking-id", "Argo CD's application"},
	{"argocd.argoproj.io/instance", "Argo CD's application"},
	{"kustomize.toolkit.fluxcd.io/name", "Flux's Kustomization"},
	{"helm.toolkit.fluxcd.io/name", "Flux's HelmRelease"},
	{"fluxcd.io/sync-gc-mark", "Flux"},
	{"objectset.rio.cattle.io/hash", "Rancher's object set"},
	{"objectset.rio.cattle.io/id", "Rancher's object set"},
	{"fleet.cattle.io/bundle-id", "Rancher Fleet's bundle"},
	{"kapp.k14s.io/app", "kapp's app"},
	{"app.oam.dev/name", "KubeVela's application"},
	{"work.karmada.io/name", "Karmada's work"},
	{"karmada.io/managed", "Karmada"},
	{"projectsveltos.io/reference-name", "Sveltos' resource"},
	{"configsync.gke.io/resource-id", "Config Sync"},
	{"configmanagement.gke.io/managed", "Config Sync"},
	{"config.k8s.io/owning-inventory", "the inventory"},
	{"applyset.kubernetes.io/part-of", "the apply set"},
	{"olm.owner", "Operator Lifecycle Manager's"},
	{"olm.managed", "Operator Lifecycle Manager"},
	{"cert-manager.io/certificate-name", "cert-manager's Certificate"},
	{"reconcile.external-secrets.io/managed", "External Secrets"},
	{"generate.kyverno.io/policy-name", "Kyverno's policy"},
	{"addonmanager.kubernetes.io/mode", "the cluster's add-on manager, mode"},
}
