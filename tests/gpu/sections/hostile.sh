# A hostile tenant beside an honest one, isolated, half of the GPU each: results right, share kept. About 80 s on a card.
# HOSTILE_WINDOW: seconds of each measurement. HOSTILE_FLOOR: percent of its share that the honest tenant must keep.
# HOSTILE_ONLY: some of the attacks, separated by commas.
hostile_floor=0
"$mica" gpus --json | python3 -c 'import json,sys; sys.exit(json.load(sys.stdin)[0]["kind"] != "nvidia")' && hostile_floor=95
python3 "$gpu/hostile.py" "$mica" --window "${HOSTILE_WINDOW:-4}" --floor "${HOSTILE_FLOOR:-$hostile_floor}" ${HOSTILE_ONLY:+--only "$HOSTILE_ONLY"} \
  >"$work/hostile" 2>"$work/hostile.err"; hostile_code=$?
while IFS=$'\t' read -r _ verdict name text; do
  if [ "$verdict" = pass ]; then pass "$name: $text"; else fail "$name" "$text"; fi
done < <(grep $'^verdict\t' "$work/hostile")
grep -q $'^verdict\t' "$work/hostile" || fail hostile "exit $hostile_code; $(tail -n 3 "$work/hostile.err" | tr '\n' ' ')"
grep -v $'^verdict\t' "$work/hostile" | tee "$logs/hostile.table" 2>/dev/null | while IFS= read -r line; do note "$line"; done
"$mica" events --json | grep -E '"(gpu_fault|gpu_drained|gpu_hung|worker_failed|request_refused)"' | tail -n 5 | cut -c1-240 | while IFS= read -r line; do note "$line"; done
[ "$hostile_floor" = 0 ] && note "on the software GPU the share that is kept is shown and not judged: other programs use the processors too"
"$mica" doctor >"$logs/hostile.doctor" 2>&1 && pass "hostile: doctor finds nothing wrong afterwards" || fail "hostile: doctor afterwards" "$(grep -i -m2 -E 'failed|FAIL' "$logs/hostile.doctor" | tr '\n' ' ')"
