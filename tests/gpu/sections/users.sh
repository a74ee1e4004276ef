# Users without privileges: a daemon of root's that nobody joins through its socket, and everything as nobody.
build "$gpu/fill.cu"
mkdir -p "$work/bin"; cp "$bin/mica" "$work/bin"; chmod -R a+rX "$work/bin" "$work/fill"
if [ "$(id -u)" != 0 ]; then skip "users: needs root to become another user"; else
  as_nobody() { timeout 60 setpriv --reuid=65534 --regid=65534 --clear-groups env -i PATH="$PATH" HOME=/nonexistent LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" ${MICA_LIBCUDA:+MICA_LIBCUDA="$MICA_LIBCUDA"} ${MICA_LIBNVML:+MICA_LIBNVML="$MICA_LIBNVML"} "$@"; }
  filled() { # NAME COMMAND...: fill under a limit of 4 GiB
    local name=$1 out; shift
    out=$("$@" 2>"$work/err")
    got=$(python3 -c 'import json,sys; r=json.loads(sys.argv[1].strip().splitlines()[-1]); g=r["cuMemAlloc"]["bytes"]; print(g>>20 if r["total_bytes"]==4<<30 and 3<<30<g<4<<30 else "wrong %d of %d"%(g,r["total_bytes"]))' "$out" 2>&1 | tail -n 1)
    case "$got" in [0-9]*) pass "$name: $got MiB of 4 GiB" ;; *) fail "$name" "$got; $(tail -n 3 "$work/err" | tr '\n' ' ')" ;; esac
  }
  # The system's daemon has its sockets in /run/mica, whoever asks.
  if env -u MICA_RUNTIME_DIR "$work/bin/mica" ls >/dev/null 2>&1 && [ -S /run/mica/control.sock ]; then
    env -u MICA_RUNTIME_DIR "$work/bin/mica" create roots -m 2GiB >/dev/null
    filled "nobody in root's daemon" as_nobody "$work/bin/mica" run -m 4GiB -- "$work/fill" 64
    seen=$(as_nobody "$work/bin/mica" ls --json 2>&1)
    grep -q roots <<<"$seen" && fail "root's virtual GPU is hidden" "$seen" || pass "root's virtual GPU is hidden from nobody"
    as_nobody "$work/bin/mica" exec roots -- true 2>/dev/null && fail "root's virtual GPU is closed to nobody" "exec worked" || pass "root's virtual GPU is closed to nobody"
    as_nobody "$work/bin/mica" run -m 4GiB -- nvidia-smi --query-gpu=memory.total --format=csv,noheader >"$work/smi" 2>"$work/err"
    grep -q '^4096 MiB' "$work/smi" && pass "nvidia-smi as nobody shows 4096 MiB" || fail "nvidia-smi as nobody" "$(cat "$work/smi" "$work/err")"
    env -u MICA_RUNTIME_DIR "$work/bin/mica" rm roots --force >/dev/null; env -u MICA_RUNTIME_DIR "$work/bin/mica" daemon --stop >/dev/null 2>&1
  else fail "root's daemon" "no socket in /run/mica"; fi
  install -d -o 65534 -g 65534 -m 700 "$work/nobody"
  filled "everything as nobody" as_nobody MICA_RUNTIME_DIR="$work/nobody/mica" "$work/bin/mica" run -m 4GiB -s 50 -- "$work/fill" 64
  owner=$(stat -c %u "$work/nobody/mica/control.sock" 2>/dev/null)
  [ "$owner" = 65534 ] && pass "the daemon is nobody's" || fail "the daemon is nobody's" "owner $owner"
  as_nobody MICA_RUNTIME_DIR="$work/nobody/mica" "$work/bin/mica" doctor >"$work/doctor" 2>&1
  grep -Ei 'slice|mechanism' "$work/doctor" | head -n 2 | sed 's/^/note  as nobody: /'
  as_nobody MICA_RUNTIME_DIR="$work/nobody/mica" "$work/bin/mica" daemon --stop >/dev/null 2>&1
fi
