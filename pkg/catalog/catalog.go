// Package catalog decides what a catalog writes: which modules are put, which go, which are somebody else's, and what a person has to
// confirm before. Every function is pure; it must not know how files are fetched and read, nor how modules are stored.
package catalog

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// States of a catalog.
const (
	Pending    = "Pending"
	Applied    = "Applied"
	Conflicted = "Conflicted"
	Waiting    = "Waiting"
	Failed     = "Failed"
	Suspended  = "Suspended"
	Deleting   = "Deleting"
)

// Reasons of Failed beside those of a source, and of Waiting.
const (
	ReasonInvalidFiles = "InvalidFiles" // a file cannot be read, or a module in it is not valid
	ReasonNoModules    = "NoModules"    // the files have no module
	ReasonNeeded       = "Needed"       // what would go is needed, or stands in a folder that is not read
	ReasonRefused      = "Refused"      // the hub did not take all
	ReasonPrunesMost   = fleet.HoldPrunes
	ReasonGoesBack     = fleet.HoldGoesBack
)

// Reasons why a module of the files is not written.
const (
	Owned   = "Owned"
	Stopped = "Stopped"
	Paused  = "Paused"
	Damaged = "Damaged" // the hub's record of it cannot be read
	Wanted  = "Wanted"  // it is in the files no more, and a set wants it
)

// Reasons why a module is written or deleted later.
const (
	Running = "RolloutRunning" // a rollout of it runs that lets no other begin
	InUse   = "InUse"          // modules that stay depend on it as they are in clusters
)

// File is a module as a file has it.
type File struct {
	Name string
	// At is where it stands, such as modules/shop.yaml:12.
	At string
	// Spec is the digest of its canonical spec, and Words that of its labels and annotations.
	Spec, Words fleet.Digest
	DependsOn   []string
}

// Module is one that the project has.
type Module struct {
	Name, UID   string
	Version     int64
	Spec, Words fleet.Digest
	DependsOn   []string
	// Mine says that this catalog has put it; Owner is who else has, as set/NAME; empty: it was put by hand.
	Mine  bool
	Owner string
	// Deleting says that it is on its way out.
	Deleting bool
	// Put is the digest of the spec that this catalog has put last, and Stopped the rollout of that, if a person ended it.
	Put     fleet.Digest
	Stopped string
	// Unbegun says that its newest rollout ended before it began, because the rest of what it was put with never came.
	Unbegun bool
	// Paused is the rollout that runs, if a person paused it.
	Paused string
	// Running is the rollout that runs, if it lets no other begin.
	Running string
	// Needs are the modules that revisions of it depend on which clusters have, or may come to have without another put.
	Needs []string
	// Damaged says that its record cannot be read: nobody knows whose it is and what it says, beside Needs.
	Damaged bool
}

// Input is what is decided on.
type Input struct {
	// Catalog is its UID.
	Catalog string
	Files   []File
	Modules []Module
	// Below are modules that stand in folders below, which are not read, by name with their place.
	Below map[string]string
	// Elsewhere are those that another catalog of the project reads.
	Elsewhere map[string]Place
	// Unread are files of both that cannot be read, with their text: nobody can tell what they have.
	Unread map[string][]byte
	// Unknown are other catalogs of the project of which nobody knows what they read, with what to do about that.
	Unknown []string
	// Wanted are modules of this catalog that were refused to a set, by name with that.
	Wanted map[string]string
	Prune  bool
	// Person says that somebody asks for this, and Take that he wants what is of others, too.
	Person, Take bool
}

// Place is where another catalog has a module.
type Place struct {
	At, Catalog string
	// Last says that it had it at its last look, and Stuck why what came of that look keeps it from taking the module over.
	Last  bool
	Stuck string
}

// Says continues what is said of a module that is not deleted for this place, and ends with a way out that works.
func (p Place) Says() string {
	switch {
	case p.Stuck != "":
		return fmt.Sprintf("was in %s when the files of catalog %s were had last, and looks at it come to nothing now (%s): mend that catalog, as towline describe catalog %s says, for towline resync catalog %s --take to have it take the module over as it is, or delete it, which leaves its modules: towline delete catalog %s",
			p.At, p.Catalog, p.Stuck, p.Catalog, p.Catalog, p.Catalog)
	case p.Last:
		return fmt.Sprintf("was in %s at the last look of catalog %s: towline resync catalog %s --take has that catalog take it over as it is, and finds out whether it is there still",
			p.At, p.Catalog, p.Catalog)
	}
	return fmt.Sprintf("is in %s, which catalog %s reads: towline resync catalog %s --take has that catalog take it over as it is, else take it out of there", p.At, p.Catalog, p.Catalog)
}

// Put is a module that is written.
type Put struct {
	Name string
	// UID and Version are of the module that was seen; empty: there was none.
	UID     string
	Version int64
	// Takes says that it is somebody else's.
	Takes bool
}

// Conflict is a module of the files that is not written, or without At one that is not deleted.
type Conflict struct{ Name, At, Reason, Owner, Rollout string }

