package health

import (
	"maps"
	"slices"
)

func cassandraHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	if isTrue(o.spec, "stopped") || o.condition("Stopped").is("True") {
		return suspended("Stopped", "spec.stopped is true"), true
	}
	for _, busy := range []string{"ScalingUp", "ScalingDown", "Updating", "RollingRestart", "ReplacingNodes", "Resuming", "RefreshingSecrets"} {
		if c := o.condition(busy); c.is("True") {
			return progressing(nonEmpty(c.reason, busy), nonEmpty(c.message, busy)), true
		}
	}
	at := text(o.status, "cassandraOperatorProgress")
	for _, want := range []string{"Valid", "Healthy", "Ready"} {
		c := o.condition(want)
		switch {
		case c.is("False") && want != "Ready", c.is("False") && o.condition("Initialized").is("True"):
			return degraded(nonEmpty(c.reason, "Not"+want), nonEmpty(c.message, want+" is False")), true
		case c.is("True") && want == "Healthy" && (at == "" || at == "Ready"):
			return healthy(), true
		}
	}
	return progressing(nonEmpty(at, "NotReady"), "the datacenter is not ready yet"), true
}

// clusterOfDatacentersHealth is of the worst of a K8ssandraCluster's datacenters: its own condition says only that all were ready once.
func clusterOfDatacentersHealth(o *object) (Result, bool) {
	if o.empty() {
		return Result{}, false
	}
	var s signs
	s.failures(o)
	specs, said := map[string]map[string]any{}, mapOf(o.status, "datacenters")
	for _, x := range listOf(mapOf(o.spec, "cassandra"), "datacenters") {
		spec, _ := x.(map[string]any)
		name := text(mapOf(spec, "metadata"), "name")
		specs[name] = spec
		if mapOf(said, name, "cassandra") == nil {
			s.add(progressing("NoDatacenter", "datacenter "+name+" is not made yet"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		s.datacenter(o, name, specs[name])
	}
	if c := o.condition("CassandraInitialized"); !c.is("True") {
		s.add(progressing("NotInitialized", "not all datacenters were ready yet"))
	}
	r, _ := s.verdict()
	return r, true
}

// datacenter takes what a cluster says of one of its datacenters and what is beside it.
func (s *signs) datacenter(o *object, name string, spec map[string]any) {
	if leaves := text(mapOf(o.status, "datacenters", name), "decommissionProgress"); leaves != "" {
		s.add(progressing(leaves, "datacenter "+name+" is taken away"))
	}
	for _, key := range []string{"cassandra", "stargate", "reaper"} {
		part := object{status: mapOf(o.status, "datacenters", name, key), spec: spec, facts: o.facts}
		r, ok := Result{}, false
		if key == "cassandra" {
			r, ok = cassandraHealth(&part)
		} else if !part.empty() {
			r, ok = part.conditionsSay()
		}
		if r.Message = name + ": " + r.Message; ok {
			s.add(r)
		}
	}
}
