# Snapshots of a swappable virtual GPU on the real GPU: a training goes on with the same bits after its worker and the daemon were
# killed. About 2 minutes. SNAPSHOT_MIB is the memory beside the training.
build "$gpu/snapshot.cu"
nvcc -O2 -std=c++17 -arch=sm_90 -cudart static -DVARIABLES -o "$work/snapshot_variables" "$gpu/snapshot.cu" 2>"$work/variables.log" \
  || fail "build snapshot with variables" "$(grep -m1 -i error "$work/variables.log")"
mib=${SNAPSHOT_MIB:-1024}
daemon_pid() { "$mica" stats --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["daemon"]["pid"])'; }
state_of() { "$mica" show "$1" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["state"])'; }
ms() { date +%s%3N; }
# saved NAME PROGRAM STEPS: a training with three snapshots, the daemon killed while it waits, against one without.
saved() {
  local name=$1 program=$2 steps=$3 expected got code round
  expected=$(timeout 60 "$mica" run --gpu nvidia --swap -m "$((mib + 1024))MiB" -- "$program" "$steps" "$mib" 20 2>"$work/err")
  [ "$(tail -n 1 <<<"$expected")" = ok ] || { fail "$name alone" "$(tail -n 1 <<<"$expected"); $(tail -n 3 "$work/err" | tr '\n' ' ')"; return; }
  "$mica" create "$name" --gpu nvidia --swap -m "$((mib + 1024))MiB" >/dev/null || { fail "$name" "cannot be made"; return; }
  background timeout 150 "$mica" exec "$name" -- "$program" "$steps" "$mib" 100 >"$work/$name.out" 2>"$work/$name.err"; local program_child=$child
  for round in 1 2 3; do
    at_step() { [ "$(wc -l <"$work/$name.out")" -ge $((round * 8)) ]; }
    wait_for 60 at_step || { fail "$name" "no step $((round * 8)): $(tail -n 2 "$work/$name.err" | tr '\n' ' ')"; end "$program_child"; break; }
    local began=$(ms) file="$work/$name.$round.snap"
    "$mica" snapshot "$name" "$file" >"$work/said" 2>&1 || { fail "$name, snapshot $round" "$(tail -n 3 "$work/said" | tr "\n" " ")"; end "$program_child"; break; }
    local saved_ms=$(($(ms) - began)) bytes; bytes=$(stat -c %s "$file")
    [ "$(state_of "$name")" = snapshotted ] || fail "$name, snapshot $round" "state $(state_of "$name")"
    [ $round = 2 ] && { kill -9 "$(daemon_pid)"; sleep 0.5; }
    began=$(ms)
    "$mica" restore "$file" >"$work/said" 2>&1 || { fail "$name, restoration $round" "$(tail -n 3 "$work/said" | tr '\n' ' ')"; end "$program_child"; break; }
    note "$name, round $round: saved in $saved_ms ms, $((bytes >> 20)) MiB in the file, restored in $(($(ms) - began)) ms"
    rm -f "$file"
  done
  wait "$program_child"; code=$?
  got=$(cat "$work/$name.out")
  [ $code = 0 ] && [ "$got" = "$expected" ] \
    && pass "$name: $steps losses with the same bits after three snapshots" \
    || fail "$name" "exit $code; $(tail -n 2 "$work/$name.err" | tr '\n' ' '); $(diff <(echo "$expected") <(echo "$got") | head -n 3 | tr '\n' ' ')"
  "$mica" events --json 2>/dev/null | grep -E '"(worker_|vgpu_snap|vgpu_rest)' | tail -n 8 >"$logs/snapshot.$name.events"
  "$mica" rm --force "$name" >/dev/null 2>&1
}
saved plain "$work/snapshot" 40
saved variables "$work/snapshot_variables" 40
