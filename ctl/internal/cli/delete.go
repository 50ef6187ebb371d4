package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/wire"
)

type deleteOptions struct {
	yes     bool
	orphan  bool
	cascade bool
	force   bool
	wait    bool
	timeout time.Duration
	reason  string
	files   []string
	// revision is that of trackers.
	revision string
	scope    scopeOptions
}

func (a *app) deleteCommand() *cobra.Command {
	o := &deleteOptions{}
	cmd := &cobra.Command{
		Use: "delete KIND NAME… | KIND/NAME… | -f FILE", Short: "Delete modules and what they have in the clusters, and other resources",
		Long: "Deletes modules with their objects in the clusters, clusters (their objects stay, as with `cluster remove`), projects, secrets,\n" +
			"catalogs (their modules stay, unless --cascade is said), users and join tokens. A tracker (MODULE@CLUSTER) is deleted by revision: what the policy keepLegacy keeps of it. On a terminal it says what goes and asks; elsewhere it needs --yes.",
		ValidArgsFunction: a.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := a.deleteTargets(o, args)
			if err != nil {
				return err
			}
			for _, t := range found {
				if err := o.fits(t); err != nil {
					return err
				}
			}
			if err := o.contradict(found); err != nil {
				return err
			}
			if err := a.oneByOne(cmd.Context(), o, found); err != nil {
				return err
			}
			if found, err = a.inOrder(cmd.Context(), found); err != nil {
				return err
			}
			return a.deleteAll(cmd.Context(), o, found)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&o.orphan, "orphan", false, "modules: leave the objects in the clusters, without our marks")
	f.BoolVar(&o.force, "force", false, "modules: delete them although modules that stay depend on them")
	f.BoolVar(&o.cascade, "cascade", false, "catalogs: delete their modules, too; without it they stay")
	f.BoolVar(&o.wait, "wait", true, "modules: wait until they are gone")
	f.DurationVar(&o.timeout, "timeout", 0, "give up waiting after this time, with exit code 4; 0: never")
	f.StringVarP(&o.reason, "message", "m", "", "why; recorded")
	f.StringVar(&o.revision, "revision", "", "trackers: the revision whose kept objects go, as r42")
	f.StringSliceVarP(&o.files, "filename", "f", nil, "delete what these files name")
	o.scope.flags(f, "secrets: the one")
	return cmd
}

// fits says what cannot be deleted so.
func (o *deleteOptions) fits(t target) error {
	switch {
	case t.kind.delete == nil:
		return usagef("%s cannot be deleted", t.kind.plural)
	case o.revision != "" && !t.kind.revisions:
		return usagef("--revision is for trackers, not %s", t.kind.plural)
	case o.scope != (scopeOptions{}) && !t.kind.scopes:
		return usagef("delete %s: --cluster and -l are for secrets", t.kind.plural)
	case len(t.names) == 0:
		return usagef("delete %s: name what to delete", t.kind.plural)
	}
	return nil
}

// contradict refuses --orphan beside --cascade of a catalog: that deletes what the modules have, and knows no other way.
func (o *deleteOptions) contradict(found []target) error {
	if !o.orphan || !o.cascade {
		return nil
	}
	for _, t := range found {
		if t.kind.cascades {
			return usagef("delete %s %s: --cascade deletes what its modules have in the clusters, and --orphan would leave that: delete it without --cascade, whereupon its modules stay, and then those: towline delete module … --orphan",
				t.kind.name, t.names[0])
		}
	}
	return nil
}

// oneByOne refuses to delete what modules are in beside modules that may not be gone by then: the hub would refuse it, for a cluster that leaves
// keeps what they have there for good. What is gone already is in nobody's way, so that a command can be given again.
func (a *app) oneByOne(ctx context.Context, o *deleteOptions, found []target) error {
	var lingers, in []target
	for _, t := range found {
		if t.kind.lingers != nil && t.kind.lingers(o) {
			lingers = append(lingers, t)
		}
		if t.kind.holdsModules {
			in = append(in, t)
		}
	}
	if len(lingers) == 0 || len(in) == 0 {
		return nil
	}
	first, err := a.firstThere(ctx, lingers)
	if err != nil || first == nil {
		return err
	}
	then := in[0]
	how := "leave out --wait=false, or delete that"
	if o.wait {
		how = "delete that"
	}
	return usagef("delete: %s %s is not gone when this is to delete %s %s, and nothing is deleted: %s with another command once it is gone; see: towline get %s",
		first.kind.name, first.names[0], then.kind.name, then.names[0], how, first.kind.plural)
}

