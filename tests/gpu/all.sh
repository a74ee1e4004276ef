#!/usr/bin/env bash
# Everything a real GPU decides, in one call of at most MICA_GPU_SECONDS (default 520), most telling first; the benchmark takes what
# time is left. Each section runs by itself (run.sh); full output goes to $OUT/NAME.log, failures and a table come here.
# usage: tests/gpu/all.sh [SECTION]...
set -u
here=$(cd "$(dirname "$0")" && pwd)
total=${MICA_GPU_SECONDS:-520}
# Section and the most seconds it may take.
plan="overhead:60 gate:170 life:90 accounting:130 ways:40 shared:40 crash:60 users:40 container:40 smi:30 doctor:50 symbols:20 memory:60 nulls:60 programs:150 isolated:160 conformance:100 ops:200 frameworks:330 copies:120 snapshot:140"
keep=${OUT:-$(mktemp -d)}; mkdir -p "$keep"; export OUT="$keep"
wanted=" $* "
rows=()
for entry in $plan bench:0; do
  name=${entry%%:*}; most=${entry##*:}; left=$((total - SECONDS))
  [ "$wanted" = "  " ] || [[ "$wanted" == *" $name "* ]] || continue
  if [ "$name" = bench ]; then
    # About 70 windows and half a second around each.
    export BENCH_SECONDS=${BENCH_SECONDS:-$(python3 -c "print(max(0.5, min(4.0, ($left - 60) / 70 - 1.2)))")}
    most=$left
  fi
  if [ "$left" -lt 15 ]; then rows+=("$name|-|-|-|-|not run: no time left"); continue; fi
  begun=$SECONDS
  timeout -k 5 $((most < left ? most : left)) "$here/run.sh" "$name" >"$keep/$name.log" 2>&1; code=$?
  count=$(grep -E '^[0-9]+ passed' "$keep/$name.log" | tail -n 1)
  # shellcheck disable=SC2086
  set -- ${count:-? passed, ? failed, ? skipped}
  rows+=("$name|$1|$3|$5|$((SECONDS - begun)) s|$([ $code = 124 ] && echo 'ran out of time')")
  echo "== $name"
  grep -E '^(FAIL|skip|note)|^  [a-z_ ]+ \| |ratio|goal|SIGKILL|MiB' "$keep/$name.log" | cut -c1-260 | head -n 60
  [ "$name" = bench ] && tail -n 45 "$keep/bench.log" | cut -c1-200
done
echo
printf '%-12s %7s %7s %8s %7s\n' section passed failed skipped time
for row in "${rows[@]}"; do IFS='|' read -r a b c d e f <<<"$row"; printf '%-12s %7s %7s %8s %7s %s\n' "$a" "$b" "$c" "$d" "$e" "$f"; done
! printf '%s\n' "${rows[@]}" | grep -qvE '^[a-z]+\|[0-9]+\|0\|'
