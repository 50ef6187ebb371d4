package wire

import (
	"fmt"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
)

// What a module may say must be no more than what an agent takes: else one module stops the sessions of all.
func TestBindingsAreWithinWhatAgentsTake(t *testing.T) {
	long := strings.Repeat("x", assemble.MaxValueBytes+1)
	many := make([]*towlinev1.Binding, assemble.MaxValues+1)
	for i := range many {
		v := "x"
		many[i] = &towlinev1.Binding{Name: fmt.Sprintf("A%d", i), Value: &v}
	}
	for says, in := range map[string][]*towlinev1.Binding{
		"CERT has 65537 bytes; at most 65536": {{Name: "CERT", Value: &long}},
		"ZONE has 65537 bytes; at most 65536": {{Name: "ZONE", ClusterLabel: "zone", Default: &long}},
		"513 are too many; at most 512":       many,
		"[0].name":                            {nil},
	} {
		if _, err := bindings(in); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want one that says %q", err, says)
		}
	}
	if _, err := bindings(many[:assemble.MaxValues]); err != nil {
		t.Error(err)
	}
}
