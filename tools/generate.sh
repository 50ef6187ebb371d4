#!/usr/bin/env bash
# Generates gen/ from proto/ with the plugins in bin/tools; needs no network.
#   tools/generate.sh          bring gen/ up to date; unchanged files keep their times
#   tools/generate.sh --check  fail when gen/ is not what proto/ says; change nothing
# It compares files with files and never asks git.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/bin/tools:$PATH"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/gen"
if [ -n "$(find proto -name '*.proto' -print -quit 2>/dev/null)" ]; then
	buf generate --output "$tmp"
fi

if [ "${1:-}" = --check ]; then
	[ -d gen ] || mkdir -p "$tmp/none"
	old=gen
	[ -d gen ] || old=$tmp/none
	if ! diff -rq "$old" "$tmp/gen"; then
		echo "gen/ is not what proto/ says: run 'make generate' and commit the result" >&2
		exit 1
	fi
	exit 0
fi

mkdir -p gen
(cd "$tmp/gen" && find . -type f) | while read -r f; do
	cmp -s "$tmp/gen/$f" "gen/$f" && continue
	mkdir -p "$(dirname "gen/$f")"
	cp "$tmp/gen/$f" "gen/$f"
	echo "gen/${f#./}"
done
(cd gen && find . -type f) | while read -r f; do
	[ -e "$tmp/gen/$f" ] && continue
	rm "gen/$f"
	echo "gen/${f#./} (removed)"
done
find gen -mindepth 1 -type d -empty -delete
