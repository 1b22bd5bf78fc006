#!/bin/sh
# Runs every fuzz target of the module for FUZZTIME, one after another, and stops
# at the first finding. The table is how often each was run, and how many inputs
# it has added to its corpus. FUZZONLY, a regular expression, picks targets.
set -eu

# ran_out reports whether nothing failed but that the time was over: Go before 1.27
# sometimes takes that for a failure (golang/go#75804).
ran_out() {
	[ "$(grep -A 2 '^ *--- FAIL' "$1" | sed 1d)" = '    context deadline exceeded
FAIL' ]
}

time=${FUZZTIME:-10m} procs=${FUZZPROCS:-2}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 1' INT TERM
printf '%-24s %12s %8s  %s\n' target executions new package
for package in $(go list ./...); do
	targets=$(go test -list '^Fuzz' "$package")
	for target in $targets; do
		# The list ends with words about the package.
		case $target in Fuzz*) ;; *) continue ;; esac
		echo "$target" | grep -Eq "${FUZZONLY:-.}" || continue
		# Minimising what is interesting would take a minute each time.
		if ! go test -run='^$' -fuzz="^$target\$" -fuzztime="$time" -fuzzminimizetime=1s -parallel="$procs" -timeout=0 "$package" >"$log" 2>&1 && ! ran_out "$log"; then
			cat "$log" >&2
			echo "fuzzing has found something: $target in $package, see above" >&2
			exit 1
		fi
		sed -n 's/.*execs: \([0-9]*\) .*new interesting: \([0-9]*\) .*/\1 \2/p' "$log" | tail -n 1 |
			{ read -r executions new || executions='?' new='?'; printf '%-24s %12s %8s  %s\n' "$target" "$executions" "$new" "$package"; }
	done
done
