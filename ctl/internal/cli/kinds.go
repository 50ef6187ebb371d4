package cli

import (
	"context"
	"maps"
	"slices"
	"strings"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// target is what one command speaks of: a kind and names of it.
type target struct {
	kind  *kind
	names []string
}

// targets reads KIND [NAME…] or KIND/NAME ….
func targets(args []string) ([]target, error) {
	if len(args) == 0 {
		return nil, usagef("which kind? %s", enumerate(plurals(kinds()), "or"))
	}
	if !strings.Contains(args[0], "/") {
		k, err := kindOf(args[0])
		if err != nil {
			return nil, err
		}
		return []target{{k, args[1:]}}, nil
	}
	var out []target
	for _, arg := range args {
		word, name, found := strings.Cut(arg, "/")
		if !found || name == "" {
			return nil, usagef("%q: write KIND/NAME, as in the others", arg)
		}
		k, err := kindOf(word)
		if err != nil {
			return nil, err
		}
		if len(out) > 0 && out[len(out)-1].kind.name == k.name {
			out[len(out)-1].names = append(out[len(out)-1].names, name)
			continue
		}
		out = append(out, target{k, []string{name}})
	}
	return out, nil
}

// one reads exactly one KIND NAME or KIND/NAME.
func one(args []string) (*kind, string, error) {
	found, err := targets(args)
	if err != nil {
		return nil, "", err
	}
	if len(found) != 1 || len(found[0].names) != 1 {
		return nil, "", usagef("name exactly one, as in module shop or module/shop")
	}
	return found[0].kind, found[0].names[0], nil
}

// bare is a name that may be written as `-o name` prints it, KIND/NAME, for a command that takes these kinds.
func bare(s string, kinds ...string) string {
	if word, name, found := strings.Cut(s, "/"); found && slices.Contains(kinds, word) {
		return name
	}
	return s
}

// moduleRef reads NAME in the project of -p, or PROJECT/NAME.
func (a *app) moduleRef(s string) (fleet.ModuleRef, error) {
	if !strings.Contains(s, "/") {
		s = a.project + "/" + s
	}
	ref, err := fleet.ParseModuleRef(s)
	if err != nil {
		return ref, &exitError{exitUsage, err}
	}
	return ref, a.inThatProject(s, ref.Project)
}

// inThatProject refuses a name with a project where -p asks for another one: one of the two is wrong, and what is in the other may go for that.
func (a *app) inThatProject(name, project string) error {
	if a.project != fleet.DefaultProject && project != a.project {
		return usagef("%s is of project %s, not of %s as -p says", name, project, a.project)
	}
	return nil
}

// rolloutRef reads MODULE, MODULE/N or PROJECT/MODULE/N; number 0 is the newest.
func (a *app) rolloutRef(s string) (fleet.RolloutID, error) {
	last := s[strings.LastIndexByte(s, '/')+1:]
	if last == s || strings.Trim(last, "0123456789") != "" {
		ref, err := a.moduleRef(s)
		return fleet.RolloutID{Module: ref}, err
	}
	if strings.Count(s, "/") == 1 {
		s = a.project + "/" + s
	}
	id, err := fleet.ParseRolloutID(s)
	if err != nil {
		return id, &exitError{exitUsage, err}
	}
	return id, a.inThatProject(s, id.Module.Project)
}

// collect gathers a sequence.
func collect[M any](seq func(func(M, error) bool)) ([]M, error) {
	var out []M
	for item, err := range seq {
		if err != nil {
			return nil, err
		}
		out = append(out, item)
	}
	return out, nil
}

// holds lists holds and joins an error to the context it was asked in.
func (a *app) holds(ctx context.Context, req *v1.ListHoldsRequest) ([]*v1.Hold, error) {
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	return collect(c.AllHolds(ctx, req))
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// eachName calls fn for every name, goes on after an error and joins them.
func eachName(names []string, fn func(name string) error) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, fn(name))
	}
	return joined(errs...)
}
