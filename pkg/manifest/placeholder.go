package manifest

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// Expand puts values for ${NAME} in s, once: what a value holds is not looked at again. A name without a value is text.
func Expand(s string, values map[string]string) string {
	return ExpandFunc(s, func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	})
}

// ExpandFunc is Expand with values from a function. Where that says no, the text stays. ${NAME:-TEXT} is TEXT where the value is
// empty, and $${NAME} is ${NAME} as text, both for names that have a value only.
func ExpandFunc(s string, value func(name string) (string, bool)) string {
	return ExpandDeclared(s, func(name string) bool {
		_, ok := value(name)
		return ok
	}, value)
}

// ExpandDeclared is ExpandFunc where it is known of a name that it has a value, without asking for that.
func ExpandDeclared(s string, declared func(name string) bool, value func(name string) (string, bool)) string {
	return expand(s, true, func(r reference) (string, bool) {
		switch {
		case r.nested:
			return "", false
		case r.escaped:
			return r.text, declared(r.name)
		}
		v, ok := value(r.name)
		return r.or(v), ok
	})
}

// reference is one ${NAME} of a text.
type reference struct {
	name string
	// text is all of it, without the dollar sign that escapes it.
	text    string
	escaped bool
	// fallback is what follows ":-", if that is there; nested says that it holds another reference, and so is none.
	fallback            string
	hasFallback, nested bool
}

// or is the value, or what stands in for an empty one.
func (r reference) or(v string) string {
	if v == "" && r.hasFallback {
		return r.fallback
	}
	return v
}

// extended reports that only an agent which knows of Substitution reads it as it is meant.
func (r reference) extended() bool { return r.escaped || r.hasFallback }

// expand replaces references, where replace says so. Not all are read in full: fallbacks and escapes are text to agents of before.
func expand(s string, full bool, replace func(reference) (string, bool)) string {
	var out strings.Builder
	in := scanner{text: s, full: full}
	done := 0 // what is before it is in out
	for {
		r, at, ok := in.next()
		if !ok {
			break
		}
		v, replaced := replace(r)
		switch {
		case replaced:
			out.WriteString(s[done:at])
			out.WriteString(v)
			done = in.at
		case r.nested: // what is inside of it may be one
			in.at -= len(r.text) - len("${")
			in.from = in.at
		}
	}
	if done == 0 && out.Len() == 0 {
		return s
	}
	out.WriteString(s[done:])
	return out.String()
}

// scanner reads the references of a text one after the other. No byte is looked at more than a few times, however many of them begin
// before it: the text is anybody's.
type scanner struct {
	text string
	full bool
	at   int // where it goes on
	from int // where what was read last ends: a dollar sign before that belongs to it
	end  int // the next "}" or line break at it or behind it, where one was looked for; else it is passed
}

// next is the next reference, and where it begins, with the dollar sign that escapes it.
func (in *scanner) next() (r reference, begins int, found bool) {
	for {
		at := strings.Index(in.text[in.at:], "${")
		if at < 0 {
			return reference{}, 0, false
		}
		at += in.at
		r, after := in.read(at)
		if after == 0 {
			in.at = at + len("${")
			continue
		}
		if in.full && at > in.from && in.text[at-1] == '$' {
			at, r.escaped = at-1, true
		}
		in.at, in.from = after, after
		return r, at, true
	}
}

// read reads the reference that begins there, and says where it ends; 0: it is none.
func (in *scanner) read(at int) (r reference, after int) {
	s, i := in.text, at+len("${")
	begins := i
	for i < len(s) && (s[i] >= 'A' && s[i] <= 'Z' || i > begins && (s[i] >= '0' && s[i] <= '9' || s[i] == '_')) {
		i++
	}
	r.name = s[begins:i]
	if r.name == "" || i == len(s) {
		return reference{}, 0
	}
	if in.full && strings.HasPrefix(s[i:], ":-") {
		end := in.ending(i)
		if end == len(s) || s[end] != '}' {
			return reference{}, 0
		}
		r.fallback, r.hasFallback = s[i+2:end], true
		r.nested = strings.Contains(r.fallback, "${")
		i = end
	}
	if s[i] != '}' {
		return reference{}, 0
	}
	r.text = s[at : i+1]
	return r, i + 1
}

