# Every native program of tests/programs, on the bare driver and in direct mode, eight at a time. Prints the failures.
build tests/programs/*.cu >"$work/builds"
cat "$work/builds"; failed=$((failed + $(grep -c FAIL "$work/builds")))
program_one() { # SIDE SOURCE: one line into the results
  local name out code; name=$(basename "$2" .cu)
  [ -x "$work/$name" ] || return 0
  if [ "$1" = native ]; then
    grep -q '^// native: skip' "$2" && return 0
    out=$(timeout 90 "$work/$name" 2>"$work/$name.native.err"); code=$?
  else
    out=$(timeout 90 "$mica" run -m 4GiB -- "$work/$name" 2>"$work/$name.direct.err"); code=$?
  fi
  if [ $code = 0 ] && [ "$(tail -n 1 <<<"$out")" = ok ]; then echo "pass $1 $name"
  else
    # One write, so that programs side by side do not mix; all of it stays in the kept file.
    printf '%s\n' "FAIL $1 $name: exit $code; $(tail -n 12 <<<"$out" | tr '\n' ' '); $(tail -n 2 "$work/$name.$1.err" | tr '\n' ' ')
$(sed "s/^/  $name | /" <<<"$out")"
  fi
}
export -f program_one; export mica
for side in native direct; do
  ls tests/programs/*.cu | xargs -P 8 -I{} bash -c "program_one $side {}" >"$logs/programs.$side"
  grep '^FAIL' "$logs/programs.$side" | sed 's/^FAIL/FAIL /'
  good=$(grep -c '^pass' "$logs/programs.$side"); bad=$(grep -c '^FAIL' "$logs/programs.$side")
  failed=$((failed + bad))
  [ "$bad" = 0 ] && [ "$good" -gt 0 ] && pass "$side: $good programs" || note "$side: $good good, $bad bad"
done
