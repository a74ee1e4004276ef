# Every single answer of the programs that ask odd things, from the bare driver: against what the programs expect, and
# against direct mode and the software GPU, which has a daemon of its own.
build tests/programs/driver_nulls.cu tests/programs/answers_in_doubt.cu
nulls_compare() { # NAME SIDE COMMAND...: every answer that differs from the driver's, as < driver's and > ours
  local name=$1 side=$2; shift 2
  timeout -k 5 40 "$@" all >"$logs/$name.$side" 2>"$work/$name.err"
  local code=$? lines; lines=$(diff "$logs/$name.native" "$logs/$name.$side" | grep '^[<>]')
  if [ -z "$lines" ] && [ -s "$logs/$name.$side" ]; then
    pass "$name $side: $(wc -l <"$logs/$name.$side") answers as the driver's"
  else
    fail "$name $side" "exit $code; $(wc -l <<<"$lines") lines differ; $(tail -n 2 "$work/$name.err" | tr '\n' ' ')"
    cut -c1-160 <<<"$lines" | sed "s/^/  $name $side | /" | head -n 60
  fi
}
printf '[software_gpu]\noffer = "always"\n' >"$work/software.toml"
background env MICA_RUNTIME_DIR="$work/software" "$mica" daemon --config "$work/software.toml" >"$work/software.log" 2>&1
wait_for 10 env MICA_RUNTIME_DIR="$work/software" "$mica" ls
for name in driver_nulls answers_in_doubt; do
  [ -x "$work/$name" ] || continue
  out=$(timeout -k 5 40 "$work/$name" 2>&1); code=$?
  if [ $code = 0 ]; then pass "$name: all as expected"
  else
    fail "$name" "exit $code, $(wc -l <<<"$out") lines"
    cut -c1-160 <<<"$out" | sed "s/^/  $name native | /" | head -n 60
  fi
  timeout -k 5 40 "$work/$name" all >"$logs/$name.native" 2>/dev/null
  nulls_compare "$name" direct "$mica" run -m 4GiB -- "$work/$name"
  nulls_compare "$name" software env MICA_RUNTIME_DIR="$work/software" "$mica" run -m 1GiB --mode isolated --gpu software -- "$work/$name"
done
MICA_RUNTIME_DIR="$work/software" "$mica" daemon --stop >/dev/null 2>&1
