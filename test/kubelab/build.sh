#!/bin/sh
# Builds kubelab unless this very source was built before, and prints the path
# of the binary. The first build takes some minutes.
set -eu
cd "$(dirname "$0")"
hash=$(find . -maxdepth 1 \( -name 'go.*' -o -name '*.go' ! -name '*_test.go' \) | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-12)
dir="${TOWLINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/towline}/kubelab-$hash"
bin="$dir/kubelab"
if [ ! -x "$bin" ]; then
	mkdir -p "$dir"
	exec 9>"$dir/lock"
	flock 9
	if [ ! -x "$bin" ]; then
		kube=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' go.mod)
		set -- -s -w
		for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
			set -- "$@" -X "$package.gitVersion=$kube" -X "$package.gitMajor=1" -X "$package.gitMinor=$(echo "$kube" | cut -d. -f2)"
		done
		CGO_ENABLED=0 go build -trimpath -ldflags "$*" -o "$bin.new" . >&2
		mv "$bin.new" "$bin"
	fi
fi
echo "$bin"
