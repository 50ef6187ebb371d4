#!/usr/bin/env bash
# tools/phase.sh NAME COMMAND...  runs the command and says on stderr what it
# was and how long it took; stdout is the command's alone.
set -uo pipefail
name=$1
shift
printf '==> %s\n' "$name" >&2
start=$SECONDS
"$@"
rc=$?
if [ "$rc" = 0 ]; then
	printf '<== %s: ok (%ds)\n' "$name" $((SECONDS - start)) >&2
else
	printf '<== %s: FAILED with %d (%ds)\n' "$name" "$rc" $((SECONDS - start)) >&2
fi
exit "$rc"
