package fleet

import (
	"fmt"
	"time"
)

// An agent is installed in AgentNamespace; its Lease, workload, identity and cluster-wide permissions are called AgentName.
const (
	AgentNamespace = "towline-system"
	AgentName      = "towline-agent"
	// agentModules is the ClusterRole of what a restricted agent may write for modules.
	agentModules = "towline-agent-modules"
)

// MaxReconnect is the longest that an agent waits between two tries to reach its hub, unless it is told otherwise. Who waits for agents
// that are to come back has to wait for longer.
const MaxReconnect = time.Minute

// ofRBAC reports that the group has the roles and bindings of the API server: its own group, and the one as which OpenShift shows the
// same objects.
func ofRBAC(group string) bool {
	return group == "rbac.authorization.k8s.io" || group == "authorization.openshift.io"
}

// OfAgent says why no module may hold an object that belongs to the agent of a namespace; empty: it does not. A module
// that changed it could stop the agent, or give it what its cluster does not.
func OfAgent(id ObjectID, namespace string) string {
	switch {
	case id.Namespace == namespace, NamespaceOf(id) == namespace:
		return fmt.Sprintf("namespace %s belongs to the agent: choose another", namespace)
	case ofRBAC(id.Group) && (id.Kind == "ClusterRole" || id.Kind == "ClusterRoleBinding") && (id.Name == AgentName || id.Name == agentModules):
		return "belongs to the agent: choose another name"
	}
	return ""
}

// NamespaceOf is the namespace that goes with an object, and all that is in it; empty: none does. It is that of a Namespace, and that of a
// Project, as which OpenShift shows the Namespace of its name: who deletes the one deletes the other.
func NamespaceOf(id ObjectID) string {
	switch (ObjectID{Group: id.Group, Kind: id.Kind}) {
	case ObjectID{Kind: "Namespace"}, ObjectID{Group: "project.openshift.io", Kind: "Project"}:
		return id.Name
	}
	return ""
}

// IsBinding reports that objects of the kind grant something to identities.
func IsBinding(id ObjectID) bool {
	return ofRBAC(id.Group) && (id.Kind == "RoleBinding" || id.Kind == "ClusterRoleBinding")
}

// BindsAgent says why no module may hold a binding that grants something to the agent of a namespace by name; empty: it
// does not.
func BindsAgent(id ObjectID, object map[string]any, namespace string) string {
	if !IsBinding(id) {
		return ""
	}
	subjects, _ := object["subjects"].([]any)
	for _, s := range subjects {
		subject, _ := s.(map[string]any)
		if isAgent(subject, namespace) {
			return bindsAgent(namespace)
		}
	}
	for field, kind := range map[string]string{"userNames": "User", "groupNames": "Group"} { // of OpenShift's
		names, _ := object[field].([]any)
		for _, name := range names {
			if isAgent(map[string]any{"kind": kind, "name": name}, namespace) {
				return bindsAgent(namespace)
			}
		}
	}
	return ""
}

// isAgent reports that a subject of a binding is the agent of a namespace.
func isAgent(subject map[string]any, namespace string) bool {
	name := subject["name"]
	switch subject["kind"] {
	case "ServiceAccount":
		return name == AgentName && subject["namespace"] == namespace
	case "User", "SystemUser":
		return name == "system:serviceaccount:"+namespace+":"+AgentName
	case "Group", "SystemGroup":
		return name == "system:serviceaccounts:"+namespace
	}
	return false
}

func bindsAgent(namespace string) string {
	return fmt.Sprintf("binds the agent's own identity, ServiceAccount %s/%s: no module may grant it anything", namespace, AgentName)
}
