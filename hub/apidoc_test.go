package hub_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/rpc/clientconfig"
)

// example is a command of a page and what it shows of the output, line by line.
type example struct {
	command string
	output  []string
}

var console = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

// consoleExamples are the commands behind a "$ ", which go on as long as a quote is open or a line ends in a backslash.
func consoleExamples(t *testing.T, path string) (all []example) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	for _, m := range console.FindAllStringSubmatch(string(data), -1) {
		open := false
		for line := range strings.Lines(m[1]) {
			line = strings.TrimSuffix(line, "\n")
			begins := strings.HasPrefix(line, "$ ")
			if begins {
				all = append(all, example{})
			}
			x := &all[len(all)-1]
			if !begins && !open {
				x.output = append(x.output, strings.TrimSpace(line))
				continue
			}
			x.command += strings.TrimPrefix(line, "$ ") + "\n"
			open = strings.HasSuffix(line, `\`) || strings.Count(x.command, "'")%2 == 1
		}
	}
	return all
}

// drawn are the fields whose values differ from run to run. What the page shows for one of them stands for what the hub
// answers, in later commands, too, unless it is short.
var drawn = regexp.MustCompile(`^("(?:uid|revision|resumeToken|nextPageToken)": ")([^"]+)(",?)$`)

const short = 3

// shows reports that a page's output is that of a run, but for indentation: line by line, where "…" stands for any lines, and in a line for any text.
func shows(page, run []string, values map[string]string) bool {
	if len(page) == 0 {
		return len(run) == 0
	}
	if page[0] == "…" {
		for i := range len(run) + 1 {
			if shows(page[1:], run[i:], values) {
				return true
			}
		}
		return false
	}
	if len(run) == 0 || !sameLine(page[0], run[0], values) {
		return false
	}
	return shows(page[1:], run[1:], values)
}

func sameLine(page, run string, values map[string]string) bool {
	if p, r := drawn.FindStringSubmatch(page), drawn.FindStringSubmatch(run); p != nil && r != nil {
		if p[1] != r[1] || p[3] != r[3] {
			return false
		}
		if known, ok := values[p[2]]; ok && len(p[2]) > short && known != r[2] {
			return false
		}
		values[p[2]] = r[2]
		return true
	}
	parts := strings.Split(page, "…")
	for i, part := range parts {
		parts[i] = regexp.QuoteMeta(part)
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(run)
}

// run runs the command until it ends, or, if it would go on for ever, until it has shown what the page shows.
func (x example) run(ctx context.Context, dir string, env []string, values map[string]string) error {
	command := x.command
	for page, is := range values {
		if len(page) > short {
			command = strings.ReplaceAll(command, page, is)
		}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	cmd := exec.CommandContext(ctx, "bash", "-c", "exec "+command)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	cmd.Stdout, cmd.Stderr = in, in
	err = cmd.Start()
	_ = in.Close()
	if err != nil {
		return err
	}
	var lines []string
	for s := bufio.NewScanner(out); s.Scan(); {
		lines = append(lines, strings.TrimSpace(s.Text()))
		if strings.Contains(command, "/Watch") && shows(x.output, lines, values) {
			stop()
			_ = cmd.Wait()
			return nil
		}
	}
	_ = cmd.Wait() // an error that the page shows is in the output
	if !shows(x.output, lines, values) {
		return fmt.Errorf("$ %s\nprinted\n%s\n\nthe page shows\n%s", command, strings.Join(lines, "\n"), strings.Join(x.output, "\n"))
	}
	return nil
}

// TestCallsOfTheAPIGuide: every grpcurl command of docs/api.md, in its order, prints what the page shows.
func TestCallsOfTheAPIGuide(t *testing.T) {
	tool := grpcurl(t)
	examples := consoleExamples(t, "../docs/api.md")
	if len(examples) < 25 {
		t.Fatalf("%d examples found", len(examples))
	}
	w := newWorld(t, true)
	w.join("edge-1", nil, map[string]string{"ring": "canary"})
	w.join("edge-2", nil, map[string]string{"ring": "rest"})
	for _, name := range []string{"edge-1", "edge-2"} {
		w.awaitCluster(name, "Ready")
	}
	ci, maria := w.outsider("ci", "admin"), w.outsider("maria", "admin")
	dir := t.TempDir()
	config, err := clientconfig.Load(filepath.Join(w.dir, hub.AdminFile))
	must(t, err)
	for name, data := range map[string][]byte{"ca.crt": config.Contexts[0].CAData, "admin.crt": config.Contexts[0].CertificateData, "admin.key": config.Contexts[0].KeyData} {
		must(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	env := []string{"PATH=" + filepath.Dir(tool) + ":" + os.Getenv("PATH"), "HUB=" + ci.address, "TOKEN=" + ci.token, "MARIA=" + maria.token}
	keeps, err := w.Modules.WatchModules(w.ctx, &towlinev1.WatchModulesRequest{}) // so that a slow machine keeps the changes, too
	must(t, err)
	go func() {
		for err := error(nil); err == nil; {
			_, err = keeps.Recv()
		}
	}()
	values := map[string]string{}
	for _, x := range examples {
		if err := x.run(w.ctx, dir, env, values); err != nil {
			t.Fatal(err)
		}
	}
}
