#!/usr/bin/env bash
# tools/together.sh N COMMAND...  runs the commands, each a line of bash, at
# most N at a time and in their order; prints what each said when it has
# ended, and fails when one of them did.
set -uo pipefail
most=$1
shift
one='start=$SECONDS; said=$(bash -c "$1" 2>&1 </dev/null); rc=$?; printf "%s\n" "$said"
	[ "$rc" = 0 ] || printf "%s: FAILED with %d (%ds)\n" "$1" "$rc" $((SECONDS - start)); exit "$rc"'
printf '%s\0' "$@" | xargs -0 -P "$most" -I{} bash -c "$one" together {}
