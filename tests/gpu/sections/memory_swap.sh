# Swappable virtual GPUs on the real GPU: tenants whose memory does not fit together change places. About 5 minutes. SWAP_BENCH=0 leaves the figures out.
build "$gpu/swap.cu"
mib=${SWAP_MIB:-8192}
limit=$((mib + 1536))
# Most of the card belongs to a virtual GPU that nobody uses, so that two tenants do not fit beside it.
total=$("$mica" gpus --json | python3 -c 'import json,sys; print(next(g["memory_total_bytes"] for g in json.load(sys.stdin) if g["kind"] == "nvidia") >> 20)')
filler=$((total - 1024 - 64 - limit - mib / 4))
"$mica" create filler -m "${filler}MiB" >/dev/null || { fail "a filler of $filler MiB" "cannot be made"; return 0; }
events() { "$mica" events --json 2>/dev/null | grep -E '"swapped_(out|in)"' | sed 's/.*"message":"\([^"]*\)".*/\1/'; }
# Alone: swappable memory costs nothing and nothing moves.
alone=$(timeout 60 "$mica" run --gpu nvidia --mode isolated -m "${limit}MiB" --no-swap -- "$work/swap" "$mib" 6 2>/dev/null | head -n 1)
LIMIT=60 check "swappable and alone (not swappable: $alone)" "$mica" run --gpu nvidia --swap -m "${limit}MiB" -- "$work/swap" "$mib" 6
[ -z "$(events)" ] && pass "alone: nothing moved" || fail "alone: nothing moves" "$(events | tail -n 1)"
# Three tenants in turns: each finishes, no word is wrong.
for tenant in 1 2 3; do
  background timeout 120 "$mica" run --gpu nvidia --name "swap$tenant" --swap -m "${limit}MiB" -- "$work/swap" "$mib" 30 >"$work/swap$tenant.out" 2>&1
  eval "swap$tenant=\$child"
done
for tenant in 1 2 3; do
  eval "wait \$swap$tenant"; code=$?
  [ $code = 0 ] && [ "$(tail -n 1 "$work/swap$tenant.out")" = ok ] \
    && pass "three tenants of $mib MiB, number $tenant: $(head -n 1 "$work/swap$tenant.out")" \
    || fail "three tenants of $mib MiB, number $tenant" "exit $code; $(tail -n 3 "$work/swap$tenant.out" | tr '\n' ' ')"
done
events | tail -n 8 | while IFS= read -r line; do note "$line"; done
events >"$logs/memory_swap.events"
# Off the card and back by hand, in the first seconds of a program and later.
parked() { # parked SECONDS: suspended so long after the start
  "$mica" create parked --gpu nvidia --swap -m "${limit}MiB" >/dev/null
  background timeout 60 "$mica" exec parked -- "$work/swap" "$mib" 12 >"$work/parked" 2>&1; parked=$child
  sleep "$1"; "$mica" suspend --free parked >/dev/null
  is_away() { [ "$("$mica" show parked --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["residency"]["state"])')" = away ]; }
  wait_for 5 is_away
  state=$("$mica" show parked --json | python3 -c 'import json,sys; r=json.load(sys.stdin)["residency"]; print(r["state"], r["away_bytes"] >> 20)')
  "$mica" resume parked >/dev/null; wait "$parked"; code=$?
  [ "${state%% *}" = away ] && [ $code = 0 ] && [ "$(tail -n 1 "$work/parked")" = ok ] \
    && pass "suspended with --free after $1 s: $state MiB, then $(head -n 1 "$work/parked")" || fail "suspended with --free after $1 s" "$state; exit $code; $(tail -n 2 "$work/parked" | tr '\n' ' ')"
  events | tail -n 2 | while IFS= read -r line; do note "$line"; done
  "$mica" rm parked --force >/dev/null 2>&1
}
parked 2.5; parked 5
"$mica" rm filler --force >/dev/null 2>&1
# What moving costs, with a daemon of its own: both sides in one run. BENCH_SECONDS is the length of the turns' window.
if [ "${SWAP_BENCH:-1}" = 1 ]; then
  "$mica" bench memory --gpu nvidia --json ${BENCH_SECONDS:+--seconds "$BENCH_SECONDS"} >"$logs/bench_memory.json" 2>"$work/bench_memory" \
    && pass "mica bench memory: every figure reached" || note "mica bench memory: exit $?; $(tail -n 1 "$work/bench_memory")"
  python3 -c 'import json,sys
for r in json.load(open(sys.argv[1])): print("%s: %s | %s (goal %s)%s" % (r["what"], r["native"], r["mica"], r["goal"], "" if r["reached"] is not False else " NOT REACHED"))' \
    "$logs/bench_memory.json" | while IFS= read -r line; do note "$line"; done
fi
