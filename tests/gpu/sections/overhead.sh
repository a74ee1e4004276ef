# What calls cost at the caller: pairs of processes on the same core, one after the other, first one side first and then the other.
build "$gpu/micro.cu"
on_core() { # CORE SIDE
  if [ "$2" = native ]; then taskset -c "$1" "$work/micro"; else taskset -c "$1" "$mica" run -m 10GiB -- "$work/micro"; fi >>"$work/micro.$2" 2>>"$work/err"
}
on_core 0 native; on_core 0 direct; rm -f "$work"/micro.native "$work"/micro.direct # the first of each finds cold files
for round in 1 2 3 4 5 6 7 8; do
  core=$(((round * 2 + 1) % $(nproc)))
  if [ $((round % 2)) = 1 ]; then on_core $core native; on_core $core direct; else on_core $core direct; on_core $core native; fi
done
python3 "$gpu/tools/overhead.py" "$work/micro.native" "$work/micro.direct" >"$work/judged" 2>&1
cat "$work/judged"; passed=$((passed + $(grep -c ^pass "$work/judged"))); failed=$((failed + $(grep -c ^FAIL "$work/judged")))
grep -q '^pass\|^FAIL' "$work/judged" || fail overhead "$(tail -n 1 "$work/judged") $(tail -n 1 "$work/err")"
cp "$work"/micro.native "$work"/micro.direct "$logs" 2>/dev/null
