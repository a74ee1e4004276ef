# The compute library in an isolated virtual GPU against PyTorch outside of Mica: every kernel against f64, then rates. With tensor
# cores off the same command must load no code that has them, and 16-bit products must still be right. OPS_ONLY selects cases.
ops_bench() { timeout "${OPS_SECONDS:-300}" "$mica" run --mode isolated -m "${OPS_MEMORY:-60GiB}" "$@"; }
if ops_bench -- "$mica" bench ops ${OPS_ONLY:+--only "$OPS_ONLY"} >"$work/ops" 2>"$work/ops.err"; then pass "mica bench ops"
elif grep -q 'kernels agree' "$work/ops"; then note "mica bench ops: not every goal was reached"
else fail "mica bench ops" "$(tail -n 3 "$work/ops.err" | tr '\n' ' ')"; fi
cat "$work/ops"; [ "$logs" = "$work" ] || cp "$work/ops" "$work/ops.err" "$logs"
if ops_bench --no-tensor-cores -- "$mica" bench ops --only "kernels agree" >"$work/ops.off" 2>"$work/ops.off.err" && ! grep -q mma "$work/ops.off"
then pass "mica bench ops, tensor cores off: $(grep -o 'gemm_[a-z0-9, ]*' "$work/ops.off" | head -n 1)"
else fail "mica bench ops, tensor cores off" "$(tail -n 2 "$work/ops.off" | tr '\n' ' ') $(tail -n 2 "$work/ops.off.err" | tr '\n' ' ')"; fi