// Later is a module that is put, or deleted, when what is in the way is over.
type Later struct {
	Name, Reason string
	// At is where the files have it; empty: it is deleted.
	At string
	// Rollout is the one that is in the way, and By the modules that are.
	Rollout string
	By      []string
}

// Gone is a module that is deleted.
type Gone struct {
	Name, UID string
	Version   int64
}

// Plan is what is to be done. Nothing is done if anything is Refused.
type Plan struct {
	Puts      []Put
	Conflicts []Conflict
	// Prunes are deleted after the puts, in this order: what depends on others goes before these.
	Prunes []Gone
	// Takes are the conflicts over what is somebody else's and is to be taken over; each is one until it is put.
	Takes []Conflict
	// Later are put and deleted by a later look.
	Later []Later
	// Goes are all that this catalog deletes, now and later.
	Goes []Gone
	// Kept are of this catalog and in the files no more, and stay because it does not prune.
	Kept []string
	// Refused says why nothing may be done.
	Refused []string
	// Waits says that a person must confirm Goes before anything is done: see DigestOf.
	Waits bool
}

// Decide says what a catalog does.
func Decide(in Input) Plan {
	files, modules := map[string]File{}, map[string]Module{}
	for _, f := range in.Files {
		files[f.Name] = f
	}
	for _, m := range in.Modules {
		modules[m.Name] = m
	}
	var p Plan
	for _, f := range in.Files {
		m, there := modules[f.Name]
		p.file(in, f, m, there && !m.Deleting)
	}
	had, gone := 0, []Module{}
	for _, m := range in.Modules {
		if !m.Mine || m.Deleting || m.Damaged {
			continue
		}
		had++
		if _, named := files[m.Name]; !named {
			gone = append(gone, m)
		}
	}
	p.leave(in, files, gone)
	p.Waits = Most(len(p.Goes), had)
	return p
}

// Most reports that so much of what somebody keeps would go that a person must say so: files that are missing by mistake look the same as
// files that were taken away. What a person is asked about already is not for this to judge: it waits on, however little it is by then.
func Most(gone, had int) bool { return gone > 1 && 2*gone > had }

// file decides on a module of the files.
func (p *Plan) file(in Input, f File, m Module, there bool) {
	same := there && m.Spec == f.Spec && m.Words == f.Words && !m.Unbegun
	begins := m.Spec != f.Spec || m.Unbegun
	owned := Conflict{Name: f.Name, At: f.At, Reason: Owned, Owner: m.Owner}
	switch {
	case !there:
		p.Puts = append(p.Puts, Put{Name: f.Name})
	case m.Damaged:
		p.Conflicts = append(p.Conflicts, Conflict{Name: f.Name, At: f.At, Reason: Damaged})
	case !m.Mine && !in.Take:
		p.Conflicts = append(p.Conflicts, owned)
	case m.Mine && same && m.Put == f.Spec: // one that is the same by a person's hand is put, so that what becomes of its rollout counts
	case m.Stopped != "" && m.Put == f.Spec && m.Spec != f.Spec && !in.Person:
		p.Conflicts = append(p.Conflicts, Conflict{Name: f.Name, At: f.At, Reason: Stopped, Rollout: m.Stopped})
	case m.Paused != "" && begins && !in.Person: // a rollout would begin, and end the one that is paused
		p.Conflicts = append(p.Conflicts, Conflict{Name: f.Name, At: f.At, Reason: Paused, Rollout: m.Paused})
	case m.Running != "" && begins:
		p.Later = append(p.Later, Later{Name: f.Name, Reason: Running, At: f.At, Rollout: m.Running})
		if !m.Mine { // to take it over was asked of this look
			p.Conflicts = append(p.Conflicts, owned)
		}
	default:
		if !m.Mine {
			p.Takes = append(p.Takes, owned)
		}
		p.Puts = append(p.Puts, Put{Name: f.Name, UID: m.UID, Version: m.Version, Takes: !m.Mine})
	}
}

