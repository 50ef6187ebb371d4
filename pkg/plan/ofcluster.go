package plan

import (
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// What a cluster makes for itself a module may list, and even take: it is equal where a manifest came out of the cluster. When such an
// object goes with a module, the cluster is without it until its maker sees that, or starts anew, or for good.

// OfEveryNamespace reports that the cluster itself makes the object in each namespace, and makes another one at once when it
// goes. What refers to the first is lost then: the tokens of all pods that run as the default ServiceAccount.
func OfEveryNamespace(id fleet.ObjectID) bool {
	return id.Group == "" && (id.Kind == "ServiceAccount" && id.Name == "default" || id.Kind == "ConfigMap" && id.Name == "kube-root-ca.crt")
}

// madeByCluster reports that the cluster makes the object whatever a module lists, and needs it: of a Node, which its kubelet
// registered, all pods go with it.
func madeByCluster(id fleet.ObjectID) bool { return OfEveryNamespace(id) || isNode(id) }

func isNode(id fleet.ObjectID) bool { return id.Group == "" && id.Kind == "Node" }

// ofCluster reports that the object is one by which the cluster itself lives: that by which all pods find the API server, by which API
// servers know whom to trust, the classes of what must run on each Node, or a Namespace of its own. One of these has nothing in it but what
// every namespace has, and the Leases by which Nodes show that they live.
func ofCluster(id fleet.ObjectID) bool {
	switch id {
	case fleet.ObjectID{Kind: "Service", Namespace: "default", Name: "kubernetes"},
		fleet.ObjectID{Kind: "Endpoints", Namespace: "default", Name: "kubernetes"},
		fleet.ObjectID{Group: "discovery.k8s.io", Kind: "EndpointSlice", Namespace: "default", Name: "kubernetes"},
		fleet.ObjectID{Group: "networking.k8s.io", Kind: "ServiceCIDR", Name: "kubernetes"},
		fleet.ObjectID{Kind: "ConfigMap", Namespace: "kube-system", Name: "extension-apiserver-authentication"},
		fleet.ObjectID{Kind: "ConfigMap", Namespace: "kube-system", Name: "kube-apiserver-legacy-service-account-token-tracking"}:
		return true
	}
	if id.Group == "scheduling.k8s.io" && id.Kind == "PriorityClass" { // the API server lets nobody else use the prefix, and deletes none
		return strings.HasPrefix(id.Name, "system-")
	}
	return TakesNamespace(id) && slices.Contains([]string{"default", "kube-system", "kube-public", "kube-node-lease"}, id.Name)
}

// bootstrapping is the label of the roles that the API server makes when it starts.
const bootstrapping = "kubernetes.io/bootstrapping"

// serverMarks are labels and annotations by which the API server knows what it makes: the roles of its own, the groups that it registers,
// its priorities, the addresses that it has given to Services, and by what it shows that it lives.
var serverMarks = []tool{
	{bootstrapping, "the API server, as one of its"},
	{"kube-aggregator.kubernetes.io/automanaged", "the API server, which registers it"},
	{"apf.kubernetes.io/autoupdate-spec", "the API server, which keeps its spec"},
	{"ipaddress.kubernetes.io/managed-by", "the API server's"},
	{"apiserver.kubernetes.io/identity", "the API server, as its"},
}

// ofServer reports that the API server made the object of a record, and needs it: it makes it again after a while, or at the next start only.
// The mark of its roles stands on copies of them, too, which are a module's own, so that it has to be noted in the record: it was there before
// a module took the object. What carries another one and is no object of the API server's it takes away itself, so that the mark alone tells,
// also where the manifest lists it and the record does not have it, for the agent lost its own or did not know the mark.
func ofServer(r Record, s Seen) bool {
	noted := slices.ContainsFunc(strings.Split(r.Keepers, keeperBreak), func(k string) bool {
		mark, _, _ := strings.Cut(k, "=")
		return isServerMark(mark)
	})
	return noted || slices.ContainsFunc(marksOf(s.Labels, s.Annotations), func(k keeper) bool {
		return isServerMark(k.mark) && !strings.HasSuffix(k.mark, " "+bootstrapping)
	})
}

// isServerMark reports that a keeper's mark is one of the API server's.
func isServerMark(mark string) bool {
	_, key, _ := strings.Cut(mark, " ")
	return slices.ContainsFunc(serverMarks, func(t tool) bool { return t.key == key })
}
