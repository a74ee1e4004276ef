# Every native program of tests/programs, on the bare driver and in direct mode, eight at a time, each for 40 seconds
# at most. Prints what differs. What cannot be begun within PROGRAMS_SECONDS is left out, and counted. SIDES="direct isolated"
# names other modes.
programs_end=$(($(date +%s) + ${PROGRAMS_SECONDS:-100})); export programs_end
build tests/programs/*.cu >"$work/builds"
cat "$work/builds"; failed=$((failed + $(grep -c FAIL "$work/builds")))
program_one() { # SIDE SOURCE: one line into the results, and what the program said if it failed
  local name out code; name=$(basename "$2" .cu)
  [ -x "$work/$name" ] || return 0
  [ "$1" = native ] && grep -q '^// native: skip' "$2" && return 0
  if [ "$(date +%s)" -gt "$programs_end" ]; then echo "late $1 $name"; return 0; fi
  if [ "$1" = native ]; then
    out=$(timeout -k 5 40 "$work/$name" 2>"$work/$name.native.err"); code=$?
  else
    out=$(timeout -k 5 40 "$mica" run -m 4GiB --mode "$1" -- "$work/$name" 2>"$work/$name.$1.err"); code=$?
  fi
  if [ $code = 0 ] && [ "$(tail -n 1 <<<"$out")" = ok ]; then echo "pass $1 $name"
  else
    # One write, so that programs side by side do not mix; all of it stays in the kept file.
    printf '%s\n' "FAIL $1 $name: exit $code; $(tail -n 2 "$work/$name.$1.err" | tr '\n' ' ')
$({ echo "$out"; tail -n 5 "$work/$name.$1.err"; } | sed "s/^/  $name | /")"
  fi
}
export -f program_one; export mica
for side in ${SIDES:-native direct}; do
  # The longest first, so that nothing waits for it at the end.
  { echo tests/programs/process_life.cu; ls tests/programs/*.cu | grep -v process_life; } |
    xargs -P 8 -I{} bash -c "program_one $side {}" >"$logs/programs.$side"
  sed 's/^FAIL/FAIL /' "$logs/programs.$side" | cut -c1-200 |
    awk '/^FAIL/ { lines = 0 } /^FAIL|^  / { if (lines++ <= 30) print }'
  count() { grep -c "^$1" "$logs/programs.$side"; }
  good=$(count pass); bad=$(count FAIL); late=$(count late)
  failed=$((failed + bad + late))
  [ "$bad$late" = 00 ] && [ "$good" -gt 0 ] && pass "$side: $good programs" ||
    note "$side: $good good, $bad bad, $late not begun for want of time"
done
