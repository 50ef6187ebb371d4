package localpolicy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// Kind and APIVersion are those of the file.
const (
	Kind       = "AgentPolicy"
	APIVersion = "towline.dev/v1"
)

// MaxBytes is how large the file may be; a ConfigMap holds no more.
const MaxBytes = 1 << 20

// maxRules is how many entries a list of the file may have.
const maxRules = 1000

// file is the policy as a person writes it.
type file struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name string `yaml:"name"`
	} `yaml:"metadata"`

	Projects      *list          `yaml:"projects"`
	Modules       *list          `yaml:"modules"`
	Namespaces    *list          `yaml:"namespaces"`
	ClusterScoped *clusterScoped `yaml:"clusterScoped"`
	Kinds         []kindRule     `yaml:"kinds"`
	DenyFields    []fieldRule    `yaml:"denyFields"`
	Protected     []match        `yaml:"protected"`
	DeleteBudget  *struct {
		PerHour *int `yaml:"perHour"`
	} `yaml:"deleteBudget"`
	Freeze         bool     `yaml:"freeze"`
	Windows        *windows `yaml:"windows"`
	MaxObjects     *int     `yaml:"maxObjects"`
	MaxObjectBytes *int     `yaml:"maxObjectBytes"`
	DenyReads      []string `yaml:"denyReads"`
	Allow          Allow    `yaml:"allow"`
}

// clusterScoped says which objects without a namespace are accepted.
type clusterScoped struct {
	Allow []match `yaml:"allow"`
}

// kindRule accepts writes of some kinds.
type kindRule struct {
	Groups patterns `yaml:"groups"`
	Kinds  patterns `yaml:"kinds"`
	Verbs  []string `yaml:"verbs"`
}

func (k *kindRule) match() match { return match{Groups: k.Groups, Kinds: k.Kinds} }

// Allow is what nothing may do that is not allowed in so many words.
type Allow struct {
	// ForceConflicts: a module may take what others hold, by its policies conflict: Force and adopt: Always.
	ForceConflicts bool `yaml:"forceConflicts"`
	// Recreate: an object may be deleted to be made again.
	Recreate bool `yaml:"recreate"`
	// DeleteCRDs and DeleteNamespaces: these may be deleted.
	DeleteCRDs       bool `yaml:"deleteCRDs"`
	DeleteNamespaces bool `yaml:"deleteNamespaces"`
}

// windows are written like those of a rollout's gates.
type windows struct {
	Allow []window `yaml:"allow"`
	Deny  []window `yaml:"deny"`
}

type window struct {
	Cron     string `yaml:"cron"`
	Duration string `yaml:"duration"`
	TimeZone string `yaml:"timeZone"`
}

// Policy is a file that is in order. It is never changed.
type Policy struct {
	file
	// Digest is that of the file's bytes.
	Digest fleet.Digest

	gate *rollout.WindowGate // nil: always open
}

// Parse reads a file, or says what is wrong with it and where.
func Parse(data []byte) (*Policy, error) {
	if len(data) > MaxBytes {
		return nil, fleet.Invalidf("", "has %d bytes; at most %d", len(data), MaxBytes)
	}
	p := &Policy{Digest: fleet.DigestOf(data)}
	if err := complete(data); err != nil {
		return nil, err
	}
	in := yaml.NewDecoder(bytes.NewReader(data))
	in.KnownFields(true)
	switch err := in.Decode(&p.file); {
	case errors.Is(err, io.EOF):
		return nil, fleet.Invalid("", "is empty")
	case err != nil:
		return nil, fleet.Invalid("", said(err))
	}
	if err := in.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fleet.Invalid("", "has more than one document")
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	return p, nil
}

// complete refuses a field without a value: somebody began to restrict something, and leaving it out would not.
func complete(data []byte) error {
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return fleet.Invalid("", said(err))
	}
	nodes := []*yaml.Node{&root}
	for len(nodes) > 0 {
		n := nodes[len(nodes)-1]
		nodes = nodes[:len(nodes)-1]
		switch {
		case n.Kind == yaml.AliasNode:
			return fleet.Invalidf("", "line %d: is an alias; write the value out", n.Line)
		case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
			return fleet.Invalidf("", "line %d: has no value; write one, or leave the field out", n.Line)
		}
		nodes = append(nodes, n.Content...)
	}
	return nil
}

var unknownField = regexp.MustCompile(`field (\S+) not found in type \S+`)

// said is an error of the decoder in one line.
func said(err error) string {
	var all *yaml.TypeError
	if !errors.As(err, &all) {
		return fleet.Clip(strings.TrimPrefix(err.Error(), "yaml: "), 300)
	}
	for i, text := range all.Errors {
		all.Errors[i] = unknownField.ReplaceAllString(text, `unknown field "$1"`)
	}
	return fleet.Clip(strings.Join(all.Errors, "; "), 300)
}

