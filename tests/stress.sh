#!/usr/bin/env bash
# Run a command several times on a busy machine, and fail if any run fails.
# tests/stress.sh RUNS LOOPS COMMAND...: for example tests/stress.sh 5 4 make test
set -euo pipefail

if (($# < 3)); then
    echo "usage: $0 RUNS LOOPS COMMAND..." >&2
    exit 2
fi
runs=$1 loops=$2
shift 2

log=$(mktemp)
busy=()
end() {
    ((loops == 0)) || kill "${busy[@]}" 2>/dev/null || true
    rm -f "$log"
}
trap end EXIT
trap 'exit 130' INT TERM

for ((i = 0; i < loops; i++)); do
    # A loop also ends when this script was killed.
    (while kill -0 $$ 2>/dev/null; do :; done) &
    busy+=($!)
done

failed=0
results=()
for ((run = 1; run <= runs; run++)); do
    SECONDS=0 outcome=passed
    "$@" 2>&1 | tee "$log" || { outcome=FAILED && failed=$((failed + 1)); }
    counts=$(sed -n 's/^=* *\([0-9].*\(passed\|failed\|error\).*\) in [0-9].*$/\1/p' "$log" | tail -n 1)
    results+=("run $run: $outcome after $SECONDS s${counts:+, $counts}")
done
printf '%s\n' "${results[@]}" "$failed of $runs runs failed"
((failed == 0))
