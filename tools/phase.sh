#!/usr/bin/env bash
# tools/phase.sh NAME COMMAND...  runs the command and says on stderr what it
# was, how long it took, and how long it computed, by which one sees whether it
# waited; stdout is the command's alone.
set -uo pipefail
name=$1
shift
printf '==> %s\n' "$name" >&2
TIMEFORMAT='%0R %0U %0S'
exec 3>&1 4>&2
took=$({ time "$@" >&3 2>&4 3>&- 4>&-; } 2>&1)
rc=$?
read -r wall user kernel <<<"$took"
took="${wall}s, $((user + kernel))s of processors"
if [ "$rc" = 0 ]; then
	printf '<== %s: ok (%s)\n' "$name" "$took" >&2
else
	printf '<== %s: FAILED with %d (%s)\n' "$name" "$rc" "$took" >&2
fi
exit "$rc"
