package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
)

// change replaces a text that is in a file of a folder once.
type change struct{ file, old, new string }

// write writes the changed files into a folder, and the overlays that name them: exact.json has lives be the same each time, and overlay.json
// plants bugs besides.
func write(module, dir string) error {
	runtime := map[string]string{}
	if err := exactly(runtime); err != nil {
		return err
	}
	if err := overlay(runtime, dir, "exact.json"); err != nil {
		return err
	}
	texts := map[string]string{filepath.Join(module, "pkg", "fleet", "planted.go"): planted}
	for _, b := range bugs {
		for _, c := range b.changes {
			c.new = strings.ReplaceAll(c.new, "PLANTED", fmt.Sprintf("fleet.Planted(%q)", b.name))
			if err := c.in(module, texts); err != nil {
				return fmt.Errorf("bug %s: %w; plant it where its code is now", b.name, err)
			}
		}
	}
	return overlay(texts, dir, "overlay.json")
}

// in makes the change in a folder.
func (c change) in(folder string, texts map[string]string) error {
	at := filepath.Join(folder, c.file)
	if texts[at] == "" {
		b, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		texts[at] = string(b)
	}
	if n := strings.Count(texts[at], c.old); n != 1 {
		return fmt.Errorf("%s has %d places instead of one for a change of %q", at, n, c.old)
	}
	texts[at] = strings.Replace(texts[at], c.old, c.new, 1)
	return nil
}

func overlay(texts map[string]string, dir, as string) error {
	replace := map[string]string{}
	for at, text := range texts {
		name := fnv.New32a() // the same for the same file: what is compiled from it is used again then
		_, _ = name.Write([]byte(at))
		to := filepath.Join(dir, fmt.Sprintf("%08x-%s", name.Sum32(), filepath.Base(at)))
		if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
			return err
		}
		replace[at] = to
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, as), b, 0o644)
}
