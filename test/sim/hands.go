package sim

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Replace writes an object, as somebody who is no agent.
func (s *Server) Replace(name string, o *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(resources, func(r resource) bool { return r.Resource == name })
	old := s.objects[name][o.GetNamespace()+"/"+o.GetName()]
	q := request{resource: resources[i], namespace: o.GetNamespace(), name: o.GetName()}
	if old != nil {
		o.SetResourceVersion("")
	}
	next, err := s.updated(&q, old, o.DeepCopy(), "somebody")
	if err == nil {
		s.put(resources[i], old, next, 0)
	}
}

// Drop deletes an object, as somebody who is no agent.
func (s *Server) Drop(name, namespace, object string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(resources, func(r resource) bool { return r.Resource == name })
	q := request{resource: resources[i], namespace: namespace, name: object}
	_, _ = s.remove(&q, s.objects[name][namespace+"/"+object], false)
}
