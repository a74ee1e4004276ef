#!/usr/bin/env bash
# The cases that only a real GPU can decide. Needs nvcc and, for the frameworks, their Python packages.
# usage: tests/gpu/run.sh [programs] [frameworks] [memory] [crash] [bench]   (default: all but bench)
# MICA_BIN: folder with mica, libmica_shim.so and libmica_nvml_shim.so.
set -u
cd "$(dirname "$0")/../.."
mica="${MICA_BIN:-target/release}/mica"; work=$(mktemp -d); export MICA_RUNTIME_DIR="$work/mica"; passed=0; failed=0
sections="${*:-programs frameworks memory crash}"
trap '"$mica" daemon --stop >/dev/null 2>&1; rm -rf "$work"' EXIT
pass() { echo "pass  $1"; passed=$((passed + 1)); }
fail() { echo "FAIL  $1: $2"; failed=$((failed + 1)); }
check() { # name, expected last line, command...
  local name=$1; shift; local out; out=$(timeout 180 "$@" 2>"$work/err"); local code=$?
  if [ $code = 0 ] && [ "$(tail -n 1 <<<"$out")" = ok ]; then pass "$name $(head -n 1 <<<"$out" | grep -v '^ok$')"; else fail "$name" "exit $code; $(tail -n 2 <<<"$out"); $(tail -n 3 "$work/err")"; fi
}
build() { local n; n=$(basename "$1" .cu); nvcc -arch=sm_90 -cudart static $(sed -n 's#^// nvcc: ##p' "$1") -o "$work/$n" "$1" >"$work/$n.log" 2>&1 || echo "FAIL  build $n: $(grep -m1 error "$work/$n.log")"; }
export -f build; export work

if grep -q programs <<<"$sections"; then
  ls tests/programs/*.cu | xargs -P "$(nproc)" -I{} bash -c 'build {}'
  for source in tests/programs/*.cu; do
    n=$(basename "$source" .cu); [ -x "$work/$n" ] || { fail "$n" "not built"; continue; }
    grep -q '^// native: skip' "$source" || check "native $n" "$work/$n"
    check "direct $n" "$mica" run -m 6GiB -- "$work/$n"
  done
fi
if grep -q frameworks <<<"$sections"; then
  for f in "torch_train.py --compile" triton_add.py cupy_ops.py jax_ops.py; do
    check "native $f" python3 tests/gpu/frameworks/$f
    check "direct $f" "$mica" run -m 20GiB -s 50 -- python3 tests/gpu/frameworks/$f
  done
  "$mica" run -m 10GiB -- nvidia-smi --query-gpu=name,memory.total,memory.used --format=csv,noheader
fi
if grep -q memory <<<"$sections"; then check "limit 10 GiB PyTorch" "$mica" run -m 10GiB -- python3 tests/gpu/frameworks/limit_torch.py; fi
if grep -q crash <<<"$sections"; then
  "$mica" create crash -m 30GiB -s 50 >/dev/null
  "$mica" exec crash -- python3 -c 'import torch,time; x=torch.empty(20<<30,dtype=torch.uint8,device="cuda"); print("held",flush=True); time.sleep(60)' >"$work/held" & holder=$!
  for _ in $(seq 300); do grep -q held "$work/held" && break; sleep 0.1; done
  used=$("$mica" show crash --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["memory_used_bytes"])')
  [ "$used" -ge $((20 << 30)) ] && pass "20 GiB are charged ($used)" || fail "20 GiB are charged" "$used"
  kill -9 $holder; start=$(date +%s%N)
  for _ in $(seq 500); do used=$("$mica" show crash --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["memory_used_bytes"])'); [ "$used" = 0 ] && break; sleep 0.01; done
  [ "$used" = 0 ] && pass "SIGKILL: memory back after $((($(date +%s%N) - start) / 1000000)) ms" || fail "SIGKILL" "$used bytes still charged"
  "$mica" rm crash --force >/dev/null
fi
if grep -q bench <<<"$sections"; then "$mica" bench gpu --seconds "${BENCH_SECONDS:-10}"; fi
"$mica" doctor || true
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
