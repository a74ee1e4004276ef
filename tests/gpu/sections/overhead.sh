# What calls cost at the caller, both sides interleaved, medians of five processes a side.
build "$gpu/micro.cu"
for _ in 1 2 3 4 5; do
  "$work/micro" >>"$work/micro.native" 2>>"$work/err"
  "$mica" run -m 10GiB -- "$work/micro" >>"$work/micro.direct" 2>>"$work/err"
done
python3 "$gpu/tools/overhead.py" "$work/micro.native" "$work/micro.direct" >"$work/judged" 2>&1
cat "$work/judged"; passed=$((passed + $(grep -c ^pass "$work/judged"))); failed=$((failed + $(grep -c ^FAIL "$work/judged")))
grep -q '^pass\|^FAIL' "$work/judged" || fail overhead "$(tail -n 1 "$work/judged") $(tail -n 1 "$work/err")"