// ending is the next "}" or line break from there on; the end of the text if there is none.
func (in *scanner) ending(from int) int {
	if in.end < from {
		in.end = len(in.text)
		if n := strings.IndexAny(in.text[from:], "}\n"); n >= 0 {
			in.end = from + n
		}
	}
	return in.end
}

// references calls found for every reference in s.
func references(s string, found func(reference)) {
	if strings.Contains(s, "${") {
		expand(s, true, func(r reference) (string, bool) { found(r); return "", false })
	}
}

// namesIn are the declared names that texts refer to.
func (d *draft) namesIn(texts ...string) []string {
	set := map[string]bool{}
	for _, s := range texts {
		references(s, func(r reference) {
			if d.declared[r.name] && !r.escaped {
				set[r.name] = true
			}
		})
	}
	return slices.Sorted(maps.Keys(set))
}

func (d *draft) holdsPlaceholder(s string) bool { return len(d.namesIn(s)) > 0 }

// readPlaceholders finds the names that the object uses, and refuses what no value could mend.
func (d *draft) readPlaceholders() error {
	if d.exempt {
		d.out.Extended = len(d.builder.declared) > 0 && strings.Contains(string(Canonical(d.obj)), "${")
		return nil
	}
	if len(d.declared) == 0 && !d.opts.Strict {
		return nil
	}
	found := map[string]bool{}
	if err := d.collect(d.obj, found); err != nil {
		return err
	}
	d.out.Placeholders = slices.Sorted(maps.Keys(found))
	return nil
}

