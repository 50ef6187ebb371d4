package importer

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "towline.dev/towline/gen/towline/v1"
)

// patches makes patches of a kustomization those of an override of every cluster.
func (d *draft) patches(f field) {
	o := &v1.Override{Selector: &v1.LabelSelector{}}
	for _, item := range f.items() {
		if p := d.patch(item); p != nil {
			o.Patches = append(o.Patches, p)
		}
	}
	if len(o.Patches) > 0 {
		d.m.Spec.Overrides = append(d.m.Spec.Overrides, o)
	}
}

// patch reads one; nil: it cannot be said, and was named. One that would change other objects than its own is not carried over.
func (d *draft) patch(f field) *v1.Patch {
	t := f.at("target")
	switch {
	case f.at("path").set():
		f.drop("put what the file %s has into patches of an override", f.at("path").text())
		return nil
	case t.at("annotationSelector").set():
		f.drop("a patch selects by labels: give the objects one, or name them")
		return nil
	}
	f.at("options").drop("a patch changes no name and no kind")
	out := &v1.Patch{Patch: f.at("patch").text()}
	if !t.set() {
		return out
	}
	out.Target = &v1.PatchTarget{Group: t.at("group").text(), Version: t.at("version").text(), Kind: t.at("kind").text(), Namespace: t.at("namespace").text(), Name: t.at("name").text()}
	labels := t.at("labelSelector")
	if !labels.set() {
		return out
	}
	s, err := metav1.ParseToLabelSelector(labels.text())
	if err != nil {
		f.t.fail(labels.n, labels.path, "%v", err)
		return nil
	}
	out.Target.LabelSelector = SelectorOf(s)
	return out
}

// SelectorOf is a selector of Kubernetes.
func SelectorOf(s *metav1.LabelSelector) *v1.LabelSelector {
	out := &v1.LabelSelector{MatchLabels: s.MatchLabels}
	for _, e := range s.MatchExpressions {
		out.MatchExpressions = append(out.MatchExpressions, &v1.LabelSelectorRequirement{Key: e.Key, Operator: string(e.Operator), Values: e.Values})
	}
	return out
}
