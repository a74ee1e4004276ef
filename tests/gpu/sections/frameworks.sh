# PyTorch (training, SDPA, graphs, compile), Triton, CuPy and JAX: natively one after the other, then all four as tenants at once. SIDES=direct: only the latter.
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
  ones=()
  for one in "torch_train.py --compile" triton_add.py cupy_ops.py jax_ops.py; do
    # shellcheck disable=SC2086
    framework_one $side $one >"$work/${one%% *}.$side" & ones+=($!)
  done
  wait "${ones[@]}"
  cat "$work"/*.py.$side
  passed=$((passed + $(cat "$work"/*.py.$side | grep -c ^pass))); failed=$((failed + $(cat "$work"/*.py.$side | grep -c ^FAIL)))
done
