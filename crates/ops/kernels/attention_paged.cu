// Attention with tensor cores, of keys and values in pages.
#include "attention_mma.cuh"

extern "C" __global__ void __launch_bounds__(128) flash_paged_32(Attention a) { Flash<32, 32, 64, true>::run(a); }
extern "C" __global__ void __launch_bounds__(128) flash_paged_64(Attention a) { Flash<64, 32, 64, true>::run(a); }
extern "C" __global__ void __launch_bounds__(128) flash_paged_128(Attention a) { Flash<128, 32, 64, true>::run(a); }
extern "C" __global__ void __launch_bounds__(128) flash_paged_256(Attention a) { Flash<256, 16, 64, true>::run(a); }
