# What happens to virtual GPUs while they work: resize, suspend, more processes, a fault beside them, the daemon's death.
build "$gpu/load.cu" "$gpu/capture.cu"
cat >"$work/fault.cu" <<'CU'
#include <cstdio>
__global__ void wild(int *p) { *p = 1; }
int main() { wild<<<1, 1>>>((int *)0x10); printf("CUDA error %d\n", (int)cudaDeviceSynchronize()); }
CU
build "$work/fault.cu"
timeout 80 python3 "$gpu/tools/life.py" "$mica" "$work/load" "$work/fault" >"$work/judged" 2>"$work/err"
cat "$work/judged"; passed=$((passed + $(grep -c ^pass "$work/judged"))); failed=$((failed + $(grep -c ^FAIL "$work/judged")))
grep -q '^pass' "$work/judged" || fail life "$(tail -n 3 "$work/err" | tr '\n' ' ')"
tail -n 1 "$work/err" | grep -q Error && fail life "$(tail -n 2 "$work/err" | tr '\n' ' ')"
# A bursty neighbour makes leases; a stream under capture is never held by them.
background "$mica" run -m 2GiB -s 50 -- "$work/load" burst --seconds 8 --us 50 --depth 1 >/dev/null 2>&1; beside=$child
LIMIT=30 check "captures beside a bursty tenant" "$mica" run -m 2GiB -s 50 -- "$work/capture"
end "$beside"
