# Mica's ledger against the driver's own figure for the process, for every way to get memory.
build "$gpu/hold.cu"
"$mica" ls >/dev/null
timeout 240 python3 "$gpu/tools/accounting.py" "$mica" "$work/hold" 12GiB ${ACCOUNTING:-} 2>"$work/err" | tee "$logs/accounting"
counted=$(grep -c '^pass' "$logs/accounting"); passed=$((passed + counted)); failed=$((failed + $(grep -c '^FAIL' "$logs/accounting")))
[ "$counted" -gt 0 ] || fail accounting "nothing was compared: $(tail -n 2 "$work/err" | tr '\n' ' ')"
