package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// ToolOwner is the object by which a tool has others: an Application, a Kustomization, a HelmRelease, or a release. While it lives, the
// tool writes what it has again.
type ToolOwner struct {
	// Group and Kind of it, and a Version that it may have; a ToolRelease is no object, but Secrets.
	Group, Version, Kind string
	// Namespace is empty where nothing says it: it may be in any.
	Namespace, Name string
}

// ToolRelease is the kind of a ToolOwner that is a release of Helm.
const ToolRelease = "Helm release"

func (o ToolOwner) String() string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + o.Name
	}
	return o.Kind + " " + name
}

// holding is a tool that has an object, by what it left on it.
type holding struct {
	tool     string // of fleet.Tools; empty: none of these
	by, mark string
	owner    ToolOwner // zero: nothing says which
}

// managerTools are the tools by the field managers under which they write what they keep. What people write with kubectl by hand (edit,
// patch, scale, create) is nobody's who comes again.
var managerTools = map[string]string{
	"argocd-controller": fleet.TakeArgoCD, "argocd-application-controller": fleet.TakeArgoCD,
	"kustomize-controller": fleet.TakeFlux, "helm-controller": fleet.TakeFlux,
	"helm":    fleet.TakeHelm,
	"kubectl": fleet.TakeKubectl, "kubectl-client-side-apply": fleet.TakeKubectl,
}

// ToolOf is the tool that writes under a field manager; empty: none that is known.
func ToolOf(manager string) string { return managerTools[manager] }

// holdings are all tools that have an object.
func holdings(e Existing) (out []holding) {
	notes := func(key string) string { return cmp.Or(e.Annotations[key], e.Labels[key]) }
	for _, k := range marksOf(e.Labels, e.Annotations) {
		out = append(out, holdingOf(k, notes))
	}
	for _, o := range e.Owners {
		if o.Controller {
			out = append(out, holding{by: fmt.Sprintf("its controller, %s %q", o.Kind, o.Name), mark: "its owner reference"})
		}
	}
	applied := false
	for _, name := range e.Holders {
		h := holding{tool: ToolOf(name), by: cmp.Or(ToolOf(name), fmt.Sprintf("%q", name)), mark: "field manager " + name}
		if h.tool == fleet.TakeArgoCD { // which knows its own by a label that charts carry, too
			h.owner = applicationOf(notes("app.kubernetes.io/instance"))
		}
		applied = applied || h.tool != ""
		if !slices.ContainsFunc(out, func(x holding) bool { return h.tool != "" && x.tool == h.tool }) {
			out = append(out, h)
		}
	}
	if e.Annotations[fleet.LastApplied] != "" && !applied {
		out = append(out, holding{tool: fleet.TakeKubectl, by: "kubectl", mark: "annotation " + fleet.LastApplied})
	}
	return out
}

// holdingOf is the tool of a mark. What Flux installs with Helm carries Helm's marks, too, and is Flux's.
func holdingOf(k keeper, notes func(string) string) holding {
	h := holding{by: k.by, mark: k.mark}
	helm := ToolOwner{Group: "helm.toolkit.fluxcd.io", Version: "v2", Kind: "HelmRelease", Namespace: notes("helm.toolkit.fluxcd.io/namespace"), Name: notes("helm.toolkit.fluxcd.io/name")}
	switch _, key, _ := strings.Cut(k.mark, " "); {
	case strings.HasPrefix(key, "argocd.argoproj.io/"):
		app, _, _ := strings.Cut(k.value, ":")
		h.tool, h.owner = fleet.TakeArgoCD, applicationOf(app)
	case strings.HasPrefix(key, "kustomize.toolkit.fluxcd.io/"):
		h.tool = fleet.TakeFlux
		h.owner = ToolOwner{Group: "kustomize.toolkit.fluxcd.io", Version: "v1", Kind: "Kustomization", Namespace: notes("kustomize.toolkit.fluxcd.io/namespace"), Name: k.value}
	case strings.HasPrefix(key, "helm.toolkit.fluxcd.io/"), strings.HasPrefix(key, "meta.helm.sh/") && helm.Name != "":
		h.tool, h.owner = fleet.TakeFlux, helm
	case key == "fluxcd.io/sync-gc-mark":
		h.tool = fleet.TakeFlux
	case strings.HasPrefix(key, "meta.helm.sh/"):
		h.tool, h.owner = fleet.TakeHelm, ToolOwner{Kind: ToolRelease, Namespace: notes("meta.helm.sh/release-namespace"), Name: k.value}
	}
	return h
}

// applicationOf is the Application that Argo CD names on an object: NAME, or NAMESPACE_NAME where Applications are in any namespace.
func applicationOf(name string) ToolOwner {
	if name == "" {
		return ToolOwner{}
	}
	o := ToolOwner{Group: "argoproj.io", Version: "v1alpha1", Kind: "Application", Name: name}
	if namespace, rest, split := strings.Cut(name, "_"); split {
		o.Namespace, o.Name = namespace, rest
	}
	return o
}

// takeFrom says whether an object that tools have is taken from them, by a policy that names the tools.
func takeFrom(e Existing, from []string) Adoption {
	out := Adoption{Verdict: AdoptForced, By: e.Creator}
	for i, h := range holdings(e) {
		if i == 0 {
			out.By = h.by
		}
		if h.tool == "" || !slices.Contains(from, h.tool) {
			return Adoption{By: h.by, Whose: "belongs to " + h.by + " (" + h.mark + "), from which the policy takeFrom takes nothing", Remedy: takeRemedy(h)}
		}
		if h.owner.Name != "" && !slices.Contains(out.Owners, h.owner) {
			out.Owners = append(out.Owners, h.owner)
		}
	}
	return out
}

func takeRemedy(h holding) string {
	if h.tool == "" {
		return "have that let it go, or leave takeFrom out"
	}
	return "have that let it go, or list " + h.tool + " in takeFrom"
}

// StillHas refuses an object that is to be taken from a tool which still has it.
func (a Adoption) StillHas(o ToolOwner) Adoption {
	return Adoption{By: o.String(), Whose: "belongs to " + o.String() + ", which is still there and would write it again", Remedy: letGo(o)}
}

// letGo says how a tool lets go of what it has, and leaves it in the cluster.
func letGo(o ToolOwner) string {
	switch o.Kind {
	case "Application":
		return "delete the Application without its objects first (argocd app delete " + o.Name + " --cascade=false)"
	case "Kustomization":
		return "set spec.prune: false in it, and delete it first"
	case "HelmRelease":
		return "set spec.suspend: true in it, and delete it first"
	}
	// Which of the two Helm notes releases in is a matter of each command's HELM_DRIVER, and what it has noted in the other one stays there.
	return "first do kubectl delete secret,configmap " + namespaceFlag(o.Namespace) + " -l owner=helm,name=" + o.Name + ", which leaves its objects; helm uninstall does not"
}

func namespaceFlag(namespace string) string {
	if namespace == "" {
		return "-A"
	}
	return "-n " + namespace
}
