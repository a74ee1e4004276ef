# The specification's numbers; BENCH_SECONDS is the length of each window, BENCH_ONLY chooses scenarios by name.
"$mica" bench gpu --seconds "${BENCH_SECONDS:-10}" ${BENCH_ONLY:+--only "$BENCH_ONLY"} | tee "$logs/bench"
