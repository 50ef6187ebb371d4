package localpolicy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Verb is what is to be done to an object.
type Verb string

// Verbs.
const (
	// Create makes an object that is not there.
	Create Verb = "create"
	// Update writes to one that is: an apply, a correction, an adoption.
	Update Verb = "update"
	// Delete deletes it.
	Delete Verb = "delete"
	// Recreate deletes it to make it again.
	Recreate Verb = "recreate"
	// Force takes fields, or the object, from who has them.
	Force Verb = "force"
	// Release takes Towline's marks off. The cluster keeps the object, so that only what stops every write stops it.
	Release Verb = "release"
	// Keep writes nothing: the object is there as it is wanted, and it is asked whether it would be accepted.
	Keep Verb = "keep"
)

// Request is one write.
type Request struct {
	Verb   Verb
	Module fleet.ModuleRef
	// ID is the object's identity in the cluster: without a namespace where it has none.
	ID fleet.ObjectID
	// Object is the object as it is to be written, and Bytes its length as JSON. Nil: its content does not change, or there is
	// none.
	Object map[string]any
	Bytes  int
	// Owned is how many objects the agent has in the cluster, for Create.
	Owned int
}

// Denial is why a write is not accepted.
type Denial struct {
	// Rule is the place in the file, such as namespaces.deny[0], and Name what the file calls it; empty: nothing.
	Rule, Name string
	// Message is a sentence without a full stop.
	Message string
	// Until is when that may end by itself; zero: it does not.
	Until time.Time
}

// String is the denial in one line.
func (d *Denial) String() string {
	rule := d.Rule
	if d.Name != "" {
		rule += " (" + d.Name + ")"
	}
	return "Denied by the cluster's policy: " + rule + ": " + d.Message
}

// Closed says why nothing may be written at all now; nil: it may. until is when that may change next; zero: never.
func (p *Policy) Closed(now time.Time) (d *Denial, until time.Time) {
	if p == nil {
		return nil, time.Time{}
	}
	if p.Freeze {
		return &Denial{Rule: "freeze", Message: "the cluster is frozen"}, time.Time{}
	}
	if p.gate == nil {
		return nil, time.Time{}
	}
	open, until := p.gate.Open(now)
	if open {
		return nil, until
	}
	message := "it is outside of the cluster's windows for changes"
	if !until.IsZero() {
		message += " until " + until.UTC().Format(time.RFC3339)
	}
	return &Denial{Rule: "windows", Message: message, Until: until}, until
}

// Budget is how many objects may be deleted in an hour; limited is false if that is not limited.
func (p *Policy) Budget() (perHour int, limited bool) {
	if p == nil || p.DeleteBudget == nil {
		return 0, false
	}
	return *p.DeleteBudget.PerHour, true
}

// LimitsObjects reports that Owned of a request counts.
func (p *Policy) LimitsObjects() bool { return p != nil && p.MaxObjects != nil }

// Judge says why a write is not accepted; nil: it is. What stops every write is for Closed to say, and the delete budget for who
// counts deletes.
func (p *Policy) Judge(r Request) *Denial {
	if p == nil || r.Verb == Release {
		return nil
	}
	for _, judge := range []func(Request) *Denial{p.judgeTenant, p.judgePlace, p.judgeKind, p.judgeVerb, p.JudgeContent} {
		if d := judge(r); d != nil {
			return d
		}
	}
	return nil
}

// JudgeRead says why a binding of a module may not read an object; nil: it may. It has to be of a namespace and a kind that are accepted.
func (p *Policy) JudgeRead(module fleet.ModuleRef, id fleet.ObjectID) *Denial {
	if p == nil {
		return nil
	}
	if at := slices.Index(p.DenyReads, "secrets"); at >= 0 && id.IsSecret() {
		return &Denial{Rule: fmt.Sprintf("denyReads[%d]", at), Message: "bindings do not read Secrets here"}
	}
	return p.Judge(Request{Verb: Keep, Module: module, ID: id})
}

func (p *Policy) judgeTenant(r Request) *Denial {
	if rule := p.Projects.refuses("projects", r.Module.Project); rule != "" {
		return &Denial{Rule: rule, Message: "modules of project " + r.Module.Project + " are not accepted"}
	}
	name := r.Module.Project + "/" + r.Module.Name
	if rule := p.Modules.refuses("modules", name); rule != "" {
		return &Denial{Rule: rule, Message: "module " + name + " is not accepted"}
	}
	return nil
}

