#!/usr/bin/env bash
# tools/failed.sh COMMAND...  runs the command; when it fails, the last that is
# printed is which tests failed and what they said first: what ran beside them
# and ended later says more than a person, or the end of a log, can hold.
set -uo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$@" 2>&1 | tee "$log"
rc=${PIPESTATUS[0]}
[ "$rc" = 0 ] && exit 0
echo "==> what failed"
awk '
	/^ *--- FAIL/ || /^panic: / || /WARNING: DATA RACE/ || /^fatal error: / || /^FAIL[ \t]/ { print substr($0, 1, 240); said = 4; next }
	said > 0 && /^ +[a-z_0-9]+\.go:[0-9]+: / { print substr($0, 1, 240); said--; more = 3; next }
	more > 0 && /^        / { print substr($0, 1, 240); more-- }
' "$log" | tail -n 28
exit "$rc"
