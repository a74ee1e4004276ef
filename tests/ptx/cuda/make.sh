#!/bin/sh
# Compiles each CUDA source here to PTX for compute_75, 80 and 90. NVCC names the compiler.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
: "${NVCC:=nvcc}"
cd "$here"
for source in ${*:-*.cu}; do
    name=${source%.cu}
    flags=
    case $name in debug_lines) flags=-lineinfo ;; esac
    for arch in 75 80 90; do
        "$NVCC" -ptx -std=c++17 -arch=compute_$arch $flags -o "../$name.$arch.ptx" "$source"
        # Line information names the machine's folders; keep only the file.
        sed -i 's|^\([[:space:]]*\.file[^"]*"\).*/|\1|' "../$name.$arch.ptx"
    done
done
