# A tenant in a container: mount and PID namespaces of its own, a root file system in which only the system's libraries (read-only),
# Mica's libraries, its socket and the GPU's device files are to be seen. What a container engine would do, without one.
build "$gpu/fill.cu" "$gpu/hold.cu"
mkdir -p "$work/bin" "$work/box"; cp "$bin/libmica_shim.so" "$bin/libmica_nvml_shim.so" "$bin/mica" "$work/bin"
cat >"$work/inside.sh" <<'INSIDE'
set -e
box=$1; runtime=$2; libraries=$3; work=$4; shift 4
mount --make-rprivate /
mount -t tmpfs box "$box"
bind() { if [ -d "$1" ]; then mkdir -p "$box$1"; else mkdir -p "$box$(dirname "$1")"; touch "$box$1"; fi; mount --rbind "$1" "$box$1"; [ "${2:-}" = rw ] || mount -o remount,bind,ro "$box$1" 2>/dev/null || true; }
for path in /usr /lib /lib64 /bin /sbin /etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d; do
  if [ -L "$path" ]; then ln -s "$(readlink "$path")" "$box$path"; elif [ -e "$path" ]; then bind "$path"; fi
done
for path in /dev/nvidia* /dev/null /dev/zero /dev/urandom; do [ -e "$path" ] && bind "$path" rw; done
# A driver that lies elsewhere.
[ -n "${MICA_LIBCUDA:-}" ] && bind "$(dirname "$MICA_LIBCUDA")"
bind "$runtime" rw; bind "$libraries"; bind "$work/fill"; bind "$work/hold"
mkdir -p "$box/proc" "$box/tmp" "$box/old"; mount -t proc proc "$box/proc"
cd "$box"; pivot_root . old; umount -l /old; rmdir /old
exec "$@"
INSIDE
"$mica" create box -m 4GiB -s 50 >/dev/null
# The libraries lie where the box can see them.
boxed() { MICA_LIB_DIR="$work/bin" "$work/bin/mica" exec box -- unshare -m -p -f --kill-child bash "$work/inside.sh" "$work/box" "$MICA_RUNTIME_DIR" "$work/bin" "$work" "$@"; }
if ! out=$(timeout 20 unshare -m -p -f --kill-child bash "$work/inside.sh" "$work/box" "$MICA_RUNTIME_DIR" "$work/bin" "$work" /bin/true 2>&1); then
  skip "container: namespaces and mounts are not permitted here: $(tail -n 1 <<<"$out")"
else
  out=$(boxed "$work/fill" 64 2>"$work/err")
  got=$(python3 -c 'import json,sys; r=json.loads(sys.argv[1].strip().splitlines()[-1]); g=r["cuMemAlloc"]["bytes"]; print(g>>20 if r["total_bytes"]==4<<30 and 3<<30<g<4<<30 else "wrong %d of %d"%(g,r["total_bytes"]))' "$out" 2>&1 | tail -n 1)
  case "$got" in [0-9]*) pass "limit in a container: $got MiB of 4 GiB" ;; *) fail "limit in a container" "$got; $(tail -n 3 "$work/err" | tr '\n' ' ')" ;; esac
  boxed /bin/ls /home /root >/dev/null 2>&1 && fail "the container sees little" "/home or /root is there" || pass "the container sees no home directories"
  background boxed "$work/hold" linear 1024 busy >"$work/held" 2>&1; holder=$child
  if wait_for 30 grep -q held "$work/held"; then
    sleep 2.5
    shown=$("$mica" show box --json | python3 -c 'import json,sys; v=json.load(sys.stdin); p=v["processes"][0]; print(p["pid"], p["memory_used_bytes"]>>20, p["memory_unattributed_bytes"]>>20, p["slice_us"], p["slice_read_us"], v["mechanism"], v["state"])')
    read -r pid used _ <<<"$shown"
    [ -d "/proc/${pid:-0}" ] && [ "${used:-0}" -ge 1024 ] && pass "the daemon sees it from outside (pid, MiB, beyond, slice, read back, mechanism): $shown" || fail "the daemon sees it from outside" "$shown"
    boxed nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader >"$work/smi" 2>&1
    note "nvidia-smi in the container lists: $(tr '\n' ';' <"$work/smi") (pid outside: $pid)"
  else fail "a process in a container" "$(cat "$work/held")"; fi
  "$mica" rm box --force >/dev/null; end "$holder"
fi
