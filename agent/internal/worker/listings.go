package worker

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// listings are how much of values, from where they begin, stands in what the people of modules have written themselves. A bundle is looked through only when a value
// was found in what is told of its module, and once.
type listings struct {
	mu    sync.Mutex
	by    *apply.Scrubber
	found map[fleet.ModuleRef]listing
}

type listing struct {
	bundle, policies, values fleet.Digest
	begun                    map[string]bool
}

// of is what a module lists now. One that is not listed any more lists nothing.
func (l *listings) of(m *Manager, ref fleet.ModuleRef, by *apply.Scrubber) map[string]bool {
	s, listed := m.syncOf(ref)
	if !listed {
		return nil
	}
	this := listing{bundle: s.Bundle, policies: s.Policies, values: valuesDigest(s.Values)}
	l.mu.Lock()
	known, has := l.found[ref]
	has = has && l.by == by && known.bundle == this.bundle && known.policies == this.policies && known.values == this.values
	l.mu.Unlock()
	if has {
		return known.begun
	}
	var err error
	if this.begun, err = begunIn(m.o.Contents, s, by); err != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by != by {
		l.by, l.found = by, map[fleet.ModuleRef]listing{}
	}
	l.found[ref] = this
	return this.begun
}

func (m *Manager) listedBy(ref fleet.ModuleRef) writes {
	return func(s *apply.Scrubber) map[string]bool { return m.listings.of(m, ref, s) }
}

// syncOf is the sync of a module that is desired.
func (m *Manager) syncOf(ref fleet.ModuleRef) (fleet.Sync, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.desired == nil {
		return fleet.Sync{}, false
	}
	for _, s := range slices.Concat(m.desired.assemblage.Syncs, m.desired.strays) {
		if s.Module == ref {
			return s, true
		}
	}
	return fleet.Sync{}, false
}

// begunIn are the beginnings of values that stand in the objects of a sync as everybody may see them, with what its people gave for placeholders.
func begunIn(contents Contents, s fleet.Sync, by *apply.Scrubber) (map[string]bool, error) {
	bundle, err := contents.Bundle(s.Bundle)
	if err != nil {
		return nil, err
	}
	var set fleet.PolicySet
	if !s.Policies.IsZero() {
		if set, err = contents.Policies(s.Policies); err != nil {
			return nil, err
		}
	}
	values, begun := givenIn(s, set), map[string]bool{}
	for _, e := range bundle.Entries {
		content, err := contents.Object(e.Digest)
		if err != nil {
			return nil, err
		}
		var obj map[string]any
		if err := utiljson.Unmarshal(content, &obj); err != nil {
			return nil, fmt.Errorf("%s: %w", e.ID, err)
		}
		// What has no value stays a placeholder, and hides nothing.
		_ = manifest.Substitute(obj, values, set.Substitution, manifest.MaxObjectBytes-len(content))
		shown, _ := manifest.Mask(obj)
		anyText(shown, func(text string) bool {
			by.Begins(text, func(begin string) { begun[begin] = true })
			return false
		})
	}
	return begun, nil
}

// givenIn are the values and defaults of bindings that the people of a module wrote.
func givenIn(s fleet.Sync, set fleet.PolicySet) map[string]string {
	out := map[string]string{}
	for _, b := range set.Bindings {
		for _, text := range []*string{b.Default, b.Value} {
			if text != nil {
				out[b.Name] = *text
			}
		}
	}
	maps.Copy(out, s.Values)
	return out
}
