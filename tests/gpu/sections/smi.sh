# Two tenants: nvidia-smi in each shows its own memory and its own processes only.
build "$gpu/hold.cu"
"$mica" create one -m 8GiB -s 60 >/dev/null && "$mica" create two -m 4GiB -s 40 >/dev/null
background "$mica" exec one -- "$work/hold" linear 2048 >"$work/held.one" 2>&1; first=$child
background "$mica" exec two -- "$work/hold" linear 1024 >"$work/held.two" 2>&1; second=$child
wait_for 30 grep -q held "$work/held.one" && wait_for 30 grep -q held "$work/held.two" || fail smi "the tenants did not start"
pid_of() { "$mica" show "$1" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["processes"][0]["pid"])'; }
for name in one two; do
  own=$(pid_of $name); [ $name = one ] && total=8192 || total=4096
  listed=$("$mica" exec $name -- nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>&1 | sort -n | tr '\n' ' ')
  [ "$listed" = "$own " ] && pass "nvidia-smi in $name lists only $own" || fail "nvidia-smi in $name lists only $own" "$listed"
  table=$("$mica" exec $name -- nvidia-smi 2>&1); others=$([ $name = one ] && pid_of two || pid_of one)
  grep -q " $others " <<<"$table" && fail "nvidia-smi's table in $name" "shows $others" || pass "nvidia-smi's table in $name hides $others"
  shown=$("$mica" exec $name -- nvidia-smi --query-gpu=memory.total,memory.used --format=csv,noheader,nounits 2>&1)
  [ "${shown%%,*}" = $total ] && pass "nvidia-smi in $name: $shown MiB" || fail "nvidia-smi in $name" "$shown"
done
"$mica" exec one -- python3 -c '
import pynvml as n
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); m = n.nvmlDeviceGetMemoryInfo(h)
assert m.total == 8 << 30, m.total
print([p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)])' >"$work/pynvml" 2>&1
[ "$(cat "$work/pynvml")" = "[$(pid_of one)]" ] && pass "pynvml in one lists $(cat "$work/pynvml")" || fail "pynvml in one" "$(tail -n 1 "$work/pynvml")"
"$mica" exec one -- python3 -c '
import pynvml as n
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
try: n.nvmlDeviceSetComputeMode(h, n.NVML_COMPUTEMODE_DEFAULT); print("it was permitted")
except n.NVMLError_NoPermission: pass
n.nvmlShutdown()
try: n.nvmlDeviceGetCount(); print("it answers after its end")
except n.NVMLError_Uninitialized: print("ok")' >"$work/pynvml" 2>&1
[ "$(cat "$work/pynvml")" = ok ] && pass "pynvml in one changes nothing of the card" || fail "pynvml in one changes nothing of the card" "$(tail -n 1 "$work/pynvml")"
if python3 -c 'import nvitop' 2>/dev/null; then
  table=$("$mica" exec two -- python3 -m nvitop --once 2>&1)
  others=$(pid_of one); own=$(pid_of two)
  grep -q '/ 4096MiB\|/ 4.00GiB\|/ 4GiB' <<<"$table" && grep -q " $own " <<<"$table" && ! grep -q " $others " <<<"$table" &&
    pass "nvitop in two shows $own and 4 GiB" || fail "nvitop in two" "$(tr -s ' \n' ' ' <<<"$table" | cut -c1-600)"
else skip "nvitop: not installed"; fi
"$mica" rm one two --force >/dev/null; end "$first"; end "$second"
