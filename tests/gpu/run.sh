#!/usr/bin/env bash
# The cases that only a real GPU can decide. Needs nvcc and, for the frameworks, their Python packages.
# usage: tests/gpu/run.sh [SECTION]...    (default: all but public, isolated_speed, walls and bench; `tests/gpu/run.sh list` names them)
# MICA_BIN: folder with mica, libmica_shim.so and libmica_nvml_shim.so; with `conformance` and `probe`, if built, those run too.
# OUT: folder that keeps logs.
source "$(dirname "$0")/lib.sh"
known="programs copies nulls frameworks memory accounting ways shared crash life gate users container cdi smi doctor symbols overhead conformance isolated hostile timeline"
sections="${*:-$known}"
[ "$sections" = list ] && { echo "$known public isolated_speed walls memory_swap snapshot bench"; exit 0; }
for section in $sections; do
  [ -f "$gpu/sections/$section.sh" ] || { fail "$section" "no such section"; continue; }
  begun=$SECONDS
  echo "== $section"
  source "$gpu/sections/$section.sh"
  echo "time  $section $((SECONDS - begun)) s"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
