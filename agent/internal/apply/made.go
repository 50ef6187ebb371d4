package apply

// Made is what pods are made by, or who is reached, as a write of ours left it: the live values at our paths of the template of a workload,
// and at those of the whole spec of what has none.
type Made struct {
	At    string // the field of the spec that the paths are below; empty: the spec
	Paths *PathSet
	Hash  Hash
}

// templates are where workloads say what their pods are made by.
var templates = []string{"template", "jobTemplate"}

// MadeBy reads what we left of that at our paths; nil: nothing there is ours.
func MadeBy(live map[string]any, paths *PathSet) *Made {
	m := &Made{Paths: paths.below("f:spec")}
	for _, name := range templates {
		if t := m.Paths.below("f:" + name); m.At == "" && t != nil {
			m.At, m.Paths = name, t
		}
	}
	if m.Paths == nil {
		return nil
	}
	m.Hash = m.of(live)
	return m
}

// Is reports that an object has these values, whatever it has beside them.
func (m *Made) Is(live map[string]any) bool { return m.of(live) == m.Hash }

// of reads the values.
func (m *Made) of(live map[string]any) Hash {
	at := live["spec"]
	if spec, isMap := at.(map[string]any); isMap && m.At != "" {
		at = spec[m.At]
	}
	w := hasher{}
	w.walk(m.Paths, at, nil, nil)
	return w.sum()
}

// below is the part of a set below an element; nil: there is none.
func (p *PathSet) below(name string) *PathSet {
	if e := p.edge(&element{text: name}); e != nil {
		return e.kid
	}
	return nil
}