// firstThere is the first of what is named that is there; nil: none is.
func (a *app) firstThere(ctx context.Context, found []target) (*target, error) {
	for _, t := range found {
		for _, name := range t.names {
			err := t.kind.there(a, ctx, name)
			switch {
			case err == nil, errors.Is(err, fleet.ErrCorrupt): // one that is damaged is there
				return &target{t.kind, []string{name}}, nil
			case !errors.Is(err, fleet.ErrNotFound):
				return nil, err
			}
		}
	}
	return nil, nil
}

// deleteAll deletes one after the other. What is not there is as it is to be, and where a file names it no error: a name may be misspelt. What
// cannot be deleted has those of the kinds after it stay: a cluster that left before its modules are gone would keep what they have there for good.
func (a *app) deleteAll(ctx context.Context, o *deleteOptions, found []target) error {
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	if err := a.noneNeeded(ctx, c, o, found); err != nil {
		return err
	}
	var errs []error
	var never []string // what an interrupt came before
	stays := false
	for i, t := range found {
		if stays && t.kind.name != found[i-1].kind.name {
			var left []string
			for _, t := range found[i:] {
				left = append(left, t.kind.name+" "+strings.Join(t.names, ", "))
			}
			errs = append(errs, becausef("not deleted, because of that: %s", strings.Join(left, "; ")))
			break
		}
		errs = append(errs, eachName(t.names, func(name string) error {
			if ctx.Err() != nil {
				never = append(never, t.kind.name+" "+strings.TrimPrefix(name, fleet.DefaultProject+"/"))
				return ctx.Err()
			}
			err := a.deleteOne(ctx, o, t.kind, name)
			if errors.Is(err, fleet.ErrNotFound) && len(o.files) > 0 {
				a.printf("%s/%s is not there\n", t.kind.name, strings.TrimPrefix(name, fleet.DefaultProject+"/"))
				return nil
			}
			stays = stays || err != nil && !errors.Is(err, fleet.ErrNotFound)
			return err
		}))
	}
	if len(never) > 0 {
		errs = append(errs, fmt.Errorf("not deleted: %s", strings.Join(never, ", ")))
	}
	return joined(errs...)
}

// noneNeeded refuses to begin with several of which one is a module that others need, which stay.
func (a *app) noneNeeded(ctx context.Context, c *client.Client, o *deleteOptions, found []target) error {
	goes, names := map[fleet.ModuleRef]bool{}, 0
	for _, t := range found {
		names += len(t.names)
		for _, name := range t.names {
			if t.kind.ordered == nil {
				continue
			}
			ref, err := a.moduleRef(name)
			if err != nil {
				return err
			}
			goes[ref] = true
		}
	}
	if len(goes) == 0 || names < 2 || o.force {
		return nil
	}
	all, err := collect(c.AllModules(ctx, &v1.ListModulesRequest{}))
	if err != nil {
		return err
	}
	var leave, stay []*v1.Module
	for _, m := range all {
		switch {
		case m.GetMetadata().GetDeletionTimestamp() != nil:
		case goes[refOfModule(m)]:
			leave = append(leave, m)
		default:
			stay = append(stay, m)
		}
	}
	return neededBy(leave, stay, "is not deleted, and nothing of this command: module %s, which stays, depends on it; delete that in the same command, take it out of dependsOn there, or insist: --force")
}

