package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// printVersions writes the versions of what the binary contains, as the
// binary's own build information has them.
func printVersions(w io.Writer) {
	versions := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Replace != nil {
				dep = dep.Replace
			}
			versions[dep.Path] = dep.Version
		}
	}
	fmt.Fprintln(w, "kubernetes", versions["k8s.io/kubernetes"])
	fmt.Fprintln(w, "etcd", versions["go.etcd.io/etcd/server/v3"])
	fmt.Fprintln(w, "kwok", versions["sigs.k8s.io/kwok"])
	fmt.Fprintln(w, "go", runtime.Version())
}