func (p *Policy) check() error {
	switch {
	case p.APIVersion != APIVersion:
		return fleet.Invalidf("apiVersion", "is %.80q; write %s", p.APIVersion, APIVersion)
	case p.file.Kind != Kind:
		return fleet.Invalidf("kind", "is %.80q; write %s", p.file.Kind, Kind)
	}
	for path, n := range map[string]int{"kinds": len(p.Kinds), "denyFields": len(p.DenyFields), "protected": len(p.Protected)} {
		if n > maxRules {
			return fleet.Invalidf(path, "has %d entries; at most %d", n, maxRules)
		}
	}
	for _, check := range []func() error{
		func() error { return p.Projects.check("projects") },
		func() error { return p.Modules.check("modules") },
		func() error { return p.Namespaces.check("namespaces") },
		p.checkClusterScoped, p.checkKinds, p.checkFields, p.checkProtected, p.checkNumbers, p.checkWindows, p.checkReads,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// reads are what may be read by way of the hub, in the words of its questions, and Secrets by bindings.
var reads = map[string]string{"live": "get", "events": "events", "logs": "logs", "secrets": "secrets"}

// MayDenyRead reports that a policy can say that a question is not answered.
func MayDenyRead(question string) bool {
	for _, q := range reads {
		if q == question {
			return true
		}
	}
	return false
}

// DeniesRead reports that a question of the hub is not answered.
func (p *Policy) DeniesRead(question string) bool {
	return slices.ContainsFunc(p.DenyReads, func(what string) bool { return reads[what] == question })
}

func (p *Policy) checkReads() error {
	for i, what := range p.DenyReads {
		if reads[what] == "" {
			return fleet.Invalidf(fmt.Sprintf("denyReads[%d]", i), "%.80q is unknown; use live, events, logs or secrets", what)
		}
	}
	return nil
}

func (p *Policy) checkClusterScoped() error {
	if p.ClusterScoped == nil {
		return nil
	}
	for i := range p.ClusterScoped.Allow {
		m, path := &p.ClusterScoped.Allow[i], fmt.Sprintf("clusterScoped.allow[%d]", i)
		if m.Namespaces != nil {
			return fleet.Invalid(path+".namespaces", "is of objects that have one; leave it out")
		}
		if err := m.check(path); err != nil {
			return err
		}
	}
	return nil
}

func (p *Policy) checkKinds() error {
	for i := range p.Kinds {
		k, path := &p.Kinds[i], fmt.Sprintf("kinds[%d]", i)
		m := k.match()
		if err := m.check(path); err != nil {
			return err
		}
		for j, v := range k.Verbs {
			if !slices.Contains([]string{"create", "update", "delete", "*"}, v) {
				return fleet.Invalidf(fmt.Sprintf("%s.verbs[%d]", path, j), `%.80q is none of create, update, delete and "*"`, v)
			}
		}
	}
	return nil
}

func (p *Policy) checkProtected() error {
	for i := range p.Protected {
		if err := p.Protected[i].checkRule(fmt.Sprintf("protected[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

func (p *Policy) checkNumbers() error {
	switch {
	case p.DeleteBudget != nil && p.DeleteBudget.PerHour == nil:
		return fleet.Invalid("deleteBudget.perHour", "is required")
	case p.DeleteBudget != nil && *p.DeleteBudget.PerHour < 0:
		return fleet.Invalidf("deleteBudget.perHour", "is %d; write 0 or more", *p.DeleteBudget.PerHour)
	case p.MaxObjects != nil && *p.MaxObjects < 0:
		return fleet.Invalidf("maxObjects", "is %d; write 0 or more", *p.MaxObjects)
	case p.MaxObjectBytes != nil && *p.MaxObjectBytes <= 0:
		return fleet.Invalidf("maxObjectBytes", "is %d; write 1 or more", *p.MaxObjectBytes)
	}
	return nil
}

func (p *Policy) checkWindows() error {
	if p.Windows == nil {
		return nil
	}
	g := &rollout.WindowGate{}
	for _, side := range []struct {
		name string
		from []window
		to   *[]rollout.Window
	}{{"allow", p.Windows.Allow, &g.Allow}, {"deny", p.Windows.Deny, &g.Deny}} {
		for i, w := range side.from {
			length, err := time.ParseDuration(w.Duration)
			if err != nil {
				return fleet.Invalidf(fmt.Sprintf("windows.%s[%d].duration", side.name, i), "%.80q is no duration such as 8h", w.Duration)
			}
			*side.to = append(*side.to, rollout.Window{Cron: w.Cron, Duration: length, TimeZone: w.TimeZone})
		}
	}
	if err := g.Check(); err != nil {
		return fleet.Join("windows", err)
	}
	p.gate = g
	return nil
}
