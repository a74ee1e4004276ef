# Programs in isolated mode on the real GPU: a worker owns the device, the program has no access to it.
few="vector_add reduction matmul_tiled streams_events atomics memcpy_kinds texture_2d graph_capture driver_module library_api printf_device quota"
sources=$(for name in $few; do echo "tests/programs/$name.cu"; done)
# shellcheck disable=SC2086
build $sources
for source in $sources; do
  name=$(basename "$source" .cu); [ -x "$work/$name" ] || continue
  LIMIT=60 check "isolated $name" "$mica" run --mode isolated -m 4GiB -- "$work/$name"
done
build "$gpu/apart.cu"
LIMIT=60 check "isolated addresses apart" "$mica" run --mode isolated -m 4GiB -- "$work/apart"
