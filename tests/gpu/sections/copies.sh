# Programs that copy or launch while a kernel waits for them, and errors of launches: one after the other, nothing beside them, 20 s each,
# natively and in isolated mode. About 40 s. COPIES names others; COPIES_SIDES one side.
copies=${COPIES:-destroy_early first_use streams_apart answers_in_doubt default_stream async_copies copy_order callbacks many_launches launch_errors fault_illegal_address}
# shellcheck disable=SC2086
build $(printf 'tests/programs/%s.cu\n' $copies) >"$work/builds"
cat "$work/builds"; failed=$((failed + $(grep -c FAIL "$work/builds")))
copies_one() { # SIDE NAME
  local out code began text; began=$(date +%s%3N)
  if [ "$1" = native ]; then out=$(timeout -k 2 20 "$work/$2" 2>"$work/err"); code=$?
  else out=$(timeout -k 2 20 "$mica" run --mode "$1" -m 4GiB -- "$work/$2" 2>"$work/err"); code=$?; fi
  text="$1 $2, $(($(date +%s%3N) - began)) ms"
  { echo "== $text, exit $code"; echo "$out"; cat "$work/err"; } >>"$logs/copies.output"
  if [ $code = 0 ] && [ "$(tail -n 1 <<<"$out")" = ok ]; then pass "$text"
  else fail "$text" "exit $code; $(tail -n 2 <<<"$out" | tr '\n' ' ') $(tail -n 2 "$work/err" | tr '\n' ' ')"; fi
}
for name in $copies; do
  [ -x "$work/$name" ] || continue
  for side in ${COPIES_SIDES:-native isolated}; do copies_one "$side" "$name"; done
done
"$mica" events --json 2>/dev/null | tail -n 40 >"$logs/copies.events"
