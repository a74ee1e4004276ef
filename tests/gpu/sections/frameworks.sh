# The framework suite (frameworks/suite): about a hundred cases of PyTorch, Triton, CuPy, JAX and Numba natively, in direct and in isolated
# mode, compared in one table; FRAMEWORK_SECONDS limits each mode. Then PyTorch, Triton, CuPy and JAX natively and as four tenants
# at once. SIDES="native isolated" selects modes, CASES=REGEX selects cases and leaves out the tenants.
suite_table="$logs/frameworks.table"
python3 "$gpu/frameworks/suite/suite.py" --mica "$mica" --modes "${SIDES:-native direct isolated}" --cases "${CASES:-}" \
  --out "$logs" --seconds "${FRAMEWORK_SECONDS:-75}" | tee "$suite_table"
[ "${PIPESTATUS[0]}" = 0 ] && pass "framework suite, as the table above says" || fail "framework suite" "$(grep -E '^[a-z]+: .* failed$' "$suite_table" | tr '\n' ';')"
framework_one() { # SIDE FILE [ARGUMENT]
  local out code name="$1 $2"; shift
  local file=$1; shift
  if [ "${name%% *}" = native ]; then
    out=$(XLA_PYTHON_CLIENT_MEM_FRACTION=.2 timeout 150 python3 "$gpu/frameworks/$file" "$@" 2>"$work/$file.err"); code=$?
  else
    out=$(timeout 150 "$mica" run -m 20GiB -s 25 -- python3 "$gpu/frameworks/$file" "$@" 2>"$work/$file.err"); code=$?
  fi
  if [ $code = 0 ] && [ "$(tail -n 1 <<<"$out")" = ok ]; then echo "pass  $name $* ($(head -n 1 <<<"$out" | grep -v '^ok$'))"
  else echo "FAIL  $name $*: exit $code; $(tail -n 2 <<<"$out" | tr '\n' ' '); $(tail -n 3 "$work/$file.err" | tr '\n' ' ')"; fi
}
for side in ${SIDES:-native direct}; do
  { [ "$side" = isolated ] || [ -n "${CASES:-}" ]; } && continue
  ones=()
  for one in "torch_train.py --compile" triton_add.py cupy_ops.py jax_ops.py; do
    # shellcheck disable=SC2086
    framework_one $side $one >"$work/${one%% *}.$side" & ones+=($!)
  done
  wait "${ones[@]}"
  cat "$work"/*.py.$side
  passed=$((passed + $(cat "$work"/*.py.$side | grep -c ^pass))); failed=$((failed + $(cat "$work"/*.py.$side | grep -c ^FAIL)))
done
