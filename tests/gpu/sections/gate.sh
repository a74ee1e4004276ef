# What a lease and a cap are charged for, and threads that must never be made to wait. About 125 s.
build "$gpu/gate.cu" "$gpu/load.cu"
within() { python3 -c 'import sys; sys.exit(not float(sys.argv[2]) <= float(sys.argv[1]) <= float(sys.argv[3]))' "${1:-0}" "$2" "$3"; }
# Work that waits for the thread that launches, beside a bursty tenant: a value in memory, a kernel that polls, a host function.
background "$mica" run -m 2GiB -s 50 -- "$work/load" burst --seconds 60 --us 50 --depth 1 >/dev/null 2>&1; beside=$child
"$mica" create waits -m 2GiB -s 50 >/dev/null
for mode in host poll callback; do
  LIMIT=20 check "work that waits for its launcher, $mode" "$mica" exec waits -- "$work/gate" "$mode" 2000
done
told=$("$mica" events --json | grep -c process_undrained)
[ "${told:-0}" -gt 0 ] && pass "processes that do not drain are told of, $told times" || fail "processes that do not drain" "no event, though leases should have been in force"
"$mica" show waits --json >"$logs/gate.waits.json" 2>/dev/null; "$mica" events --json >"$logs/gate.events.json" 2>/dev/null
"$mica" rm waits --force >/dev/null 2>&1; end "$beside"
# Kernels longer than a lease may take to drain, alone on the GPU.
for mode in long streams; do
  got=$(timeout 30 "$mica" run -m 2GiB -s 30 --cap -- "$work/gate" "$mode" 300 12 2>"$work/err" | tail -n 1)
  within "$got" 26 34 && pass "cap 30, kernels of 300 ms, $mode: $got" || fail "cap 30, kernels of 300 ms, $mode" "$got $(tail -n 2 "$work/err" | tr '\n' ' ')"
done
# One kernel that never ends: neither a gate nor a wait holds it. Alone, and beside a tenant that takes the rest.
alone=$("$work/gate" endless 0.5 2 | tail -n 1)
percent() { python3 -c 'import sys; print(round(100 * float(sys.argv[1] or 0) / float(sys.argv[2]), 1))' "$1" "$alone"; }
got=$(percent "$(timeout 30 "$mica" run -m 2GiB -s 30 --cap -- "$work/gate" endless 5 6 2>"$work/err" | tail -n 1)")
within "$got" 28.5 31.5 && pass "cap 30, a kernel without an end: $got" || fail "cap 30, a kernel without an end" "$got $(tail -n 2 "$work/err" | tr '\n' ' ')"
background "$mica" run -m 2GiB -s 70 -- "$work/load" saturate --seconds 14 --us 400 --depth 8 >/dev/null 2>&1; beside=$child
got=$(percent "$(timeout 30 "$mica" run -m 2GiB -s 30 --cap -- "$work/gate" endless 5 6 2>"$work/err" | tail -n 1)")
within "$got" 27 33 && pass "the same beside a saturating tenant: $got" || fail "a capped kernel without an end beside a saturating tenant" "$got $(tail -n 2 "$work/err" | tr '\n' ' ')"
"$mica" events --json | grep -E 'undrained|degraded' | tail -n 2 | cut -c1-240 | while IFS= read -r line; do note "$line"; done
end "$beside"
# Resized from a share to a cap after a while under leases: the past is no debt.
"$mica" create late -m 2GiB -s 30 >/dev/null
background "$mica" run -m 2GiB -s 30 -- "$work/load" burst --seconds 14 --us 50 --depth 1 >/dev/null 2>&1; beside=$child
background "$mica" exec late -- "$work/gate" long 2 16 >"$work/late" 2>&1; late=$child
sleep 6; "$mica" resize late --cap >/dev/null 2>"$work/err" || note "resize --cap: $(tail -n 1 "$work/err")"
before=$(field late launches_total); sleep 3; after=$(field late launches_total)
[ "${after:-0}" -gt "${before:-0}" ] && pass "a cap set under leases: goes on, $((after - before)) launches in 3 s" || fail "a cap set under leases" "$before, then $after launches"
end "$late"; "$mica" rm late --force >/dev/null 2>&1; end "$beside"
# The daemon is killed while a capped kernel stands still nearly all the time: it runs on, at full speed. Last, for nobody
# starts another.
background timeout 30 "$mica" run -m 2GiB -s 5 --cap -- "$work/gate" endless 7 3 >"$work/orphan" 2>"$work/err"; orphan=$child
sleep 5; kill -9 "$("$mica" stats --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["daemon"]["pid"])')"
wait "$orphan"; got=$(percent "$(tail -n 1 "$work/orphan")")
within "$got" 90 105 && pass "a capped kernel after the daemon's death: $got" || fail "a capped kernel after the daemon's death" "$got $(tail -n 2 "$work/err" | tr '\n' ' ')"
while IFS= read -r fact; do note "$fact"; done < <(timeout 20 "$work/gate" facts 2>&1)
