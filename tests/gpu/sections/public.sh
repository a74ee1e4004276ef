# Parts of PyTorch's and CuPy's own tests: those that pass natively, again in isolated mode (MODE=direct: there). PUBLIC_SUITES names a folder
# with pytorch/ (files of PyTorch's test folder), cupy/ (CuPy's tests folder) and python/ (pytest and others, where not installed), of the
# versions installed here; they are not part of this repository. PUBLIC_SUITE=cupy runs one of them. About 3 minutes.
if [ -d "${PUBLIC_SUITES:-}" ]; then
  python3 "$gpu/tools/public.py" --suites "$(cd "$PUBLIC_SUITES" && pwd)" --mica "$mica" --mode "${MODE:-isolated}" --out "$logs" \
    ${PUBLIC_SUITE:+--suite "$PUBLIC_SUITE"} --seconds "${PUBLIC_SECONDS:-120}" | tee "$logs/public.table"
  [ "${PIPESTATUS[0]}" = 0 ] && pass "public suites, as the table above says" || fail "public suites" "$(grep -E '^(pytorch|cupy): ' "$logs/public.table" | tr '\n' ';')"
else
  skip "public suites: PUBLIC_SUITES names no folder"
fi
