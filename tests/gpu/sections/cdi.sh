# Direct mode in a container, with exactly what `mica cdi generate --mode direct` writes: its device files, mounts and variables are all of
# the card that a root of copied programs has. What a container engine would do, without one.
build "$gpu/fill.cu" "$gpu/hold.cu" "$gpu/micro.cu" "$gpu/load.cu"
gcc -O1 -o "$work/probe" "$root/tests/walls/probe.c" -ldl || fail "build probe" "see above"
image="$work/image"; mkdir -p "$image"/{bin,proc,sys,dev,tmp,old,usr/lib,usr/lib64}
for folder in lib lib64; do [ -L "/$folder" ] && ln -s "usr/$folder" "$image/$folder"; done
add() { # FILE: into /bin, with its libraries, but none of the driver's or Mica's.
  cp "$(readlink -f "$1")" "$image/bin/$(basename "$1")"
  ldd "$1" | grep -o '/[^ ]*' | grep -v 'libcuda\|libnvidia\|mica' | while read -r library; do
    mkdir -p "$image$(dirname "$library")"; [ -e "$image$library" ] || cp -L "$library" "$image$library"
  done
}
for program in sh ls env true umount rmdir; do add "$(type -P "$program")"; done
for program in probe fill hold micro load; do add "$work/$program"; done
# A C library has these, though programs of today do not ask for them; the driver does.
for library in $(ldconfig -p | grep -o '/[^ ]*x86_64[^ ]*/lib\(dl\.so\.2\|rt\.so\.1\|pthread\.so\.0\|m\.so\.6\|gcc_s\.so\.1\)$'); do
  mkdir -p "$image$(dirname "$library")"; [ -e "$image$library" ] || cp -L "$library" "$image$library"
