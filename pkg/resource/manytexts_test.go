package resource

import (
	"fmt"
	"testing"
	"time"
)

// TestManyTextsAreNoWork: each of the many files of a catalog's folder may be a symbolic link that was copied as text, as far as its first look tells.
// That must not cost the hub a look at all the others for each.
func TestManyTextsAreNoWork(t *testing.T) {
	files := map[string][]byte{"prod/a.yaml": []byte(head)}
	for i := range 30_000 {
		files[fmt.Sprintf("prod/data/%d", i)] = fmt.Appendf(nil, "v%d", i)
		files[fmt.Sprintf("more/data/%d.yaml", i)] = nil
	}
	began := time.Now()
	if _, _, err := LoadFiles(files, "prod", Options{Kinds: inFiles, Whole: true, Recursive: true}); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %s", took)
	}
}
