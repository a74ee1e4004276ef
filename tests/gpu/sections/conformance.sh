# The device interface's own suite and one pass through it, if their programs were built:
#   cargo build --release -p mica-backend-cuda --features conformance --example conformance --example probe
example() { for at in "$bin/$1" "$bin/examples/$1"; do [ -x "$at" ] && { echo "$at"; return; }; done; }
if program=$(example conformance) && [ -n "$program" ]; then
  timeout 150 "$program" --seconds 30 --jobs 4 >"$logs/conformance" 2>&1; code=$?
  grep -E '^(WRONG|DIED|HUNG|FAILED|LOST)' "$logs/conformance"
  [ $code = 0 ] && pass "conformance: $(tail -n 1 "$logs/conformance"), $(grep -c '^skip' "$logs/conformance") skipped" || fail conformance "exit $code; $(tail -n 1 "$logs/conformance")"
else skip "conformance: not built"; fi
if program=$(example probe) && [ -n "$program" ]; then
  timeout 60 "$program" >"$logs/probe" 2>&1; code=$?
  [ $code = 0 ] && pass "probe" || fail probe "exit $code; $(tail -n 2 "$logs/probe" | tr '\n' ' ')"
else skip "probe: not built"; fi