// judgePlace judges the namespace. A Namespace itself goes by its own name; a Project, which is one by another kind, has to be accepted
// as what is in no namespace, too.
func (p *Policy) judgePlace(r Request) *Denial {
	if namespace := cmp.Or(r.ID.Namespace, fleet.NamespaceOf(r.ID)); namespace != "" {
		if rule := p.Namespaces.refuses("namespaces", namespace); rule != "" {
			return &Denial{Rule: rule, Message: "namespace " + namespace + " is not accepted"}
		}
		if r.ID.Namespace != "" || r.ID.Group == "" {
			return nil
		}
	}
	switch {
	case p.ClusterScoped == nil && (p.Namespaces == nil || p.Namespaces.Allow == nil):
		return nil
	case p.ClusterScoped == nil:
		return &Denial{Rule: "namespaces.allow", Message: "objects without a namespace are not accepted, for clusterScoped lists none"}
	case slices.ContainsFunc(p.ClusterScoped.Allow, func(m match) bool { return m.selects(r.ID) }):
		return nil
	}
	return &Denial{Rule: "clusterScoped.allow", Message: kindName(r.ID) + " " + r.ID.Name + ", which has no namespace, is not accepted"}
}

// judgeKind judges kind and verb. Other verbs than create, update and delete are more of one of these.
func (p *Policy) judgeKind(r Request) *Denial {
	if p.Kinds == nil {
		return nil
	}
	verb := r.Verb
	switch verb {
	case Recreate:
		verb = Delete
	case Force:
		verb = Update
	}
	known := false
	for i := range p.Kinds {
		k := &p.Kinds[i]
		if m := k.match(); !m.selects(r.ID) {
			continue
		}
		known = true
		if verb == Keep || k.Verbs == nil || slices.Contains(k.Verbs, "*") || slices.Contains(k.Verbs, string(verb)) {
			return nil
		}
	}
	if known {
		return &Denial{Rule: "kinds", Message: kindName(r.ID) + " is not accepted with the verb " + string(verb)}
	}
	return &Denial{Rule: "kinds", Message: kindName(r.ID) + " is none of the kinds that are accepted"}
}

func (p *Policy) judgeVerb(r Request) *Denial {
	switch r.Verb {
	case Create:
		if p.MaxObjects != nil && r.Owned >= *p.MaxObjects {
			return &Denial{Rule: "maxObjects", Message: fmt.Sprintf("the agent has %d objects in the cluster, and may have %d", r.Owned, *p.MaxObjects)}
		}
	case Force:
		if !p.Allow.ForceConflicts {
			return &Denial{Rule: "allow.forceConflicts", Message: "nothing may be taken from who has it"}
		}
	case Recreate:
		if !p.Allow.Recreate {
			return &Denial{Rule: "allow.recreate", Message: "nothing may be deleted to be made again"}
		}
		return p.judgeDelete(r)
	case Delete:
		return p.judgeDelete(r)
	}
	return nil
}

func (p *Policy) judgeDelete(r Request) *Denial {
	namespace := fleet.ObjectID{Kind: "Namespace", Name: fleet.NamespaceOf(r.ID)}
	for i := range p.Protected {
		if p.Protected[i].selects(r.ID) || namespace.Name != "" && p.Protected[i].selects(namespace) {
			return &Denial{Rule: fmt.Sprintf("protected[%d]", i), Message: "it is protected from being deleted"}
		}
	}
	switch {
	case r.ID.Group == "apiextensions.k8s.io" && r.ID.Kind == "CustomResourceDefinition" && !p.Allow.DeleteCRDs:
		return &Denial{Rule: "allow.deleteCRDs", Message: "no CustomResourceDefinition may be deleted"}
	case namespace.Name != "" && !p.Allow.DeleteNamespaces:
		return &Denial{Rule: "allow.deleteNamespaces", Message: "no Namespace may be deleted"}
	}
	return nil
}

// kindName is a kind with its group, as in deployments.apps.
func kindName(id fleet.ObjectID) string {
	return strings.TrimSuffix(id.Kind+"."+id.Group, ".")
}
