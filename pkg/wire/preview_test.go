package wire

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
)

// An agent that says more than it was asked for, or what no cluster can have, is not passed on as it is.
func TestDiffOfWhatAnAgentMadeUp(t *testing.T) {
	object := func(name string) *agentv1.PreviewedObject {
		return &agentv1.PreviewedObject{Object: &agentv1.BundleEntry{Version: "v1", Kind: "ConfigMap", Name: name}, Action: "Create\x1b[2J" + strings.Repeat("x", 5000)}
	}
	for what, name := range map[string]string{"an escape": "a\x1b[2J", "a line break": "a\nb", "no name": "", "a long name": strings.Repeat("a", 5000)} {
		if got, err := DiffOf(&agentv1.Preview{Objects: []*agentv1.PreviewedObject{object(name)}}, 1<<20); err == nil {
			t.Errorf("%s: %v", what, got)
		}
	}
	p := &agentv1.Preview{Omitted: 3}
	for range 100 {
		o := object("a")
		for range 60 {
			o.Fields = append(o.Fields, &agentv1.FieldChange{Field: strings.Repeat("/f", 5000)})
		}
		p.Objects = append(p.Objects, o)
	}
	got, err := DiffOf(p, 100_000)
	if err != nil || proto.Size(got) > 110_000 || len(got.GetObjects())+int(got.GetOmitted()) != 103 || len(got.GetObjects()) == 0 {
		t.Errorf("%d objects, %d omitted, %d bytes: %v", len(got.GetObjects()), got.GetOmitted(), proto.Size(got), err)
	}
	if o := got.GetObjects()[0]; strings.Contains(o.GetAction(), "\x1b") || len(o.GetAction()) > MaxMessageBytes || len(o.GetFields()) != maxPreviewFields || o.GetMoreFields() != 10 {
		t.Errorf("an object: %.100s, %d fields, %d more", o.GetAction(), len(o.GetFields()), o.GetMoreFields())
	}
}
