# SIGKILL of a tenant with 20 GiB while another one works: how long after the driver has freed it are memory and share back?
build "$gpu/load.cu" "$gpu/hold.cu"
"$mica" create crash -m 30GiB -s 50 >/dev/null && "$mica" create beside -m 4GiB -s 50 >/dev/null
worst=-100000
for round in 1 2 3; do
  background "$mica" exec beside -- "$work/load" saturate --seconds 12 --us 400 --depth 8 >/dev/null 2>&1; beside=$child
  background "$mica" exec crash -- "$work/hold" linear 20480 busy >"$work/held" 2>&1; holder=$child
  wait_for 30 grep -q held "$work/held" || { fail "SIGKILL" "the tenant did not start: $(cat "$work/held")"; break; }
  sleep 1.5
  result=$(python3 "$gpu/tools/crash.py" crash 20 beside 2>"$work/err")
  end "$holder"; end "$beside"
  echo "note  SIGKILL round $round: $result"
  verdict=$(python3 - "$result" <<'PY'
import json, sys
r = json.loads(sys.argv[1] or "{}")
late = [r.get(k) for k in ("ledger_after_driver", "share_after_driver")]
if r.get("charged_before_bytes", 0) < 20 << 30: print("20 GiB were not charged")
elif None in late: print("something never came back")
elif max(late) > 100: print(f"{max(late)} ms")
else: print("ok", max(late))
PY
)
  case "$verdict" in ok*) pass "SIGKILL of 20 GiB: all back ${verdict#ok } ms after the driver freed it" ;; *) fail "SIGKILL of 20 GiB" "$verdict $(tail -n 2 "$work/err")" ;; esac
done
"$mica" rm crash beside --force >/dev/null
