// Package otherstest finds the charts and kustomizations of others that tests read. They are not part of the project: it knows
// where they may be, and nothing of what is in them.
package otherstest

import (
	"os"
	"path/filepath"
	"testing"
)

// Dir is the folder of TOWLINE_SHARED_DATA, or shared/data beside one of the folders above. Where there is none, the test is skipped
// and says so.
func Dir(t testing.TB) string {
	t.Helper()
	candidates := []string{os.Getenv("TOWLINE_SHARED_DATA")}
	at, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; at != filepath.Dir(at); at = filepath.Dir(at) {
		candidates = append(candidates, filepath.Join(filepath.Dir(at), "shared", "data"))
	}
	for _, dir := range candidates {
		if info, err := os.Stat(filepath.Join(dir, "README.md")); dir != "" && err == nil && !info.IsDir() {
			return dir
		}
	}
	t.Skip("skipped: there are no charts and kustomizations of others in ../shared/data (or TOWLINE_SHARED_DATA)")
	return ""
}
