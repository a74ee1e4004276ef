# The memory limit: every way of asking until refused, eight processes racing, PyTorch, CuPy and JAX.
build "$gpu/fill.cu" "$gpu/race.cu"
judged() { # NAME JUDGE COMMAND...: what the command printed is judged by tools/judge.py
  local name=$1 judge=$2 out said; shift 2
  out=$(timeout 60 "$@" 2>"$work/err")
  if said=$(python3 "$gpu/tools/judge.py" "$judge" <<<"$out" 2>&1); then pass "$name: $said"
  else fail "$name" "$(tail -n 1 <<<"$said"); $(tail -n 2 "$work/err" | tr '\n' ' ')"; fi
}
judged "limit 10 GiB, every way, MiB" fill "$mica" run -m 10GiB -- "$work/fill" 256
judged "eight processes racing for 10 GiB" race "$mica" run -m 10GiB -- "$work/race" 8 4 96
for framework in torch cupy jax; do
  check "limit 10 GiB, $framework until refused, MiB" "$mica" run -m 10GiB -- python3 "$gpu/frameworks/until_refused.py" "$framework"
done
check "limit 10 GiB JAX, preallocating" "$mica" run -m 10GiB -- python3 "$gpu/frameworks/jax_ops.py"
