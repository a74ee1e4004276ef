# mica doctor with two busy virtual GPUs at 70/30, a process outside Mica, and a stray.
build "$gpu/load.cu" "$gpu/hold.cu"
"$mica" create big -m 8GiB -s 70 >/dev/null && "$mica" create little -m 4GiB -s 30 >/dev/null
background "$mica" exec big -- "$work/load" saturate --seconds 26 --us 400 --depth 8 >/dev/null 2>&1; first=$child
background "$mica" exec little -- "$work/load" saturate --seconds 26 --us 400 --depth 8 >/dev/null 2>&1; second=$child
sleep 14
"$mica" doctor --probe --json >"$logs/doctor.json" 2>"$work/err"
python3 "$gpu/tools/doctor.py" "$logs/doctor.json" big little >"$work/judged" 2>&1
cat "$work/judged"; passed=$((passed + $(grep -c ^pass "$work/judged"))); failed=$((failed + $(grep -c ^FAIL "$work/judged")))
grep -q '^pass' "$work/judged" || fail doctor "$(tail -n 1 "$work/judged") $(tail -n 2 "$work/err")"
# A process that uses the GPU without Mica, and one that belongs to a virtual GPU and lost the library on the way.
background "$work/hold" linear 512 >"$work/held.outside" 2>&1; outside=$child
background "$mica" exec little -- env -u LD_PRELOAD -u LD_LIBRARY_PATH LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" "$work/hold" linear 512 >"$work/held.stray" 2>&1; stray=$child
wait_for 20 grep -q held "$work/held.outside"; wait_for 20 grep -q held "$work/held.stray"; sleep 3.5
"$mica" doctor >"$work/doctor" 2>&1
grep -q "$outside" "$work/doctor" && pass "doctor reports a process outside Mica: $(grep -m1 "$outside" "$work/doctor" | tr -s ' ')" || fail "doctor reports a process outside Mica" "$(tail -n 3 "$work/doctor")"
grep -q "outside its limits" "$work/doctor" && pass "doctor reports a stray: $(grep -m1 "outside its limits" "$work/doctor" | tr -s ' ' | cut -c1-160)" || fail "doctor reports a stray" "$(tail -n 3 "$work/doctor")"
end "$outside"; "$mica" rm big little --force >/dev/null; end "$stray"; end "$first"; end "$second"
