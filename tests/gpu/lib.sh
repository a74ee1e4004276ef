# What every section of run.sh uses: where things are, verdicts, builds. Sourced, never run.
#
# A section prints `pass`, `FAIL`, `skip` and `note` lines; the last line of run.sh counts them.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root" || exit 1
bin=$(cd "${MICA_BIN:-target/release}" && pwd) || exit 1
mica="$bin/mica"
gpu="$root/tests/gpu"
work=$(mktemp -d); chmod 755 "$work"
logs="${OUT:-$work}"
export MICA_RUNTIME_DIR="$work/mica"
passed=0; failed=0; skipped=0; children=()

finish() {
  for child in "${children[@]:-}"; do [ -n "$child" ] && kill "$child" 2>/dev/null; done
  "$mica" daemon --stop >/dev/null 2>&1
  # The daemon's last words, where the caller keeps logs.
  [ "$logs" != "$work" ] && cp "$MICA_RUNTIME_DIR/daemon.log" "$logs/daemon.$$.log" 2>/dev/null
  # A daemon on its way out may still write its state.
  rm -rf "$work" 2>/dev/null || { sleep 1; rm -rf "$work"; }
}
trap finish EXIT

pass() { echo "pass  $*"; passed=$((passed + 1)); }
skip() { echo "skip  $*"; skipped=$((skipped + 1)); }
note() { echo "note  $*"; }
fail() { local what=$1; shift; echo "FAIL  $what: $*"; failed=$((failed + 1)); }

# check NAME COMMAND...: the command ends well and its last line is "ok".
check() {
  local name=$1; shift
  local out code
  if [ "$(type -t "$1")" = function ]; then out=$("$@" 2>"$work/err"); else out=$(timeout "${LIMIT:-120}" "$@" 2>"$work/err"); fi; code=$?
  if [ $code = 0 ] && [ "$(tail -n 1 <<<"$out")" = ok ]; then
    pass "$name $(head -n 1 <<<"$out" | grep -v '^ok$')"
  else
    fail "$name" "exit $code; $(tail -n 2 <<<"$out" | tr '\n' ' '); $(tail -n 3 "$work/err" | tr '\n' ' ')"
  fi
}

# build SOURCE...: each .cu into $work/NAME, with the options its first lines ask for; a line for each that fails.
build_one() {
  local name fast=; name=$(basename "$1" .cu)
  # What is measured here is optimized; the programs are built as they say.
  case "$1" in */tests/gpu/*) fast="-O2 -std=c++17" ;; esac
  # shellcheck disable=SC2046
  nvcc $fast -arch=sm_90 -cudart static $(sed -n 's#^// nvcc: ##p' "$1") -o "$work/$name" "$1" -lcuda -lpthread \
    >"$work/$name.log" 2>&1 || echo "FAIL  build $name: $(grep -m1 -i error "$work/$name.log")"
}
export -f build_one; export work
build() { printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} bash -c 'build_one {}'; }

# field NAME KEY: one number of a virtual GPU as the control API shows it.
field() { "$mica" show "$1" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[sys.argv[1]])' "$2"; }

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do [ $SECONDS -ge $end ] && return 1; sleep 0.1; done
}

# background COMMAND...: a child that is ended with the script; its number is in $child.
background() { "$@" & child=$!; children+=("$child"); }

# end CHILD: ends one and waits for it.
end() { kill "$1" 2>/dev/null; wait "$1" 2>/dev/null; }
