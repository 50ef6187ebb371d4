package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// tokenEvery is how often the file with the join token is read. A mounted Secret follows a minute after it was changed.
const tokenEvery = 10 * time.Second

// joinToken is the join token that the agent was given. It is not for concurrent use.
type joinToken struct {
	file string // that has it; empty: none does
	text string
	log  *slog.Logger
	said string // the last warning
	err  error  // why the file could not be read last
}

// read reads the file. A missing one changes nothing: it may be removed once the agent has joined.
func (j *joinToken) read() error {
	if j.file == "" {
		return nil
	}
	b, err := os.ReadFile(j.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--join-token-file: %w", err)
	}
	text := strings.TrimSpace(string(b))
	if text == "" {
		return fleet.Invalidf("--join-token-file", "%s is empty; put the join token there that towline cluster join printed", j.file)
	}
	j.text = text
	return nil
}

// given is the token that the file has by now, or had when it could be read last.
func (j *joinToken) given() string {
	if j.err = j.read(); j.err != nil {
		j.warn("the join token is not read; going on without a new one", j.err)
	}
	return j.text
}

// warn says each thing once, until there is another to say.
func (j *joinToken) warn(message string, err error) {
	if said := message + err.Error(); said != j.said {
		j.said = said
		j.log.Warn(message, "error", err)
	}
}