done
cat >"$work/engine.sh" <<'INSIDE'
set -e
image=$1; edits=$2; shift 2
mount --make-rprivate /
mount -t tmpfs container "$image.box"; cp -a "$image/." "$image.box"; box="$image.box"
touch_file() { mkdir -p "$(dirname "$1")"; [ -e "$1" ] || touch "$1"; }
for node in null zero urandom; do touch_file "$box/dev/$node"; mount --bind "/dev/$node" "$box/dev/$node"; done
variables=(PATH=/bin)
while read -r kind first second; do
  case $kind in
    env) variables+=("$first") ;;
    # As an engine does; where that is forbidden, the file itself.
    node) mknod -m 666 "$box$first" c $((16#$(stat -c %t "$first"))) $((16#$(stat -c %T "$first"))) && : 3<"$box$first" || { touch_file "$box$first"; mount --bind "$first" "$box$first"; } ;;
    mount)
      if [ -d "$first" ]; then mkdir -p "$box$second"; mount --rbind "$first" "$box$second"; else touch_file "$box$second"; mount --bind "$first" "$box$second"; fi
      mount -o remount,bind,ro "$box$second" ;;
  esac
done <"$edits"
mount -t proc proc "$box/proc"; mount --rbind /sys "$box/sys"
cd "$box"; pivot_root . old; umount -l /old; rmdir /old
exec env -i "${variables[@]}" "$@"
INSIDE
mkdir -p "$image.box" "$work/cdi"
# What waits for it, ends it or kills it meets the container: each is one process.
container() { # NAME EDITS
  printf '#!/bin/sh\nexec unshare -m -p -f --kill-child bash %q %q %q "$@"\n' "$work/engine.sh" "$image" "$2" >"$work/$1"; chmod +x "$work/$1"
}
"$mica" create boxed --mode direct -m 10GiB -s 30 >/dev/null
if ! out=$("$mica" cdi generate --mode direct --output "$work/cdi" --vgpu boxed --new 2GiB-20 2>&1); then
  fail "mica cdi generate --mode direct" "$out"
else
  python3 "$gpu/tools/cdi_edits.py" "$work/cdi/mica.dev-vgpu.json" boxed >"$work/boxed.edits"
  python3 "$gpu/tools/cdi_edits.py" "$work/cdi/mica.dev-new.json" 2GiB-20 >"$work/new.edits"
  [ "$logs" = "$work" ] || cp "$work/cdi/"*.json "$logs"
  container in_boxed "$work/boxed.edits"; container in_new "$work/new.edits"
  if ! out=$(timeout 20 "$work/in_boxed" /bin/true 2>&1); then
    skip "direct mode in a container: namespaces and mounts are not permitted here: $(tail -n 1 <<<"$out")"
  else
    want=$(sed -n 's#^node /dev/##p' "$work/boxed.edits" | sort | tr '\n' ' ')
    seen=$("$work/in_boxed" ls /dev | grep nvidia | sort | tr '\n' ' ')
    [ -n "$want" ] && [ "$seen" = "$want" ] && pass "device files of the container: $seen" || fail "device files of the container" "$seen, not $want"
    LIMIT=40 check "limit of boxed, with the file's variables" "$work/in_boxed" probe 10240
    LIMIT=40 check "limit of boxed, with an empty environment" "$work/in_boxed" env -i /bin/probe 10240
    LIMIT=40 check "limit of a container of its own (new=2GiB-20)" "$work/in_new" probe 2048
    sleep 1
    left=$("$mica" ls --json | python3 -c 'import json,sys; print(" ".join(v["name"] for v in json.load(sys.stdin) if v["name"] != "boxed"))')
    [ -z "$left" ] && pass "its virtual GPU ended with it" || fail "its virtual GPU ended with it" "there is $left"
    out=$(timeout 60 "$work/in_boxed" fill 256 2>"$work/err")
    if said=$(python3 "$gpu/tools/judge.py" fill <<<"$out" 2>&1); then pass "every way to take memory, MiB: $said"; else fail "every way to take memory" "$said; $(tail -n 3 "$work/err" | tr '\n' ' ')"; fi
    # Two saturating programs: boxed has 30 %, a virtual GPU on the host 70 %.
    "$mica" create rest --mode direct -m 4GiB -s 70 >/dev/null
    start=$(($(date +%s) + 6)); load="saturate --start $start --seconds 8 --us 400 --depth 8 --tag"
    # shellcheck disable=SC2086
    background "$work/in_boxed" load $load boxed >"$work/load.boxed" 2>"$work/load.boxed.err"; one=$child
    # shellcheck disable=SC2086
    background "$mica" exec rest -- "$work/load" $load rest >"$work/load.rest" 2>"$work/load.rest.err"; two=$child
    wait_for 10 sh -c '"$0" show boxed --json | grep -q "\"pid\""' "$mica"; sleep 4
    shown=$("$mica" show boxed --json | python3 -c 'import json,sys; v=json.load(sys.stdin); p=v["processes"][0]; print(p["pid"], "in", p.get("container"), p["slice_us"], p["slice_read_us"], v["mechanism"], v["state"])' 2>&1 | tail -n 1)
    note "the daemon sees (pid, container, slice, read back, mechanism, state): $shown"
    wait "$one" "$two"
    judged=$(python3 - "$work/load.boxed" "$work/load.rest" <<'PYTHON' 2>&1 | tail -n 1
import json, sys
boxed, rest = (json.loads(open(name).read().strip().splitlines()[-1]) for name in sys.argv[1:])
share = 100 * boxed["rate"] / (boxed["rate"] + rest["rate"])
print(f"{'ok' if abs(share - 30) <= 2 else 'wrong'}: {share:.1f} % of the kernels, asked for 30")
PYTHON
)
    case "$judged" in ok*) pass "share in a container beside the host: $judged" ;; *) fail "share in a container beside the host" "$judged; $(tail -n 1 "$work/load.boxed") $(tail -n 1 "$work/load.boxed.err") $(tail -n 1 "$work/load.rest")" ;; esac
    "$mica" rm rest --force >/dev/null
    # A killed container gives everything back.
    background "$work/in_boxed" hold linear 1024 busy >"$work/held" 2>&1; holder=$child
    if wait_for 30 grep -q held "$work/held"; then
      kill -9 "$holder"; wait "$holder" 2>/dev/null
      wait_for 5 sh -c '[ "$("$0" show boxed --json | python3 -c "import json,sys; v=json.load(sys.stdin); print(v[\"memory_used_bytes\"] + len(v[\"processes\"]))")" = 0 ]' "$mica" && pass "a killed container gives its memory back" || fail "a killed container gives its memory back" "$("$mica" show boxed | tr '\n' ' ')"
    else fail "a process in a container" "$(tail -n 3 "$work/held" | tr '\n' ' ')"; end "$holder"; fi
    # What calls cost, in turns: in the container and on the host, both direct in the same virtual GPU.
    for _ in 1 2 3; do timeout 40 "$work/in_boxed" micro >>"$work/micro.boxed" 2>>"$work/err"; timeout 40 "$mica" exec boxed -- "$work/micro" >>"$work/micro.host" 2>>"$work/err"; done
    python3 - "$work/micro.host" "$work/micro.boxed" <<'PYTHON' >"$work/judged" 2>&1
import json, statistics, sys
host, boxed = ([json.loads(line) for line in open(name) if line.startswith("{")] for name in sys.argv[1:])
for key, value in host[0].items():
    if isinstance(value, (int, float)) and value:
        a, b = (statistics.median(round[key] for round in side) for side in (host, boxed))
        print(f"note  in a container {key}: host {a:.1f}, container {b:.1f}, ratio {b / a:.3f}")
PYTHON
    cat "$work/judged"
  fi
  "$mica" cdi rm --output "$work/cdi" --vgpu boxed --new 2GiB-20 >/dev/null
fi
"$mica" rm boxed --force >/dev/null
