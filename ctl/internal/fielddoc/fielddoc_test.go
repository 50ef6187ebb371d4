package fielddoc

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

var update = flag.Bool("update", false, "rewrite docs.json from the protos")

// TestDocsAreFresh takes the comments from the protos; with -update it writes them.
func TestDocsAreFresh(t *testing.T) {
	files, err := filepath.Glob("../../../proto/towline/v1/*.proto")
	if err != nil || len(files) == 0 {
		t.Fatalf("no protos: %v", err)
	}
	want := map[string]string{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		scan(string(data), want)
	}
	if *update {
		data, err := json.MarshalIndent(want, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("docs.json", append(data, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, comments()); diff != "" {
		t.Errorf("docs.json is not what the protos say; run: go test ./ctl/internal/fielddoc -update\n%s", diff)
	}
}

var (
	messageLine = regexp.MustCompile(`^message (\w+) \{`)
	fieldLine   = regexp.MustCompile(`^  (?:repeated |optional )?[\w.<>, ]+ (\w+) = \d+`)
)

// scan relies on the protos being formatted by buf and free of nested messages.
func scan(text string, into map[string]string) {
	var message string
	var comment []string
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if c, ok := strings.CutPrefix(strings.TrimSpace(line), "//"); ok {
			comment = append(comment, strings.TrimSpace(c))
			continue
		}
		said := strings.Join(comment, " ")
		comment = nil
		if m := messageLine.FindStringSubmatch(line); m != nil {
			message = m[1]
			if isTransport(message) {
				message = ""
			} else {
				into[message] = said
			}
		} else if f := fieldLine.FindStringSubmatch(line); f != nil && message != "" {
			into[message+"."+f[1]] = said
		}
	}
}

func isTransport(message string) bool {
	return strings.HasSuffix(message, "Request") || strings.HasSuffix(message, "Response")
}

var roots = map[string]proto.Message{"module": &v1.Module{}, "rollout": &v1.Rollout{}}

func TestWrite(t *testing.T) {
	var b strings.Builder
	if err := Write(&b, roots, "module.spec.rollout.stages"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"KIND     Module\n", "FIELD    module.spec.rollout.stages <list of Stage>",
		"In order; none: one stage with every cluster at once.", "  maxConcurrency <string>\n    Number, or percent"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, b.String())
		}
	}
}

func TestWriteNamesTheNearestField(t *testing.T) {
	for path, want := range map[string]string{
		"module.spec.rolout":             "module.spec has no field rolout; did you mean rollout?",
		"modul.spec":                     "modul: no such kind; did you mean module?",
		"module.metadata.name.x":         "module.metadata.name has no fields",
		"module.status.holds.since.what": "module.status.holds.since has no fields",
	} {
		err := Write(&strings.Builder{}, roots, path)
		if err == nil || err.Error() != want || !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
}
