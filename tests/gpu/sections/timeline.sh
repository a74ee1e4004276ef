# Who had the GPU when: the daemon's turns of two bursty tenants and a saturating one against what they counted themselves, within
# 2 points. Without a GPU: the software GPU. BENCH_SECONDS is the length of the window.
if "$mica" bench views --only timeline --seconds "${BENCH_SECONDS:-10}" >"$logs/timeline" 2>&1; then
  pass "timeline" "$(tail -1 "$logs/timeline")"
else
  fail "timeline" "$(tail -3 "$logs/timeline")"
fi
