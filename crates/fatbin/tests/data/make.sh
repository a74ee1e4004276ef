#!/bin/sh
# Makes the containers the tests read from kernels.cu. NVCC names the compiler.
set -eu
cd "$(dirname "$0")"
: "${NVCC:=nvcc}"
ptx() { "$NVCC" -fatbin -gencode arch=compute_$2,code=compute_$2 ${3:+-Xfatbin $3} -o "$1" kernels.cu; }
ptx zstd.fatbin 80
ptx lz4.fatbin 80 -compress-mode=speed
ptx plain.fatbin 80 -compress-mode=none
ptx arch.fatbin 90a
ptx family.fatbin 100f
"$NVCC" -fatbin -gencode arch=compute_90,code=compute_90 -gencode arch=compute_75,code=compute_75 \
    -gencode arch=compute_80,code=sm_80 -o several.fatbin kernels.cu
"$NVCC" -fatbin -gencode arch=compute_90,code=lto_90 -o lto.fatbin kernels.cu
"$NVCC" -fatbin -Xfatbin -concat -gencode arch=compute_90,code='[sm_90,compute_90]' \
    -gencode arch=compute_80,code=sm_80 -o group.fatbin kernels.cu
"$NVCC" -cubin -arch=sm_90 -o sm_90.cubin kernels.cu
"$NVCC" -c -gencode arch=compute_80,code=compute_80 -o kernels.obj kernels.cu
rm -f kernels.a
ar rcD kernels.a sm_90.cubin zstd.fatbin kernels.cu
