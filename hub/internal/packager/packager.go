// Package packager builds kustomizations and charts with the libraries of kustomize and Helm. It owns what of them is refused, and runs
// in a process of its own, which has nothing but the files of the job; it must not know modules, clusters, or any part of the hub.
package packager

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	_ "time/tzdata" // the process opens no file, and what templates say of a time must not depend on the machine

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/render/child"
)

// Build does a job.
func Build(job render.Job) (child.Result, error) {
	switch {
	case job.Helm != nil:
		return renderChart(job.Files, *job.Helm)
	case job.Kustomize != nil:
		return buildKustomization(job.Files, *job.Kustomize)
	}
	return child.Result{}, fleet.Invalid("package", "is of a kind that this render worker does not know")
}

// Isolate closes the ways out of the process that the libraries know: kustomize fetches what looks like an address by the default
// transport, and looks for git in the PATH, of which there is none without an environment.
func Isolate() {
	http.DefaultTransport = refused{}
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errNoNetwork }}
}

type refused struct{}

// RoundTrip implements http.RoundTripper.
func (refused) RoundTrip(*http.Request) (*http.Response, error) { return nil, errNoNetwork }

var errNoNetwork = errors.New("nothing is fetched while a package is rendered: put it into the source")

// folder is a path in the source that a package names, cleaned; the root is ".".
func folder(field, p string) (string, error) {
	if strings.HasPrefix(p, "/") || strings.ContainsAny(p, "\\\x00") {
		return "", fleet.Invalidf(field, "%q is no path in the source: write a folder, such as deploy/prod", p)
	}
	clean := path.Clean("./" + p)
	if slices.Contains(strings.Split(clean, "/"), "..") {
		return "", fleet.Invalidf(field, "%q is outside of the source", p)
	}
	return clean, nil
}

// some lists names for a message.
func some(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}
