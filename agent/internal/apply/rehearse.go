package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
)

// Rehearse has the API server judge a new object without storing it. The object has its own name, for admission may go by
// that: the server asks all that may refuse a new object before it finds that there is one of the name.
func (c *Client) Rehearse(ctx context.Context, r Resource, namespace, name string, body []byte) error {
	err := kube.Denied(c.rest.Post().AbsPath(r.segments(namespace, "")...).SetHeader("Content-Type", runtime.ContentTypeJSON).
		Param("fieldManager", fleet.FieldManager).Param("fieldValidation", "Strict").Param("dryRun", "All").Body(body).Do(ctx).Error())
	if s := kube.StatusOf(err); kube.Is(err, kube.Exists) && s.Details != nil && s.Details.Name == name {
		return nil
	}
	return err
}

// IsService reports that an object has addresses and ports that no other one may have.
func IsService(id fleet.ObjectID) bool { return id.Group == "" && id.Kind == "Service" }

// Rehearsal is the object as it is to take the place of the live one: without the ports of nodes that it may have as soon as
// that is gone.
func (d *Desired) Rehearsal(marks Marks, live map[string]any) ([]byte, error) {
	if !IsService(d.id) {
		return d.Body(marks, Guard{}, false)
	}
	obj, _, err := d.marked(marks)
	if err != nil {
		return nil, err
	}
	releasePorts(obj, live)
	body, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.id, err)
	}
	return body, nil
}

// releasePorts drops the ports of nodes that the live Service has.
func releasePorts(service, live map[string]any) {
	held := portsOfNodes(live)
	spec, _ := service["spec"].(map[string]any)
	spec = shallow(spec)
	service["spec"] = spec
	drop := func(m map[string]any, field string) {
		if port, isInt := m[field].(int64); isInt && held[port] {
			delete(m, field)
		}
	}
	drop(spec, "healthCheckNodePort")
	ports, _ := spec["ports"].([]any)
	if len(ports) == 0 {
		return
	}
	ports = slices.Clone(ports)
	for i, x := range ports {
		if port, isMap := x.(map[string]any); isMap {
			port = shallow(port)
			drop(port, "nodePort")
			ports[i] = port
		}
	}
	spec["ports"] = ports
}

func portsOfNodes(service map[string]any) map[int64]bool {
	out := map[int64]bool{}
	spec, _ := service["spec"].(map[string]any)
	if port, isInt := spec["healthCheckNodePort"].(int64); isInt {
		out[port] = true
	}
	ports, _ := spec["ports"].([]any)
	for _, x := range ports {
		m, _ := x.(map[string]any)
		if port, isInt := m["nodePort"].(int64); isInt {
			out[port] = true
		}
	}
	return out
}

// AddressTaken says which other Service has an address that a Service asks for; empty: none has. A dry run does not tell.
func (c *Client) AddressTaken(ctx context.Context, service map[string]any) (string, error) {
	var want corev1.Service
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(service, &want); err != nil {
		return "", fmt.Errorf("service: %w", err)
	}
	mine := addressesOf(&want.Spec)
	if len(mine) == 0 {
		return "", nil
	}
	for next := ""; ; {
		raw, err := bytesOf(c.rest.Get().AbsPath("/api/v1/services").Param("limit", fmt.Sprint(pageSize)).Param("continue", next).Do(ctx))
		if err != nil {
			return "", err
		}
		var page corev1.ServiceList
		if err := readAs(raw, &page, &page.Kind, "List"); err != nil {
			return "", err
		}
		for i := range page.Items {
			other := &page.Items[i]
			ip := common(mine, addressesOf(&other.Spec))
			if ip != nil && (other.Namespace != want.Namespace || other.Name != want.Name) {
				return fmt.Sprintf("address %s is allocated to Service %s/%s", ip, other.Namespace, other.Name), nil
			}
		}
		if next = page.Continue; next == "" {
			return "", nil
		}
	}
}

