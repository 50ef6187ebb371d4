package counts

import "towline.dev/towline/pkg/fleet"

// View is the index while nothing changes in it.
type View struct{ x *Index }

// Module is the sum of a module; false: no cluster has it.
func (v *View) Module(ref fleet.ModuleRef) (Module, bool) {
	m, ok := v.x.modules[ref]
	if !ok {
		return Module{}, false
	}
	return m.sum, true
}

// Cluster is the sum of a cluster.
func (v *View) Cluster(c fleet.ClusterName) Cluster {
	if k, ok := v.x.clusters[c]; ok {
		return k.sum
	}
	return Cluster{}
}

// Cell is how a module stands in a cluster; false: the cluster does not have it.
func (v *View) Cell(c fleet.ClusterName, ref fleet.ModuleRef) (Cell, bool) {
	k, ok := v.x.clusters[c]
	if !ok {
		return Cell{}, false
	}
	cell, ok := k.cells[ref]
	if !ok {
		return Cell{}, false
	}
	return *cell, true
}

// Clusters are all that have any module, sorted. Like every list of a view it is valid as long as that, and not to be changed.
func (v *View) Clusters() []fleet.ClusterName { return v.x.names }

// Modules are all that any cluster has, sorted.
func (v *View) Modules() []fleet.ModuleRef { return v.x.refs }

// ClustersOf are those that have a module, sorted.
func (v *View) ClustersOf(ref fleet.ModuleRef) []fleet.ClusterName {
	if m, ok := v.x.modules[ref]; ok {
		return m.clusters
	}
	return nil
}

// ModulesIn are those that a cluster has, sorted.
func (v *View) ModulesIn(c fleet.ClusterName) []fleet.ModuleRef {
	if k, ok := v.x.clusters[c]; ok {
		return k.refs
	}
	return nil
}
