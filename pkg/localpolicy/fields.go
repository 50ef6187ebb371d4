package localpolicy

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"

	"towline.dev/towline/pkg/celenv"
	"towline.dev/towline/pkg/fleet"
)

// fieldRule denies objects by what they say. Exactly one of Preset and Expression is set.
type fieldRule struct {
	Name       string   `yaml:"name"`
	Match      match    `yaml:"match"`
	Preset     string   `yaml:"preset"`
	Names      patterns `yaml:"names"` // of the preset ServiceAccount
	Expression string   `yaml:"expression"`
	Message    string   `yaml:"message"`

	program cel.Program
}

// presets are short names of what is denied most: each says what it found in a pod, or in an object; empty: nothing.
var presets = map[string]struct {
	pod    func(pod map[string]any, r *fieldRule) string
	object func(object map[string]any) string
}{
	"HostPath":       {pod: hostPath, object: hostVolume},
	"Privileged":     {pod: privileged},
	"HostNetwork":    {pod: flag("hostNetwork")},
	"HostPID":        {pod: flag("hostPID")},
	"HostIPC":        {pod: flag("hostIPC")},
	"HostPorts":      {pod: hostPorts},
	"ServiceAccount": {pod: serviceAccount},
}

// fieldLimits bound one expression over one object.
var fieldLimits = celenv.Limits{Cost: 200_000, Memory: 200_000, SizeEvery: 1_000}

