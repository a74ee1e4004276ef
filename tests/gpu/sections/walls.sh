# PyTorch behind walls against PyTorch in isolated mode on the host: over TLS on loopback, and in a root without the GPU's device files.
# One process a side, in turns, medians of WALL_ROUNDS (default 2), ratio and goal. About 2 minutes a round. WALLS="tls root" selects walls.
if ! python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  skip "PyTorch behind walls: no PyTorch with CUDA here"
else
  mkdir -p "$work/bin" "$work/box"; cp "$bin/mica" "$work/bin"
  # A mica that carries its libraries needs none beside it.
  own_libraries=(); cp "$bin/libmica_shim.so" "$bin/libmica_nvml_shim.so" "$work/bin" 2>/dev/null && own_libraries=("MICA_LIB_DIR=$work/bin")
  # A root that shows all of this one, but no device file besides those that every program has.
  cat >"$work/no_devices.sh" <<'INSIDE'
set -e
box=$1; shift
mount --make-rprivate /
mount --rbind / "$box"
mount -t tmpfs devices "$box/dev"
for name in null zero urandom random full tty; do touch "$box/dev/$name"; mount --bind "/dev/$name" "$box/dev/$name"; done
mkdir "$box/dev/shm"; mount -t tmpfs shm "$box/dev/shm"
for hidden in "$box"/proc/driver/nvidia "$box"/run/nvidia-persistenced; do [ -d "$hidden" ] && mount -t tmpfs none "$hidden"; done
exec chroot "$box" "$@"
INSIDE
  in_root() { unshare -m -p -f --kill-child bash "$work/no_devices.sh" "$work/box" "$@"; }
  walls=${WALLS:-tls root}
  if [[ " $walls " == *" root "* ]] && ! out=$(timeout 20 unshare -m -p -f --kill-child bash "$work/no_devices.sh" "$work/box" /bin/true 2>&1); then
    skip "a root without device files: namespaces and mounts are not permitted here: $(tail -n 1 <<<"$out")"
    walls=${walls/root/}
  fi
  if [[ " $walls " == *" tls "* ]]; then
    background env MICA_REMOTE_DIR="$work/server-keys" "$mica" serve --listen 127.0.0.1:0 2>"$work/serve.log"; server=$child
    if wait_for 60 grep -q ' at 127' "$work/serve.log"; then
      address=$(sed -n 's/.* at \(127[0-9.:]*\).*/\1/p' "$work/serve.log" | head -n 1)
      invite=$(MICA_REMOTE_DIR="$work/server-keys" "$mica" remote invite --name card-test --address "$address" 2>/dev/null)
      MICA_REMOTE_DIR="$work/client-keys" "$mica" remote pair "$invite" --name card >"$work/paired" 2>&1 || { fail "pairing on loopback" "$(tail -n 2 "$work/paired" | tr '\n' ' ')"; walls=${walls/tls/}; }
    else
      fail "mica serve" "$(tail -n 2 "$work/serve.log" | tr '\n' ' ')"; walls=${walls/tls/}
    fi
  fi
  wall_one() { # SIDE
    local code
    case $1 in
      host) timeout 150 "$mica" run --mode isolated -m 60GiB -- python3 "$gpu/frameworks/speed.py" ;;
      tls) MICA_REMOTE_DIR="$work/client-keys" timeout 300 "$mica" run --on card -m 60GiB -- python3 "$gpu/frameworks/speed.py" ;;
      root) timeout 150 env "${own_libraries[@]}" "$work/bin/mica" run --mode isolated -m 60GiB -- \
        unshare -m -p -f --kill-child bash "$work/no_devices.sh" "$work/box" "$(command -v python3)" "$gpu/frameworks/speed.py" ;;
    esac >>"$work/wall.$1" 2>"$work/wall.$1.err"; code=$?
    [ $code = 0 ] || fail "PyTorch behind walls, a process of side $1" "exit $code; $(tail -n 3 "$work/wall.$1.err" | tr '\n' ' ')"
  }
  if [[ " $walls " == *" root "* ]]; then
    seen=$(in_root /bin/sh -c 'ls /dev | grep -c nvidia')
    [ "$seen" = 0 ] && pass "the root shows no device file of the card" || fail "the root shows no device file of the card" "$seen are there"
  fi
  if [[ " $walls " == *" tls "* ]]; then
    # The same program as in the other modes; its first line says what it may have.
    MICA_REMOTE_DIR="$work/client-keys" LIMIT=200 check "training over TLS" "$mica" run --on card -m 20GiB -s 50 -- python3 "$gpu/frameworks/torch_train.py"
  fi
  # The first import finds cold files.
  python3 -c 'import torch; torch.ones(1, device="cuda").item()' 2>/dev/null
  for round in $(seq "${WALL_ROUNDS:-2}"); do
    if [ $((round % 2)) = 1 ]; then order="host $walls"; else order="$walls host"; fi
    for side in $order; do wall_one "$side"; done
  done
  for wall in $walls; do
    python3 "$gpu/tools/walls_speed.py" "$wall" "$work/wall.host" "$work/wall.$wall" "$logs/walls_$wall.json" >"$work/judged" 2>&1
    cat "$work/judged"; passed=$((passed + $(grep -c ^pass "$work/judged"))); failed=$((failed + $(grep -c ^FAIL "$work/judged")))
    grep -q '^pass\|^FAIL' "$work/judged" || fail "PyTorch behind walls, $wall" "$(tail -n 1 "$work/judged")"
  done
  if [[ " $walls " == *" tls "* ]]; then
    left=$("$mica" ls --json | python3 -c 'import json,sys; print(len(json.load(sys.stdin)))')
    [ "$left" = 0 ] && pass "nothing is left of the programs behind walls" || fail "nothing is left of the programs behind walls" "$left virtual GPUs"
    end "$server"
    [ "$logs" = "$work" ] || cp "$work/serve.log" "$logs/walls_serve.log" 2>/dev/null
  fi
  [ "$logs" = "$work" ] || cp "$work"/wall.* "$logs" 2>/dev/null
fi
