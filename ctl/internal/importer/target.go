package importer

import (
	"cmp"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
)

// targets become the placement. A cluster that one of them selects is meant; a placement has names and one selector.
func (d *rancher) targets(f field) {
	if d.Selector != nil {
		f.pass()
		return
	}
	p := d.m.Spec.Placement
	for _, t := range f.items() {
		t.at("name").pass()
		s, clusters, ok := d.target(t)
		if !ok {
			continue
		}
		for _, name := range clusters {
			d.place(t.at("clusterName"), name)
		}
		if s == nil {
			continue
		}
		either, ok := eitherOf(p.Selector, s)
		if !ok {
			t.drop("a placement has one selector: give the clusters that are meant a label of their own, and select by that")
			continue
		}
		p.Selector = either
	}
	if p.Selector == nil && len(p.Clusters) == 0 {
		f.parent("spec.targets").check("no clusters are named that are known here: the placement has a cluster by the name of default; say which with -l LABEL=VALUE or --cluster NAME")
		p.Clusters = []string{cmp.Or(d.Clusters[""], "default")}
	}
}

// target is what a target selects; false: it was said why not. All that a target of Fleet says has to be true of a cluster: where a part of
// that cannot be said here, the rest alone would take more clusters.
func (d *rancher) target(t field) (*v1.LabelSelector, []string, bool) {
	var clusters []string
	if name := t.at("clusterName"); name.set() {
		clusters = append(clusters, name.text())
	}
	s := t.at("clusterSelector").selector()
	if group := t.at("clusterGroup"); group.set() {
		doc, ok := d.find(fleetGroup, "ClusterGroup", "", group.text())
		if !ok {
			group.drop("put ClusterGroup %s into the files that are imported, or give its clusters a label and select by that", group.text())
			t.at("clusterGroupSelector").pass()
			return nil, nil, false
		}
		f := d.beside(doc)
		of := f.at("spec", "selector").selector()
		d.end(f)
		s = both(s, of)
	}
	if groups := t.at("clusterGroupSelector"); groups.set() {
		groups.drop("give the clusters of these groups a label and select by that")
		return nil, nil, false
	}
	if s != nil && len(clusters) > 0 {
		t.drop("a placement takes the named cluster and those of the selector, and not the one only if it is among the others: keep one of the two")
		return nil, nil, false
	}
	return s, clusters, s != nil || len(clusters) > 0
}

// both selects what two selectors select.
func both(a, b *v1.LabelSelector) *v1.LabelSelector {
	if a == nil || b == nil {
		if a == nil {
			return b
		}
		return a
	}
	out := proto.CloneOf(b)
	for key, value := range a.GetMatchLabels() {
		out.MatchExpressions = append(out.MatchExpressions, &v1.LabelSelectorRequirement{Key: key, Operator: "In", Values: []string{value}})
	}
	out.MatchExpressions = append(out.MatchExpressions, a.GetMatchExpressions()...)
	return out
}

// eitherOf selects what one of two selectors selects, where a selector can say so: one has all, or both ask for values of one label.
func eitherOf(a, b *v1.LabelSelector) (*v1.LabelSelector, bool) {
	switch {
	case a == nil || proto.Size(b) == 0:
		return b, true
	case proto.Size(a) == 0 || proto.Equal(a, b):
		return a, true
	}
	keyA, valuesA := oneLabel(a)
	keyB, valuesB := oneLabel(b)
	if keyA == "" || keyA != keyB {
		return nil, false
	}
	return &v1.LabelSelector{MatchExpressions: []*v1.LabelSelectorRequirement{{Key: keyA, Operator: "In", Values: union(valuesA, valuesB)}}}, true
}

// oneLabel is the label and the values that a selector asks for, if that is all that it does.
func oneLabel(s *v1.LabelSelector) (string, []string) {
	if len(s.GetMatchLabels()) == 1 && len(s.GetMatchExpressions()) == 0 {
		for key, value := range s.GetMatchLabels() {
			return key, []string{value}
		}
	}
	if e := s.GetMatchExpressions(); len(s.GetMatchLabels()) == 0 && len(e) == 1 && e[0].GetOperator() == "In" {
		return e[0].GetKey(), e[0].GetValues()
	}
	return "", nil
}
