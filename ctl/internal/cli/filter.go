package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
)

// filterFlags are the flags of get that select; which kinds each selects of, the kinds say.
var filterFlags = []string{selectorFlag, "module", "cluster", "health", "kind", "namespace", "name", "reason", "drift", "revision", "filter", "active", "by", "since", "refused"}

const selectorFlag = "selector"

// selects are the kinds that a flag selects of.
func selects(flag string) string {
	return strings.Join(plurals(kindsWith(func(k *kind) bool { return slices.Contains(k.filters, flag) })), ", ")
}

var (
	healthStates = []string{string(fleet.HealthHealthy), string(fleet.HealthProgressing), string(fleet.HealthDegraded), string(fleet.HealthMissing),
		string(fleet.HealthTerminating), string(fleet.HealthSuspended), string(fleet.HealthUnknown)}
	driftStates = []string{string(fleet.DriftDrifted), string(fleet.DriftConflict), string(fleet.DriftIgnored), string(fleet.DriftHeld), string(fleet.DriftInSync)}
)

// checkFilters refuses what would select nothing, or not what was meant.
func (o *getOptions) checkFilters(cmd *cobra.Command, found []target) error {
	for _, flag := range filterFlags {
		if !cmd.Flags().Changed(flag) {
			continue
		}
		for _, t := range found {
			if !slices.Contains(t.kind.filters, flag) {
				return usagef("--%s selects no %s; it is for %s", flag, t.kind.plural, selects(flag))
			}
			if flag == selectorFlag && len(t.names) > 0 && !t.kind.namesAreModules {
				return usagef("get %s takes names or -l, not both", t.kind.plural)
			}
		}
	}
	if err := oneOf("--health", &o.filter.Health, healthStates); err != nil {
		return err
	}
	if o.filter.Drift != "*" {
		return oneOf("--drift", &o.filter.Drift, driftStates)
	}
	for _, t := range found {
		if len(t.names) == 1 && containsFold(driftStates, t.names[0]) {
			return usagef("--drift takes its state after an equals sign: --drift=%s", t.names[0])
		}
	}
	return nil
}

// oneOf checks a state, whose case does not count. Empty is any.
func oneOf(flag string, value *string, states []string) error {
	if *value == "" || containsFold(states, *value) {
		return nil
	}
	if near := resource.Nearest(*value, states); near != "" {
		return usagef("%s=%s: there is no such state; did you mean %s?", flag, *value, near)
	}
	return usagef("%s=%s: there is no such state; use one of %s", flag, *value, strings.Join(states, ", "))
}

func containsFold(list []string, s string) bool {
	return slices.ContainsFunc(list, func(x string) bool { return strings.EqualFold(x, s) })
}

// exist says that the module, the cluster or the object which was selected by does not exist, so that a wrong name is not
// read as a fleet in which nothing is wrong. It is asked when nothing was found. An object that is there and in another
// state than was asked for is no wrong name.
func (a *app) exist(ctx context.Context, o *getOptions, objects []string) error {
	if o.filter.Cluster != "" {
		if _, err := a.cluster(ctx, o.filter.Cluster); err != nil {
			return err
		}
	}
	if err := a.moduleExists(ctx, o); err != nil {
		return err
	}
	byState := o.filter.Health + o.filter.Drift + o.filter.Reason + o.filter.Expression
	if len(objects) > 0 && byState == "" {
		selected := ""
		if o.selector+o.revision+o.filter.Module+o.filter.Cluster+o.filter.Kind+o.filter.Namespace != "" {
			selected = " among those that the flags select"
		}
		return fleet.Errorf(fleet.ErrNotFound, "object %s: there is none of that name%s%s", objects[0], a.inProject(o), selected)
	}
	return nil
}

// moduleExists says that the module which was selected by does not exist; with -A a name alone is that of a module in any project.
func (a *app) moduleExists(ctx context.Context, o *getOptions) error {
	name := o.filter.Module
	switch {
	case name == "":
		return nil
	case !o.all || strings.Contains(name, "/"):
		_, err := a.module(ctx, name)
		return err
	}
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	for m, err := range c.AllModules(ctx, &v1.ListModulesRequest{}) {
		if err != nil || m.GetMetadata().GetName() == name {
			return err
		}
	}
	return fleet.Errorf(fleet.ErrNotFound, "module %s: there is none in any project", name)
}