// collect adds the declared names in the strings of v.
func (d *draft) collect(v any, into map[string]bool) error {
	switch v := v.(type) {
	case string:
		return d.collectText(v, into)
	case []any:
		for _, c := range v {
			if err := d.collect(c, into); err != nil {
				return err
			}
		}
	case map[string]any:
		for k, c := range v {
			if strings.Contains(k, "${") && d.holdsPlaceholder(k) {
				return d.fail("key %q holds a placeholder: only values are substituted", clip(k))
			}
			if err := d.collect(c, into); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *draft) collectText(s string, into map[string]bool) (err error) {
	references(s, func(r reference) {
		if e := d.checkReference(r, r.text == s); e != nil && err == nil {
			err = e
		}
		if !d.declared[r.name] {
			d.out.Extended = d.out.Extended || d.opts.Strict && r.escaped
			return
		}
		whole := r.text == s && d.opts.Types[r.name] != ""
		d.out.Extended = d.out.Extended || r.extended() || whole
		if !r.escaped {
			into[r.name] = true
		}
	})
	return err
}

// checkReference says what is wrong with a reference. It does not tell the rest of the text, which may be that of a Secret.
func (d *draft) checkReference(r reference, whole bool) error {
	switch {
	case r.escaped:
		return nil
	case !d.declared[r.name] && d.opts.Strict:
		return d.fail("${%s} is not declared, and spec.bindingsMode is Strict: declare it in spec.bindings, write $${%s} for the text, or set the annotation %s: %s",
			r.name, r.name, fleet.SubstituteAnnotation, fleet.SubstituteDisabled)
	case !d.declared[r.name]:
		return nil
	}
	if err := d.opts.check(r); err != nil {
		return d.fail("%v", err)
	}
	if _, err := d.opts.Types[r.name].Parse(r.fallback); whole && r.hasFallback && err != nil {
		return d.fail("${%s:-…}: what stands in for a value %v", r.name, err)
	}
	return nil
}

// check says what is wrong with a reference to a declared name, whatever the values are.
func (o Options) check(r reference) error {
	if r.nested {
		return fmt.Errorf("${%s:-…}: what stands in for a value is text, and cannot hold another placeholder: give the binding a default", r.name)
	}
	if !r.hasFallback && slices.Contains(o.Optional, r.name) {
		return fmt.Errorf("${%s}: the binding is optional, and has no value in some clusters: write ${%s:-TEXT}, or give it a default", r.name, r.name)
	}
	return nil
}

// CheckText says what is wrong with the placeholders of a text that is in no object.
func CheckText(s string, opts Options) (err error) {
	references(s, func(r reference) {
		if !r.escaped && slices.Contains(opts.Declared, r.name) {
			err = cmp.Or(err, opts.check(r))
		}
	})
	return err
}

// Names are the names that a text refers to, in their order, whether they are declared or not.
func Names(s string) (out []string) {
	known := map[string]bool{}
	references(s, func(r reference) {
		if !r.escaped && !known[r.name] {
			known[r.name] = true
			out = append(out, r.name)
		}
	})
	return out
}

// NamesIn are those of the names that an object in canonical JSON refers to, sorted. Of those that it has as text only, because they are
// escaped, the text is what it is whatever their value.
func NamesIn(content []byte, names map[string]bool, how *fleet.Substitution) (used, escaped []string, err error) {
	if len(names) == 0 || !bytes.Contains(content, []byte("${")) {
		return nil, nil, nil
	}
	obj, err := Decode(content)
	if err != nil || how != nil && exempt(obj) {
		return nil, nil, err
	}
	found := map[string]bool{} // true: it is used
	eachText(obj, func(s string) {
		expand(s, how != nil, func(r reference) (string, bool) {
			if names[r.name] {
				found[r.name] = found[r.name] || !r.escaped
			}
			return "", false
		})
	})
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if found[name] {
			used = append(used, name)
		} else {
			escaped = append(escaped, name)
		}
	}
	return used, escaped, nil
}

// eachText calls f for every string in v that is a value.
func eachText(v any, f func(string)) {
	switch v := v.(type) {
	case string:
		f(v)
	case []any:
		for _, c := range v {
			eachText(c, f)
		}
	case map[string]any:
		for _, c := range v {
			eachText(c, f)
		}
	}
}

// IsExtended reports that a text refers to a name by more than ${NAME}.
func IsExtended(s string) (is bool) {
	references(s, func(r reference) { is = is || r.extended() })
	return is
}

// Substitute puts values into the strings of an object, but not into its keys. They may make it larger by room bytes: a
// short value that is used often, or a long one, must not take the memory of whoever applies the object. How says what more
// than ${NAME} is meant; nil: nothing is.
func Substitute(object map[string]any, values map[string]string, how *fleet.Substitution, room int) error {
	s := substitution{values: values, how: how, room: room}
	if how != nil && exempt(object) {
		return nil
	}
	s.all(object)
	if s.room < 0 {
		return fleet.Errorf(fleet.ErrExhausted, "the values of its bindings make the object larger than %d bytes", MaxObjectBytes)
	}
	return s.failed
}

func noValue(missing map[string]bool) error {
	return fleet.Errorf(fleet.ErrPrecondition, "no value for ${%s}: give the binding a default, or what it reads from",
		strings.Join(slices.Sorted(maps.Keys(missing)), "}, ${"))
}

type substitution struct {
	values map[string]string
	how    *fleet.Substitution
	types  map[string]fleet.BindingType // nil: all is text
	room   int                          // bytes that values may still bring
	failed error
}

// all changes the object. Where the API takes text only, a type counts for nothing.
func (s *substitution) all(object map[string]any) {
	onlyText := func(key string) bool { return key == "metadata" }
	if v, _ := object["apiVersion"].(string); v == "v1" && (object["kind"] == "ConfigMap" || object["kind"] == "Secret") {
		onlyText = func(string) bool { return true }
	}
	for k := range object {
		s.types = nil
		if s.how != nil && !onlyText(k) {
			s.types = s.how.Types
		}
		object[k] = s.apply(object[k])
	}
}

// apply changes v in place where it can and returns it.
func (s *substitution) apply(v any) any {
	switch v := v.(type) {
	case string:
		if strings.Contains(v, "${") {
			return s.text(v)
		}
	case []any:
		for i := range v {
			v[i] = s.apply(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = s.apply(v[k])
		}
	}
	return v
}

func (s *substitution) text(in string) any {
	var kind fleet.BindingType
	out := expand(in, s.how != nil, func(r reference) (string, bool) {
		v, ok := s.replace(r)
		if ok && !r.escaped && r.text == in {
			kind = s.types[r.name]
		}
		return v, ok
	})
	typed, err := kind.Parse(out)
	if err != nil {
		s.failed = cmp.Or(s.failed, fleet.Invalidf("bindings", "the value of %s %v", in, err))
		return out
	}
	return typed
}

func (s *substitution) replace(r reference) (string, bool) {
	v, ok := s.values[r.name]
	switch {
	case r.escaped:
		return r.text, ok || s.how.Strict
	case !ok || r.nested || s.room < 0:
		return "", false
	}
	v = r.or(v)
	if s.room -= len(v) - len(r.text); s.room < 0 {
		return "", false
	}
	return v, true
}

// exempt reports that the annotations of an object have its placeholders be text.
func exempt(object map[string]any) bool {
	meta, _ := object["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	return annotations[fleet.SubstituteAnnotation] == fleet.SubstituteDisabled
}

// ExpandID puts values into an identity, whatever they make of it.
func ExpandID(id fleet.ObjectID, values map[string]string) fleet.ObjectID {
	id.Namespace, id.Name = Expand(id.Namespace, values), Expand(id.Name, values)
	return id
}

// ResolveIDs checks what values make of the identities of a bundle: valid names, and no two alike.
func ResolveIDs(entries []fleet.BundleEntry, values map[string]string) error {
	var seen map[fleet.ObjectID]fleet.ObjectID
	for _, e := range entries {
		if !strings.Contains(e.ID.Namespace, "${") && !strings.Contains(e.ID.Name, "${") {
			continue
		}
		id, err := ResolveID(e.ID, values)
		if err != nil {
			return err
		}
		if seen == nil {
			seen = make(map[fleet.ObjectID]fleet.ObjectID, len(entries))
			for _, other := range entries {
				seen[other.ID] = other.ID
			}
		}
		if other, twice := seen[id]; twice && other != e.ID {
			return fleet.Invalidf(e.ID.Short(), "is %s here, as %s is, too", id.Short(), other.Short())
		}
		seen[id] = e.ID
	}
	return nil
}

// ResolveID puts hub-evaluated values into an identity. What a placeholder leaves must be a valid name outside the
// agent's namespace.
func ResolveID(id fleet.ObjectID, values map[string]string) (fleet.ObjectID, error) {
	missing := map[string]bool{}
	value := func(name string) (string, bool) {
		v, ok := values[name]
		if !ok {
			missing[name] = true
		}
		return v, ok
	}
	out := id
	out.Namespace, out.Name = ExpandFunc(id.Namespace, value), ExpandFunc(id.Name, value)
	if len(missing) > 0 {
		return fleet.ObjectID{}, fleet.Errorf(fleet.ErrPrecondition, "%s: %s", id.Short(), noValue(missing))
	}
	if id.Namespace != "" && out.Namespace == "" {
		return fleet.ObjectID{}, fleet.Invalidf(id.Short(), "the values of its bindings leave no namespace")
	}
	if msg := checkIdentity(out); msg != "" {
		return fleet.ObjectID{}, fleet.Invalid(id.Short(), msg)
	}
	return out, nil
}
