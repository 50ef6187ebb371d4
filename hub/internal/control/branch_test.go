package control

import (
	"context"
	"sync"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
)

// branch is a source that moves.
type branch struct {
	ref   string
	files map[string]string
	when  time.Time // when what is there was made; zero: it does not say
	db    string    // the version of a chart that it depends on; empty: it does on none
	err   error
	mu    sync.Mutex // of asked, and of err where it is fetched meanwhile: several are looked at at a time
	asked []time.Time
	each  func(b *branch, n int) // before the nth that is asked
}

func (b *branch) at(commit, text string) {
	b.ref, b.err = "main@sha1:"+commit, nil
	b.files = map[string]string{"a.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: web, namespace: default}, data: {text: " + text + "}}"}
}

// fails has what is fetched from now on come to an error; nil: to what is there.
func (b *branch) fails(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

// fetches is how often it was asked.
func (b *branch) fetches() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.asked)
}

func (b *branch) Fetch(context.Context, string, *towlinev1.Source) (source.Artifact, error) {
	mustBeOutside()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, time.Now())
	if b.each != nil {
		b.each(b, len(b.asked))
	}
	if b.err != nil {
		return source.Artifact{}, b.err
	}
	files := map[string][]byte{}
	for name, text := range b.files {
		files[name] = []byte(text)
	}
	archive := artifact.Encode(files)
	a := source.Artifact{Ref: b.ref, Files: files, Archive: archive, Digest: fleet.DigestOf(archive), Made: b.when}
	if b.db != "" {
		a.Charts = []*towlinev1.FetchedChart{{In: "web", Name: "db", Range: "4.x", Repository: "https://charts.example.com", Version: b.db}}
	}
	return a, nil
}

// made has the branch at a commit of an hour of a day.
func (b *branch) made(commit string, hour int) {
	b.at(commit, "of-"+commit)
	b.moves(commit, hour)
}

// moves has it at a commit with the files that are there.
func (b *branch) moves(commit string, hour int) {
	b.ref, b.when = "main@sha1:"+commit, time.Date(2026, 3, 10, hour, 0, 0, 0, time.UTC)
}