var fieldEnv = sync.OnceValues(func() (*cel.Env, error) {
	return celenv.New(cel.Variable("object", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("project", cel.StringType), cel.Variable("module", cel.StringType))
})

func (p *Policy) checkFields() error {
	for i := range p.DenyFields {
		if err := p.DenyFields[i].compile(); err != nil {
			return fleet.Join(fmt.Sprintf("denyFields[%d]", i), err)
		}
	}
	return nil
}

func (f *fieldRule) compile() error {
	if err := f.Match.checkRule("match"); err != nil {
		return err
	}
	_, known := presets[f.Preset]
	switch {
	case (f.Preset == "") == (f.Expression == ""):
		return fleet.Invalid("", "needs exactly one of preset and expression")
	case f.Preset != "" && !known:
		return fleet.Invalidf("preset", "%.80q is unknown; write one of %s, or an expression", f.Preset, strings.Join(presetNames(), ", "))
	case (f.Preset == "ServiceAccount") != (f.Names != nil):
		return fleet.Invalid("names", "is what the preset ServiceAccount needs, and nothing else takes")
	}
	if f.Preset != "" {
		if err := f.Names.checkFilled("names"); err != nil {
			return err
		}
		return f.Names.check("names")
	}
	env, err := fieldEnv()
	if err != nil {
		return err
	}
	f.program, err = celenv.Program(env, f.Expression, fieldLimits, cel.BoolType, cel.DynType)
	return fleet.Join("expression", err)
}

func presetNames() []string {
	out := make([]string, 0, len(presets))
	for name := range presets {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// ReadsContent reports that what an object says counts, so that a request needs its Object.
func (p *Policy) ReadsContent(id fleet.ObjectID) bool {
	if p == nil {
		return false
	}
	return p.MaxObjectBytes != nil || slices.ContainsFunc(p.DenyFields, func(r fieldRule) bool { return r.Match.selects(id) })
}

// JudgeContent judges what an object says, and nothing else.
func (p *Policy) JudgeContent(r Request) *Denial {
	if p == nil || r.Object == nil {
		return nil
	}
	if p.MaxObjectBytes != nil && r.Bytes > *p.MaxObjectBytes {
		return &Denial{Rule: "maxObjectBytes", Message: fmt.Sprintf("the object has %d bytes, and may have %d", r.Bytes, *p.MaxObjectBytes)}
	}
	for i := range p.DenyFields {
		rule := &p.DenyFields[i]
		if !rule.Match.selects(r.ID) {
			continue
		}
		if why := rule.denies(r); why != "" {
			name := rule.Name
			if name == "" {
				name = rule.Preset
			}
			return &Denial{Rule: fmt.Sprintf("denyFields[%d]", i), Name: name, Message: why}
		}
	}
	return nil
}

// denies says why the rule denies the object; empty: it does not. An expression that fails denies: nobody knows what the object
// would have been denied for.
func (f *fieldRule) denies(r Request) string {
	why := ""
	if f.Preset != "" {
		why = f.find(r.Object)
	} else {
		out, _, err := f.program.Eval(map[string]any{"object": r.Object, "project": r.Module.Project, "module": r.Module.Name})
		denied, is := false, false
		if err == nil {
			denied, is = out.Value().(bool)
		}
		switch {
		case err != nil:
			return "the expression cannot be evaluated: " + celenv.Reason(err)
		case !is:
			return "the expression is neither true nor false for it"
		case denied:
			why = "the expression holds: " + fleet.Clip(strings.Join(strings.Fields(f.Expression), " "), 100)
		}
	}
	if why != "" && f.Message != "" {
		return f.Message
	}
	return why
}

func (f *fieldRule) find(object map[string]any) string {
	preset := presets[f.Preset]
	if preset.object != nil {
		if why := preset.object(object); why != "" {
			return why
		}
	}
	for _, at := range podPaths {
		if pod := at.of(object); pod != nil {
			if why := preset.pod(pod, f); why != "" {
				return at.name + why
			}
		}
	}
	return ""
}

// podPath is a place in an object that may hold what a pod is made of.
type podPath struct {
	name string
	path []string
	kind string // that alone has it there; empty: any
}

// podPaths are those of Kubernetes. Custom kinds that run pods mostly have one of them, too.
var podPaths = []podPath{
	{name: "spec.", path: []string{"spec"}, kind: "Pod"},
	{name: "spec.template.spec.", path: []string{"spec", "template", "spec"}},
	{name: "spec.jobTemplate.spec.template.spec.", path: []string{"spec", "jobTemplate", "spec", "template", "spec"}},
	{name: "template.spec.", path: []string{"template", "spec"}},
}

func (p podPath) of(object map[string]any) map[string]any {
	if p.kind != "" && object["kind"] != p.kind {
		return nil
	}
	for _, key := range p.path {
		object = mapping(object[key])
	}
	return object
}

func mapping(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// each calls f with the entries of a list that are mappings, and their places.
func each(pod map[string]any, field string, f func(at string, entry map[string]any) string) string {
	entries, _ := pod[field].([]any)
	for i, e := range entries {
		if why := f(fmt.Sprintf("%s[%d].", field, i), mapping(e)); why != "" {
			return why
		}
	}
	return ""
}

// containers calls f with every container of a pod.
func containers(pod map[string]any, f func(at string, container map[string]any) string) string {
	for _, field := range []string{"containers", "initContainers", "ephemeralContainers"} {
		if why := each(pod, field, f); why != "" {
			return why
		}
	}
	return ""
}

func hostPath(pod map[string]any, _ *fieldRule) string {
	return each(pod, "volumes", func(at string, volume map[string]any) string {
		if volume["hostPath"] == nil {
			return ""
		}
		return at + "hostPath is set"
	})
}

// hostVolume finds a PersistentVolume that is a directory of a node.
func hostVolume(object map[string]any) string {
	for _, field := range []string{"hostPath", "local"} {
		if object["kind"] == "PersistentVolume" && mapping(object["spec"])[field] != nil {
			return "spec." + field + " is set"
		}
	}
	return ""
}

func privileged(pod map[string]any, _ *fieldRule) string {
	if host := mapping(mapping(pod["securityContext"])["windowsOptions"])["hostProcess"]; host == true {
		return "securityContext.windowsOptions.hostProcess is true"
	}
	return containers(pod, func(at string, c map[string]any) string {
		security := mapping(c["securityContext"])
		switch {
		case security["privileged"] == true:
			return at + "securityContext.privileged is true"
		case mapping(security["windowsOptions"])["hostProcess"] == true:
			return at + "securityContext.windowsOptions.hostProcess is true"
		}
		return ""
	})
}

func flag(field string) func(map[string]any, *fieldRule) string {
	return func(pod map[string]any, _ *fieldRule) string {
		if pod[field] != true {
			return ""
		}
		return field + " is true"
	}
}

func hostPorts(pod map[string]any, _ *fieldRule) string {
	return containers(pod, func(at string, c map[string]any) string {
		return each(c, "ports", func(port string, p map[string]any) string {
			if n := fmt.Sprint(p["hostPort"]); p["hostPort"] == nil || n == "0" {
				return ""
			}
			return at + port + "hostPort is set"
		})
	})
}

// serviceAccount finds an account that the rule names. A pod that names none has the account default; serviceAccount is the old
// name of the field, which still counts.
func serviceAccount(pod map[string]any, r *fieldRule) string {
	named := false
	for _, field := range []string{"serviceAccountName", "serviceAccount"} {
		name, _ := pod[field].(string)
		if name == "" {
			continue
		}
		if named = true; r.Names.match(name) {
			return field + " is " + name
		}
	}
	if !named && r.Names.match("default") {
		return "serviceAccountName is not set, which is default"
	}
	return ""
}
