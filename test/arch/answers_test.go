package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// judges are the ways to judge an answer of an API server by its code or reason.
var judges = regexp.MustCompile(`apierrors\.(Is[A-Z]\w*|ReasonForError)\(|CauseTypeUnexpectedServerResponse`)

// TestAnswersAreJudgedInOnePlace: a code or a reason alone says another thing by who gave it, so that each judgement that stands apart forgets some of
// those who do. What an answer means, agent/internal/kube says.
func TestAnswersAreJudgedInOnePlace(t *testing.T) {
	root := filepath.Join("..", "..")
	owner := filepath.Join(root, "agent", "internal", "kube")
	err := filepath.WalkDir(filepath.Join(root, "agent"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || filepath.Dir(path) == owner {
			return err
		}
		text, err := os.ReadFile(path)
		if found := judges.Find(text); found != nil {
			t.Errorf("%s: %s judges an answer; ask kube.Is, which knows who gave it", path, found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
