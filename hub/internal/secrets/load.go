package secrets

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Where says where the hub's keys are.
type Where struct {
	// File has a key a line.
	File string
	// Command prints the same; its words are parted by blanks. It is asked once.
	Command string
	// Make makes File with a new key if it is not there.
	Make bool
	// Sealed is how many secrets are in the store. With any, no file is made in the place of one that is missing: their key is wanted back.
	Sealed int
	// Log is told what is to be said at once.
	Log *slog.Logger
}

const (
	// commandTime is how long a command may take.
	commandTime = 30 * time.Second
	// maxKeysBytes is how much of it is read.
	maxKeysBytes = 64 << 10
	maxStderr    = 300
)

// Load gets the hub's keys. It never fails: without a key all but secrets goes on, and what needs one says why there is none.
func Load(ctx context.Context, w Where) *Keys {
	k, err := w.load(ctx)
	if err != nil {
		w.Log.Error("the hub has no key for secrets: it keeps none, and reads none", "secrets", w.Sealed, "error", err)
		return NoKeys(err.Error())
	}
	return k
}

func (w Where) load(ctx context.Context) (*Keys, error) {
	switch {
	case w.File != "" && w.Command != "":
		return nil, errors.New("both --secrets-key-file and --secrets-key-command are given: keep one of them")
	case w.Command != "":
		return w.run(ctx)
	case w.File != "":
		return w.read()
	}
	return nil, errors.New("hubs on an etcd of your own make none: start the hub with --secrets-key-file or --secrets-key-command")
}

func (w Where) read() (*Keys, error) {
	text, err := os.ReadFile(w.File)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !w.Make:
		return nil, fmt.Errorf("%s is missing: put it back, or give --secrets-key-file the right one", w.File)
	case errors.Is(err, fs.ErrNotExist) && w.Sealed > 0:
		return nil, fmt.Errorf("%s is missing, and %d secrets are encrypted with it: put it back from a backup. If it is lost, make one (openssl rand -base64 32 > %s) "+
			"and set the secrets anew (towline secret set --replace)", w.File, w.Sealed, w.File)
	case errors.Is(err, fs.ErrNotExist):
		return w.make()
	case err != nil:
		return nil, err
	}
	if info, err := os.Stat(w.File); err == nil && info.Mode().Perm()&0o007 != 0 {
		w.Log.Warn("the key for secrets can be read by every user of this machine", "file", w.File, "mode", info.Mode().Perm())
	}
	k, err := parseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.File, err)
	}
	return k, nil
}

// make writes a new key, whole or not at all: half a key would be none after the next start.
func (w Where) make() (*Keys, error) {
	raw := make([]byte, keyBytes)
	_, _ = rand.Read(raw) // never fails: crypto/rand
	text := []byte(base64.StdEncoding.EncodeToString(raw) + "\n")
	if err := os.MkdirAll(filepath.Dir(w.File), 0o700); err != nil {
		return nil, err
	}
	temp, err := os.CreateTemp(filepath.Dir(w.File), "."+filepath.Base(w.File)+"-*") // 0600
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(temp.Name()) }()
	_, err = temp.Write(text)
	if err = errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(temp.Name(), w.File); err != nil { // never over one that came meanwhile
		return nil, err
	}
	return parseKeys(text)
}

// run asks the command. What it prints is the keys, so that errors show only what it says beside them.
func (w Where) run(ctx context.Context) (*Keys, error) {
	words := strings.Fields(w.Command)
	if len(words) == 0 {
		return nil, errors.New("--secrets-key-command is blank: write a program and its arguments")
	}
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.WaitDelay = time.Second // a child of it may hold the pipe
	var out, said bounded
	out.most, said.most = maxKeysBytes, maxStderr
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("did not end within %s", commandTime)
		}
		return nil, fmt.Errorf("--secrets-key-command %s: %w %s", words[0], err, strings.TrimSpace(said.String()))
	}
	k, err := parseKeys(out.Bytes())
	if err != nil {
		return nil, fmt.Errorf("--secrets-key-command %s: what it prints: %w", words[0], err)
	}
	return k, nil
}

// bounded keeps the first bytes of what is written.
type bounded struct {
	bytes.Buffer
	most int
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), b.most-b.Len())])
	return len(p), nil
}
