package source

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestCacheKeepsWhatIsUsed(t *testing.T) {
	dir := t.TempDir()
	c := &cache{dir: dir, most: 4 << 10}
	one := func(i int) Artifact {
		a := newArtifact(map[string][]byte{"a.yaml": append(make([]byte, 900), fmt.Sprint(i)...)})
		a.Ref = fmt.Sprint("sha1:", i)
		return a
	}
	past := time.Now().Add(-time.Hour)
	for i := range 4 {
		c.put(cacheKey(fmt.Sprint(i)), one(i))
		at := past.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(filepath.Join(dir, cacheKey(fmt.Sprint(i))), at, at); err != nil {
			t.Fatal(err)
		}
	}
	if a, ok := c.get(cacheKey("0")); !ok || a.Ref != "sha1:0" || a.Digest != one(0).Digest || string(a.Files["a.yaml"]) != string(one(0).Files["a.yaml"]) {
		t.Fatalf("%v %v", ok, a.Ref)
	}
	c.put(cacheKey("4"), one(4))
	for i, want := range []bool{true, false, true, true, true} {
		if _, ok := c.get(cacheKey(fmt.Sprint(i))); ok != want {
			t.Errorf("%d is there: %v", i, ok)
		}
	}
	c.put(cacheKey("large"), newArtifact(map[string][]byte{"a": make([]byte, 8<<10)}))
	if _, ok := c.get(cacheKey("4")); !ok {
		t.Error("what is too large drives out what is there")
	}
}

// TestCacheOfDamagedFiles: what was cut off or changed on the disk counts as lost.
func TestCacheOfDamagedFiles(t *testing.T) {
	dir := t.TempDir()
	c := &cache{dir: dir, most: 1 << 20}
	key := cacheKey("a")
	for name, damage := range map[string]func([]byte) []byte{
		"cut off": func(b []byte) []byte { return b[:len(b)-1] },
		"changed": func(b []byte) []byte { b[len(b)-1]++; return b },
		"empty":   func([]byte) []byte { return nil },
	} {
		c.put(key, newArtifact(map[string][]byte{"a.yaml": []byte("a")}))
		file := filepath.Join(dir, key)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, damage(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok := c.get(key); ok {
			t.Errorf("%s: is there", name)
		}
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("%s: is kept: %v", name, err)
		}
	}
}

func TestKeysOfTheCacheAreApart(t *testing.T) {
	seen := map[string][]string{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"a", "b"}, {"ab"}, {"a", "b", ""}, {"1:a"}, {"a1:b"}} {
		key := cacheKey(parts...)
		if other, twice := seen[key]; twice {
			t.Errorf("%q and %q are one", parts, other)
		}
		seen[key] = parts
	}
}

// TestCacheOfADiskThatIsShort: the disk is needed for what may not be thrown away, so that nothing is kept there, not even what was.
func TestCacheOfADiskThatIsShort(t *testing.T) {
	dir, free, known := t.TempDir(), int64(1000), true
	c := &cache{dir: dir, most: 1 << 20, spare: 1000, free: func(string) (int64, bool) { return free, known }}
	a := newArtifact(map[string][]byte{"a.yaml": []byte("a")})
	is := func(want ...string) {
		t.Helper()
		for _, name := range []string{"a", "b", "c"} {
			if _, ok := c.get(cacheKey(name)); ok != slices.Contains(want, name) {
				t.Errorf("%s is there: %v", name, ok)
			}
		}
	}
	c.put(cacheKey("a"), a)
	is("a")
	free = 999
	c.put(cacheKey("b"), a)
	is()
	known = false // then it is as if there were no bound
	c.put(cacheKey("c"), a)
	is("c")
}
