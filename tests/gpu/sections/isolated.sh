# Programs in isolated mode on the real GPU: a worker owns the device, the program has no access to it. About 110 s.
few="vector_add reduction matmul_tiled streams_events atomics memcpy_kinds texture_2d graph_capture driver_module library_api printf_device quota"
sources=$(for name in $few; do echo "tests/programs/$name.cu"; done)
# shellcheck disable=SC2086
build $sources
for source in $sources; do
  name=$(basename "$source" .cu); [ -x "$work/$name" ] || continue
  LIMIT=60 check "isolated $name" "$mica" run --mode isolated -m 4GiB -- "$work/$name"
done
build "$gpu/apart.cu"
LIMIT=60 check "isolated addresses apart" "$mica" run --mode isolated -m 4GiB -- "$work/apart"
# Bursty tenants and a cap, both sides.
"$mica" bench gpu --seconds "${BENCH_SECONDS:-6}" --only isolated: | tee "$work/bench" "$logs/isolated.bench"
rc=${PIPESTATUS[0]}
[ "$rc" = 0 ] && pass "isolated: bursty tenants and a cap, as the table above says" || fail "isolated: bursty tenants and a cap" "see the table above"
build "$gpu/gate.cu" "$gpu/load.cu"
within() { python3 -c 'import sys; sys.exit(not float(sys.argv[2]) <= float(sys.argv[1]) <= float(sys.argv[3]))' "${1:-0}" "$2" "$3"; }
# Work that waits for the thread that launches, under leases: a kernel that polls, a host function whose return must be heard.
background "$mica" run --mode isolated -m 2GiB -s 50 -- "$work/load" burst --seconds 60 --us 50 --depth 1 >/dev/null 2>&1; beside=$child
sleep 3
for mode in poll callback; do
  LIMIT=40 check "isolated, work that waits for its launcher, $mode" "$mica" run --mode isolated -m 2GiB -s 50 -- "$work/gate" "$mode" 500
done
end "$beside"
# A cap on one kernel that never ends: the worker's channels are stopped and started.
alone=$("$work/gate" endless 0.5 2 | tail -n 1)
got=$(timeout 30 "$mica" run --mode isolated -m 2GiB -s 30 --cap -- "$work/gate" endless 5 6 2>"$work/err" | tail -n 1)
got=$(python3 -c 'import sys; print(round(100 * float(sys.argv[1] or 0) / float(sys.argv[2]), 1))' "$got" "$alone")
within "$got" 28.5 31.5 && pass "isolated, cap 30, a kernel without an end: $got % of the bare driver's" || fail "isolated, cap 30, a kernel without an end" "$got $(tail -n 2 "$work/err" | tr '\n' ' ')"
# Suspended, a tenant's work stops and goes on afterwards: launches, and one kernel that never ends, which no gate holds.
"$mica" create still --mode isolated -m 2GiB -s 50 >/dev/null
background "$mica" exec still -- "$work/load" saturate --seconds 12 --us 400 --depth 8 >"$work/still" 2>&1; still=$child
sleep 5; before=$(field still launches_total); sleep 1; running=$(($(field still launches_total) - before))
"$mica" suspend still >/dev/null; sleep 0.5; before=$(field still launches_total); sleep 1.5; stopped=$(($(field still launches_total) - before))
"$mica" resume still >/dev/null; before=$(field still launches_total); sleep 1; again=$(($(field still launches_total) - before))
[ "$running" -gt 0 ] && [ "$stopped" = 0 ] && [ "$again" -gt $((running / 2)) ] && wait "$still" \
  && pass "isolated, suspended and resumed: $running launches in a second, $stopped, $again" \
  || fail "isolated, suspended and resumed" "$running launches in a second, $stopped, $again; $(tail -n 1 "$work/still")"
background timeout 40 "$mica" exec still -- "$work/gate" endless 8 3 >"$work/endless" 2>&1; still=$child
sleep 6; "$mica" suspend still >/dev/null; sleep 8; "$mica" resume still >/dev/null; wait "$still"; code=$?
got=$(tail -n 1 "$work/endless")
[ $code = 0 ] && within "$got" 0 0 && pass "isolated, a kernel without an end, suspended: $got rounds in a second ($alone on the bare driver), and it ends after that" \
  || fail "isolated, a kernel without an end, suspended" "exit $code, $got rounds in a second ($alone on the bare driver)"
"$mica" doctor --json >"$logs/isolated.doctor.json" 2>/dev/null
"$mica" events --json | grep -E 'undrained|degraded|suspended' | tail -n 3 | cut -c1-240 | while IFS= read -r line; do note "$line"; done
"$mica" rm still --force >/dev/null 2>&1
# What becomes of memory when a suspended tenant's program is killed: its context's channels are stopped.
"$mica" create killed --mode isolated -m 2GiB -s 50 >/dev/null
background "$mica" exec killed -- "$work/load" saturate --seconds 30 --us 400 --depth 8 >/dev/null 2>&1; victim=$child
sleep 5; held=$(field killed memory_used_bytes); "$mica" suspend killed >/dev/null; sleep 0.5; kill -9 "$victim"; sleep 3
left=$(field killed memory_used_bytes)
[ "${held:-0}" -gt 0 ] && [ "$left" = 0 ] && pass "isolated, killed while suspended: $held bytes held before, $left 3 s after" \
  || fail "isolated, killed while suspended" "$held bytes held before, $left 3 s after"
"$mica" rm killed --force >/dev/null 2>&1
