# Odd ways to memory, and odd ends of it: charged while it is held, and no longer.
build "$gpu/ways.cu"
timeout 60 "$mica" run -m 10GiB -- "$work/ways" 2>"$work/err" | tee "$logs/ways"
counted=$(grep -c '^pass' "$logs/ways"); passed=$((passed + counted)); failed=$((failed + $(grep -c '^FAIL' "$logs/ways")))
[ "$counted" -gt 0 ] || fail ways "nothing was tried: $(tail -n 2 "$work/err" | tr '\n' ' ')"