// leave decides on what the files have no more.
func (p *Plan) leave(in Input, files map[string]File, gone []Module) {
	if !in.Prune {
		for _, m := range gone {
			p.Kept = append(p.Kept, m.Name)
		}
		slices.Sort(p.Kept)
		return
	}
	if in.Take { // what it lost to another catalog is taken over there, as it takes over what it has
		gone = slices.DeleteFunc(gone, func(m Module) bool {
			moved := in.Elsewhere[m.Name].At != ""
			if moved {
				p.Kept = append(p.Kept, m.Name)
			}
			return moved
		})
	}
	gone = p.wanted(in, gone)
	if len(files) == 0 && len(gone) > 0 {
		p.Refused = append(p.Refused, "the files have no module, and all of the catalog would go; to delete it with them: towline delete catalog NAME --cascade")
	}
	goes := map[string]bool{}
	for _, m := range gone {
		goes[m.Name] = true
	}
	for _, m := range gone {
		if at := in.Below[m.Name]; at != "" {
			p.Refused = append(p.Refused, fmt.Sprintf("module %s is in %s, which is not read: say recursive: true, or move that out of the folder", m.Name, at))
		}
		if x := in.Elsewhere[m.Name]; x.At != "" {
			p.Refused = append(p.Refused, fmt.Sprintf("module %s %s", m.Name, x.Says()))
		}
		for _, of := range in.Unknown {
			p.Refused = append(p.Refused, fmt.Sprintf("module %s is in the files no more, and may be in those of %s", m.Name, of))
		}
		for _, at := range slices.Sorted(maps.Keys(in.Unread)) {
			if bytes.Contains(in.Unread[at], []byte(m.Name)) {
				p.Refused = append(p.Refused, fmt.Sprintf("module %s is in the files no more, and may be in %s, which cannot be read: mend that file, or take it away", m.Name, at))
			}
		}
		for _, name := range dependents(in, files, goes, m.Name) {
			p.Refused = append(p.Refused, fmt.Sprintf("module %s is in the files no more, but module %s, which stays, depends on it: keep it, or take it out of dependsOn there", m.Name, name))
		}
	}
	var used map[string][]string
	if len(p.Refused) == 0 {
		used = p.inUse(in, goes)
	}
	for _, m := range dependentsFirst(gone) {
		g := Gone{Name: m.Name, UID: m.UID, Version: m.Version}
		p.Goes = append(p.Goes, g)
		if by := used[m.Name]; len(by) > 0 {
			p.Later = append(p.Later, Later{Name: m.Name, Reason: InUse, By: by})
			continue
		}
		p.Prunes = append(p.Prunes, g)
	}
}

// wanted leaves out what a set wants of what the files have no more: it is to take that over as it is.
func (p *Plan) wanted(in Input, gone []Module) []Module {
	return slices.DeleteFunc(gone, func(m Module) bool {
		by := in.Wanted[m.Name]
		if by != "" {
			p.Conflicts = append(p.Conflicts, Conflict{Name: m.Name, Reason: Wanted, Owner: by})
		}
		return by != ""
	})
}

// inUse are those of the modules that go which others depend on when all is put, by what clusters have, or because they are not put now:
// they go later, and so does what they depend on themselves. goes is left with those that go now.
func (p *Plan) inUse(in Input, goes map[string]bool) map[string][]string {
	used := map[string][]string{}
	for again := true; again; {
		again = false
		for _, m := range in.Modules {
			if goes[m.Name] || m.Deleting {
				continue
			}
			for _, on := range p.needs(m) {
				if goes[on] {
					again = true
				}
				if (goes[on] || len(used[on]) > 0) && !slices.Contains(used[on], m.Name) {
					used[on] = append(used[on], m.Name)
				}
			}
		}
		for name := range used {
			delete(goes, name)
		}
	}
	return used
}

// needs are what a module depends on when all is put: of one that is put its revisions alone say so.
func (p *Plan) needs(m Module) []string {
	if slices.ContainsFunc(p.Puts, func(x Put) bool { return x.Name == m.Name }) {
		return m.Needs
	}
	return slices.Concat(m.DependsOn, m.Needs)
}

// dependents are the modules that stay and depend on one, as they are when the files are put.
func dependents(in Input, files map[string]File, goes map[string]bool, on string) (names []string) {
	for _, m := range in.Modules {
		list := m.DependsOn
		if f, named := files[m.Name]; named && (m.Mine || m.Damaged || in.Take) {
			list = f.DependsOn
		}
		if !goes[m.Name] && !m.Deleting && slices.Contains(list, on) {
			names = append(names, m.Name)
		}
	}
	for _, f := range in.Files {
		isNew := !slices.ContainsFunc(in.Modules, func(m Module) bool { return m.Name == f.Name && !m.Deleting })
		if isNew && slices.Contains(f.DependsOn, on) {
			names = append(names, f.Name)
		}
	}
	return names
}

// dependentsFirst sorts modules so that none comes before one that depends on it; of those in a circle some do.
func dependentsFirst(list []Module) (out []Module) {
	slices.SortFunc(list, func(a, b Module) int { return cmp.Compare(a.Name, b.Name) })
	seen := map[string]bool{}
	var visit func(Module)
	visit = func(m Module) {
		if seen[m.Name] {
			return
		}
		seen[m.Name] = true
		for _, other := range list {
			if slices.Contains(other.DependsOn, m.Name) || slices.Contains(other.Needs, m.Name) {
				visit(other)
			}
		}
		out = append(out, m)
	}
	for _, m := range list {
		visit(m)
	}
	return out
}

// DigestOf is over what goes, now and later: what was confirmed is exactly this, of this catalog by its UID.
func DigestOf(of string, goes []Gone) fleet.Digest {
	ids := make([]string, len(goes))
	for i, g := range goes {
		ids[i] = g.Name + "\x00" + g.UID
	}
	slices.Sort(ids)
	return fleet.DigestOf([]byte(of + "\x00" + strings.Join(ids, "\x00")))
}