func addressesOf(s *corev1.ServiceSpec) (out []net.IP) {
	for _, text := range append(slices.Clone(s.ClusterIPs), s.ClusterIP) {
		if ip := net.ParseIP(text); ip != nil {
			out = append(out, ip)
		}
	}
	return out
}

// common is the first address that is in both lists; nil: none.
func common(a, b []net.IP) net.IP {
	for _, ip := range a {
		if slices.ContainsFunc(b, ip.Equal) {
			return ip
		}
	}
	return nil
}

// RoomInQuota reports that a new object was refused only because a quota on the number of objects of the kind is full, and
// that there is room for it as soon as the one whose place it takes is gone. There is none where a quota was set below what
// is there already. Nobody can say so of Pods: a quota may have a scope, such as a priority, that the old one is not in.
func RoomInQuota(err error, r Resource) bool {
	s := kube.StatusOf(err)
	if s == nil || !kube.Is(err, kube.Forbidden) || r.Resource == podsResource {
		return false
	}
	_, after, exceeded := strings.Cut(s.Message, "exceeded quota: ")
	_, after, hasRequested := strings.Cut(after, ", requested: ")
	requested, after, hasUsed := strings.Cut(after, ", used: ")
	used, limited, hasLimited := strings.Cut(after, ", limited: ")
	if !exceeded || !hasRequested || !hasUsed || !hasLimited {
		return false
	}
	is, most := amounts(used), amounts(limited)
	for name := range amounts(requested) {
		have, known := is[name]
		limit, bounded := most[name]
		if !strings.HasPrefix(name, "count/") && name != r.Resource || !known || !bounded || have.Cmp(limit) > 0 {
			return false
		}
	}
	return true
}

// Crowded says which quota of a namespace would refuse a new object of the kind although another one has gone; empty: none. The
// refusal of a dry run names one quota only.
func (c *Client) Crowded(ctx context.Context, r Resource, namespace string) (string, error) {
	raw, err := bytesOf(c.rest.Get().AbsPath("/api/v1/namespaces/" + namespace + "/resourcequotas").Do(ctx))
	if err != nil {
		return "", err
	}
	var list corev1.ResourceQuotaList
	if err := readAs(raw, &list, &list.Kind, "List"); err != nil {
		return "", err
	}
	for i := range list.Items {
		q := &list.Items[i]
		for name, limit := range q.Status.Hard {
			used := q.Status.Used[name]
			over := used.Cmp(limit)
			if over > 0 && counts(string(name), r) || over == 0 && strings.HasPrefix(string(name), r.Resource+".") || ofSize(string(name), r) {
				return fmt.Sprintf("quota %s: %s are %s of %s", q.Name, name, used.String(), limit.String()), nil
			}
		}
	}
	return "", nil
}

// counts reports that a quota's resource is the number of objects of the kind, or of some of them, such as services.nodeports.
func counts(name string, r Resource) bool {
	return name == "count/"+r.GroupResource().String() || name == r.Resource || strings.HasPrefix(name, r.Resource+".")
}

// ofSize reports that a quota's resource is how large claims are, such as NAME.storageclass.storage.k8s.io/requests.storage: the
// new one may be larger than the one whose place it takes.
func ofSize(name string, r Resource) bool {
	return r.Group == "" && r.Resource == "persistentvolumeclaims" && strings.HasSuffix(name, "requests.storage")
}

const podsResource = "pods"

// amounts reads NAME=AMOUNT,NAME=AMOUNT.
func amounts(list string) map[string]resource.Quantity {
	out := map[string]resource.Quantity{}
	for _, x := range strings.Split(list, ",") {
		name, text, _ := strings.Cut(strings.TrimSpace(x), "=")
		amount, err := resource.ParseQuantity(text)
		if err != nil {
			continue
		}
		out[name] = amount
	}
	return out
}
