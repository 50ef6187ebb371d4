package source

import (
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
)

// Encode is the one encoding of a set of files.
func Encode(files map[string][]byte) []byte { return artifact.Encode(files) }

// Decode reads what Encode wrote, and nothing else. The files share the memory of data.
func Decode(data []byte) (map[string][]byte, error) { return artifact.Decode(data) }

func checkNames(files map[string][]byte) error { return artifact.CheckNames(files) }

func badName(name string) string { return artifact.BadName(name) }

type names = artifact.Names

func newNames() *names { return artifact.NewNames() }

func clip(s string) string { return fleet.Clip(s, 200) }
