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

const rbacGroup = "rbac.authorization.k8s.io"

// OfAgent says why no module may hold an object that belongs to the agent of a namespace; empty: it does not. A module
// that changed it could stop the agent, or give it what its cluster does not.
func OfAgent(id ObjectID, namespace string) string {
	switch {
	case id.Namespace == namespace, NamespaceOf(id) == namespace:
		return fmt.Sprintf("namespace %s belongs to the agent: choose another", namespace)
	case id.Group == rbacGroup && (id.Kind == "ClusterRole" || id.Kind == "ClusterRoleBinding") && (id.Name == AgentName || id.Name == agentModules):
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
	return id.Group == rbacGroup && (id.Kind == "RoleBinding" || id.Kind == "ClusterRoleBinding")
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
		kind, name := subject["kind"], subject["name"]
		switch {
		case kind == "ServiceAccount" && name == AgentName && subject["namespace"] == namespace,
			kind == "User" && name == "system:serviceaccount:"+namespace+":"+AgentName,
			kind == "Group" && name == "system:serviceaccounts:"+namespace:
			return fmt.Sprintf("binds the agent's own identity, ServiceAccount %s/%s: no module may grant it anything", namespace, AgentName)
		}
	}
	return ""
}
