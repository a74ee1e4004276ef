// Attention with tensor cores, of keys and values that follow each other.
#include "attention_mma.cuh"

extern "C" __global__ void __launch_bounds__(128) flash_32(Attention a) { Flash<32, 32, 64, false>::run(a); }
extern "C" __global__ void __launch_bounds__(128) flash_64(Attention a) { Flash<64, 32, 64, false>::run(a); }
extern "C" __global__ void __launch_bounds__(128) flash_128(Attention a) { Flash<128, 32, 64, false>::run(a); }
extern "C" __global__ void __launch_bounds__(128) flash_256(Attention a) { Flash<256, 16, 64, false>::run(a); }