func (a *app) deleteTargets(o *deleteOptions, args []string) ([]target, error) {
	if len(o.files) == 0 {
		return targets(args)
	}
	if len(args) > 0 {
		return nil, usagef("delete takes names or -f, not both")
	}
	found, err := resource.Load(o.files, resource.Options{Stdin: a.In, Kinds: inFiles()})
	if err != nil {
		return nil, err
	}
	if err := a.settleProjects(found); err != nil {
		return nil, err
	}
	var out []target
	for _, r := range found {
		k, err := kindOf(r.Kind)
		if err != nil {
			return nil, err
		}
		name := r.Meta().GetName()
		if k.project {
			name = r.Meta().GetProject() + "/" + name
		}
		out = append(out, target{k, []string{name}})
	}
	return out, nil
}

// inOrder has catalogs and modules go first, and projects last, puts those into one target that are of a kind which has an order, and sorts
// them by it.
func (a *app) inOrder(ctx context.Context, found []target) ([]target, error) {
	const notApplied = 2 // nothing but a project goes before its secrets, and no secret before the modules that need it
	slices.SortStableFunc(found, func(x, y target) int {
		return cmp.Or(y.kind.applied, notApplied) - cmp.Or(x.kind.applied, notApplied)
	})
	var out []target
	for _, t := range found {
		i := slices.IndexFunc(out, func(x target) bool { return t.kind.ordered != nil && x.kind.name == t.kind.name })
		if i < 0 {
			out = append(out, t)
			continue
		}
		out[i].names = slices.Concat(out[i].names, t.names)
	}
	for i, t := range out {
		if t.kind.ordered == nil || len(t.names) < 2 {
			continue
		}
		c, err := a.hub(ctx)
		if err != nil {
			return nil, err
		}
		if out[i].names, err = t.kind.ordered(a, ctx, c, t.names); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// dependentsFirst sorts modules so that those which depend on others of them come before these.
func (a *app) dependentsFirst(ctx context.Context, c *client.Client, names []string) ([]string, error) {
	refs, dependsOn := make([]fleet.ModuleRef, len(names)), map[fleet.ModuleRef][]fleet.ModuleRef{}
	for i, name := range names {
		var err error
		if refs[i], err = a.moduleRef(name); err != nil {
			return nil, err
		}
		if m, err := c.Modules.GetModule(ctx, &v1.GetModuleRequest{Project: refs[i].Project, Name: refs[i].Name}); err == nil { // else its deletion says why
			dependsOn[refs[i]] = wire.DependenciesOf(refs[i], m.GetModule().GetSpec())
		}
	}
	var out []string
	for _, ref := range dependentsBefore(refs, dependsOn) {
		out = append(out, ref.String())
	}
	return out, nil
}

// dependentsBefore sorts modules so that none comes before one that depends on it; of those in a circle some do.
func dependentsBefore(refs []fleet.ModuleRef, dependsOn map[fleet.ModuleRef][]fleet.ModuleRef) (out []fleet.ModuleRef) {
	seen := map[fleet.ModuleRef]bool{}
	var visit func(fleet.ModuleRef)
	visit = func(ref fleet.ModuleRef) {
		if seen[ref] {
			return
		}
		seen[ref] = true
		for _, other := range refs {
			if slices.Contains(dependsOn[other], ref) {
				visit(other)
			}
		}
		out = append(out, ref)
	}
	for _, ref := range refs {
		visit(ref)
	}
	return out
}

func (a *app) deleteOne(ctx context.Context, o *deleteOptions, k *kind, name string) error {
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	return k.delete(a, ctx, c, o, name)
}

func (a *app) deleteCluster(ctx context.Context, c *client.Client, o *deleteOptions, name string) error {
	found, err := a.cluster(ctx, name)
	if err != nil && !errors.Is(err, fleet.ErrCorrupt) {
		return err
	}
	if err := a.ask(o.yes, "delete cluster "+name, "its agent leaves; what the modules have there stays, and nobody looks after it any more"); err != nil {
		return err
	}
	return a.removeCluster(ctx, c, name, &v1.RemoveClusterRequest{Name: name, Uid: found.GetMetadata().GetUid(), Objects: "keep", Reason: o.reason}, o.yes)
}

func (a *app) deleteProject(ctx context.Context, c *client.Client, o *deleteOptions, name string) error {
	left, err := c.Secrets.ListSecrets(ctx, &v1.ListSecretsRequest{Project: name, PageSize: 1, Total: true})
	if err != nil {
		return err
	}
	goes := ""
	if n := left.GetTotal(); n > 0 && name != fleet.DefaultProject {
		goes = agree(n, "secret goes", "secrets go") + " with it"
	}
	if err := a.ask(o.yes, "delete project "+name, goes); err != nil {
		return err
	}
	_, err = c.Identity.DeleteProject(ctx, &v1.DeleteProjectRequest{Name: name, Reason: o.reason})
	return a.deleted("project/"+name, err)
}

func (a *app) deleteUser(ctx context.Context, c *client.Client, o *deleteOptions, name string) error {
	if err := a.ask(o.yes, "delete user "+name, ""); err != nil {
		return err
	}
	_, err := c.Identity.DeleteUser(ctx, &v1.DeleteUserRequest{Name: name, Reason: o.reason})
	return a.deleted("user/"+name, err)
}

func (a *app) deleteToken(ctx context.Context, c *client.Client, o *deleteOptions, id string) error {
	_, err := c.Identity.DeleteToken(ctx, &v1.DeleteTokenRequest{Id: id, Reason: o.reason})
	return a.deleted("token/"+id, err)
}

func (a *app) deleted(what string, err error) error {
	if err == nil {
		a.printf("%s deleted\n", what)
	}
	return err
}

func (a *app) deleteModule(ctx context.Context, c *client.Client, o *deleteOptions, name string) error {
	ref, err := a.moduleRef(name)
	if err != nil {
		return err
	}
	old, err := c.Modules.GetModule(ctx, &v1.GetModuleRequest{Project: ref.Project, Name: ref.Name})
	if err != nil && !errors.Is(err, fleet.ErrCorrupt) { // one that is damaged is known by its name only
		return err
	}
	uid := old.GetModule().GetMetadata().GetUid()
	req := &v1.DeleteModuleRequest{Project: ref.Project, Name: ref.Name, Orphan: o.orphan, Reason: o.reason, DryRun: true, Uid: uid, Force: o.force}
	err = a.askOf(o.yes, "delete module "+ref.Display(), func() (string, error) {
		plan, err := c.Modules.DeleteModule(ctx, req)
		return deleteText(plan, o.orphan), err
	})
	if err != nil {
		return err
	}
	req.DryRun = false
	done, err := c.Modules.DeleteModule(ctx, req)
	if err != nil {
		return err
	}
	if !o.wait {
		a.printf("module/%s deleting; %s\n", ref.Display(), deleteText(done, o.orphan))
		return nil
	}
	timed, cancel := (&waitOptions{timeout: o.timeout}).deadline(ctx)
	defer cancel()
	last, err := a.waitGone(ctx, timed, c, ref, uid, o.timeout)
	if err != nil {
		return err
	}
	a.printf("module/%s deleted; %s%s\n", ref.Display(), deletedText(done, o.orphan), a.keptText(ctx, c, ref, cmp.Or(last, old.GetModule())))
	return nil
}

// errNameTaken: another module was put under the name before the deleted one was gone.
var errNameTaken = errors.New("the name is taken")

// waitGone waits until the hub has forgotten the module, which is when every cluster has confirmed, or timed, which is ctx with the timeout, is
// over, and returns it as it was seen last. A module of another UID is another one; without a UID the first that is seen to have one is meant.
func (a *app) waitGone(ctx, timed context.Context, c *client.Client, ref fleet.ModuleRef, uid string, timeout time.Duration) (last *v1.Module, err error) {
	if timed.Err() != nil && ctx.Err() == nil { // it went by with others
		return nil, a.goneYet(ctx, c, ref, uid, timeout)
	}
	said := ""
	err = c.WatchModules(timed, &v1.WatchModulesRequest{Project: ref.Project, Name: ref.Name}, func(ch client.Change[*v1.Module]) error {
		switch {
		case ch.Type == client.Deleted, ch.Type == client.Synced && last == nil:
			return client.ErrStop
		case ch.Type == client.Synced:
			return nil
		case uid != "" && ch.Item.GetMetadata().GetUid() != uid:
			return errNameTaken
		}
		last, uid = ch.Item, ch.Item.GetMetadata().GetUid()
		if now := a.moduleState(last).Text; now != said {
			said = now
			a.notef("module/%s %s\n", ref.Display(), now)
		}
		return nil
	})
	switch {
	case errors.Is(err, errNameTaken):
		err = taken(ref)
	case errors.Is(err, context.DeadlineExceeded) && timeout > 0:
		err = a.notGone(ref, last, timeout)
	case errors.Is(err, context.Canceled):
		err = joined(err, goesOn(ref))
	}
	return last, err
}

// goneYet asks once whether a module is gone for which no time is left.
func (a *app) goneYet(ctx context.Context, c *client.Client, ref fleet.ModuleRef, uid string, timeout time.Duration) error {
	resp, err := c.Modules.GetModule(ctx, &v1.GetModuleRequest{Project: ref.Project, Name: ref.Name})
	switch m := resp.GetModule(); {
	case errors.Is(err, fleet.ErrNotFound):
		return nil
	case err != nil:
		return err
	case uid != "" && m.GetMetadata().GetUid() != uid:
		return taken(ref)
	default:
		return a.notGone(ref, m, timeout)
	}
}

func taken(ref fleet.ModuleRef) error {
	return &exitError{exitSuperseded, fmt.Errorf("module %s: another one was put under the name before this one was gone everywhere; what is left of it is removed first in each cluster; see: towline get trackers --module %s",
		ref.Display(), ref)}
}

func (a *app) notGone(ref fleet.ModuleRef, last *v1.Module, timeout time.Duration) error {
	then := "it goes on by itself"
	if s := last.GetStatus(); s.GetHeldClusters() > 0 || len(s.GetHolds()) > 0 {
		then = "where it is held it goes on when that ends; see: towline explain module " + ref.Display()
	}
	return &exitError{exitTimedOut, fmt.Errorf("module %s: not gone after %s: %s; %s", ref.Display(), timeout, a.moduleState(last).Text, then)}
}

// askOf asks before something is done of which the plan tells, and once more if the plan is another one when the answer
// comes: what is done is what somebody read. A plan without a word needs no asking.
func (a *app) askOf(yes bool, what string, plan func() (string, error)) error {
	said, err := plan()
	for err == nil && said != "" {
		if err := a.ask(yes, what, said); err != nil || yes {
			return err
		}
		read := said
		if said, err = plan(); err == nil && said == read {
			return nil
		}
		if err == nil {
			a.notef("That has changed meanwhile.\n")
		}
	}
	return err
}

// ask says what will happen and asks on a terminal; elsewhere yes must have been said.
func (a *app) ask(yes bool, what, consequence string) error {
	switch said := a.about(what, consequence); {
	case yes:
		return nil
	case !a.InTerminal || !a.OutTerminal:
		return usagef("%s; say --yes to go on without being asked", said)
	default:
		return a.answered(what, said)
	}
}

// askWhoIsThere asks who sits at the terminal, wherever the output goes. Where nobody does nothing is asked: that is for programs.
func (a *app) askWhoIsThere(yes bool, what, consequence string) error {
	if yes || !a.InTerminal {
		return nil
	}
	return a.answered(what, a.about(what, consequence))
}

// about is "delete module shop (hub hub.example.com:7444): removes 3 objects".
func (a *app) about(what, consequence string) string {
	if a.client != nil {
		what += " (hub " + a.client.Server() + ")"
	}
	if consequence != "" {
		what += ": " + consequence
	}
	return what
}

// answered asks whether to go on, and fails unless the answer is yes.
func (a *app) answered(what, said string) error {
	a.notef("%s\nGo on? [y/N] ", sentence(said))
	line, err := bufio.NewReader(a.In).ReadString('\n')
	if answer := strings.ToLower(strings.TrimSpace(line)); answer == "y" || answer == "yes" {
		return nil
	}
	if err != nil {
		a.notef("\n")
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return &exitError{exitFailed, fmt.Errorf("%s: not done", what)}
}
