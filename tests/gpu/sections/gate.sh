# What a lease and a cap are charged for, and threads that must never be made to wait. About 70 s.
build "$gpu/gate.cu" "$gpu/load.cu"
within() { python3 -c 'import sys; sys.exit(not float(sys.argv[2]) <= float(sys.argv[1]) <= float(sys.argv[3]))' "${1:-0}" "$2" "$3"; }
# Kernels longer than a lease may take to drain, alone on the GPU.
for mode in long streams; do
  got=$(timeout 40 "$mica" run -m 2GiB -s 30 --cap -- "$work/gate" "$mode" 300 15 2>"$work/err" | tail -n 1)
  within "$got" 26 34 && pass "cap 30, kernels of 300 ms, $mode: $got" || fail "cap 30, kernels of 300 ms, $mode" "$got $(tail -n 2 "$work/err" | tr '\n' ' ')"
done
# Resized from a share to a cap after a while under leases: the past is no debt.
"$mica" create late -m 2GiB -s 30 >/dev/null
background "$mica" run -m 2GiB -s 30 -- "$work/load" burst --seconds 14 --us 50 --depth 1 >/dev/null 2>&1; beside=$child
background "$mica" exec late -- "$work/gate" long 2 16 >"$work/late" 2>&1; late=$child
sleep 8; "$mica" resize late --cap true >/dev/null 2>"$work/err" || note "resize --cap: $(tail -n 1 "$work/err")"
before=$("$mica" show late --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["launches_total"])'); sleep 3
after=$("$mica" show late --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["launches_total"])')
[ "${after:-0}" -gt "${before:-0}" ] && pass "a cap set under leases: goes on, $((after - before)) launches in 3 s" || fail "a cap set under leases" "$before, then $after launches"
end "$late"; "$mica" rm late --force >/dev/null 2>&1
# A stream that waits for a word written by the thread that launches, beside a bursty tenant.
LIMIT=30 check "a thread that its own stream waits for" "$mica" run -m 2GiB -s 50 -- "$work/gate" host 2000
end "$beside"
while IFS= read -r fact; do note "$fact"; done < <(timeout 30 "$work/gate" facts 2>&1)
