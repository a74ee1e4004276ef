# PyTorch in isolated mode against native: one process a side, in turns, medians of SPEED_ROUNDS (default 3), ratio and goal. About 40 s a round.
if ! python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  skip "PyTorch isolated: no PyTorch with CUDA here"
else
  speed_one() { # SIDE
    local code
    if [ "$1" = native ]; then timeout 120 python3 "$gpu/frameworks/speed.py"; else timeout 120 "$mica" run --mode isolated -m 60GiB -- python3 "$gpu/frameworks/speed.py"; fi \
      >>"$work/speed.$1" 2>"$work/speed.$1.err"; code=$?
    [ $code = 0 ] || fail "PyTorch isolated, a process $1" "exit $code; $(tail -n 3 "$work/speed.$1.err" | tr '\n' ' ')"
  }
  # The first import finds cold files.
  python3 -c 'import torch; torch.ones(1, device="cuda").item()' 2>/dev/null
  for round in $(seq "${SPEED_ROUNDS:-3}"); do
    if [ $((round % 2)) = 1 ]; then speed_one native; speed_one isolated; else speed_one isolated; speed_one native; fi
  done
  python3 "$gpu/tools/isolated_speed.py" "$work/speed.native" "$work/speed.isolated" "$logs/isolated_speed.json" >"$work/judged" 2>&1
  cat "$work/judged"; passed=$((passed + $(grep -c ^pass "$work/judged"))); failed=$((failed + $(grep -c ^FAIL "$work/judged")))
  grep -q '^pass\|^FAIL' "$work/judged" || fail "PyTorch isolated" "$(tail -n 1 "$work/judged")"
  [ "$logs" = "$work" ] || cp "$work"/speed.native "$work"/speed.isolated "$logs" 2>/dev/null
fi
