// What all kernels of the compute library share: element types, the epilogue of products, reductions over a block.
//
// Kernels compute in 32-bit floats (or 32-bit integers) whatever the element type is. A kernel file is compiled once for
// each element type, with -DTYPE_F32, -DTYPE_F16 or -DTYPE_BF16, so that a virtual GPU that forbids 16-bit floats never
// loads code that has any.
#pragma once
#include <stdint.h>

// As `DType` in src/tensor/dtype.rs.
enum { F32 = 0, F16 = 1, BF16 = 2, I8 = 3, I32 = 4 };
// As `Activation` in src/gemm/epilogue.rs.
enum { NONE = 0, RELU = 1, GELU = 2, SILU = 3 };

struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(int32_t x) { return (float)x; }
__device__ __forceinline__ float to_float(int8_t x) { return (float)x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float((uint32_t)x.bits << 16); }
__device__ __forceinline__ float half_to_float(uint16_t bits)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
}
__device__ __forceinline__ float to_float(f16 x) { return half_to_float(x.bits); }

// Round to the nearest even; a NaN stays one.
__device__ __forceinline__ uint16_t bf16_bits(float x)
{
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
__device__ __forceinline__ uint16_t half_bits(float x)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return bf16{bf16_bits(x)}; }
template <> __device__ __forceinline__ f16 from_float<f16>(float x) { return f16{half_bits(x)}; }

#if defined(TYPE_F16)
typedef f16 T;
#elif defined(TYPE_BF16)
typedef bf16 T;
#elif defined(TYPE_I8)
typedef int8_t T;
#else
typedef float T;
#endif

// 0.5 x (1 + erf(x / sqrt 2)), the exact form.
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678118654752f)); }
// A function of its own: inlined at each element of a thread's tile, its text would be megabytes.
static __device__ __noinline__ float curve(float x, int activation)
{
    return activation == GELU ? gelu(x) : x / (1.f + __expf(-x));
}
__device__ __forceinline__ float activate(float x, int activation)
{
    if (activation == NONE) return x;
    if (activation == RELU) return x > 0.f || x != x ? x : 0.f;
    return curve(x, activation);
}

// What is done with each element of a product: d = scale * act(alpha * (a b) + beta * c + bias) + residual.
// Pointers that are null are left out. c, bias, residual and d have the same type.
struct Epilogue {
    const void *c, *bias, *residual;
    void *d;
    int64_t c_row, c_col, c_batch;
    int64_t r_row, r_col, r_batch;
    int64_t d_row, d_col, d_batch;
    float alpha, beta, scale;
    int32_t activation, type, reserved;
};

// `type` is F32 or the type of the file.
__device__ __forceinline__ float load_as(const void *p, int64_t at, int type)
{
    if (sizeof(T) == 2 && type != F32) return to_float(((const T *)p)[at]);
    return ((const float *)p)[at];
}
__device__ __forceinline__ void store_as(void *p, int64_t at, int type, float x)
{
#if defined(TYPE_F16) || defined(TYPE_BF16)
    if (type != F32) ((T *)p)[at] = from_float<T>(x);
    else
#endif
    ((float *)p)[at] = x;
}

__device__ __forceinline__ float finish(const Epilogue &e, float acc, int m, int n, int batch)
{
    float x = e.alpha * acc;
    if (e.c) x += e.beta * load_as(e.c, batch * e.c_batch + m * e.c_row + n * e.c_col, e.type);
    if (e.bias) x += load_as(e.bias, n, e.type);
    x = e.scale * activate(x, e.activation);
    if (e.residual) x += load_as(e.residual, batch * e.r_batch + m * e.r_row + n * e.r_col, e.type);
    return x;
}
__device__ __forceinline__ void put(const Epilogue &e, float acc, int m, int n, int batch)
{
    store_as(e.d, batch * e.d_batch + m * e.d_row + n * e.d_col, e.type, finish(e, acc, m, n, batch));
}
// Integer products are exact: alpha and scale are 1, beta is 0 or 1, and only ReLU is allowed (checked by the caller).
__device__ __forceinline__ void put(const Epilogue &e, int32_t acc, int m, int n, int batch)
{
    if (e.type != I32) return put(e, (float)acc, m, n, batch);
    int32_t x = acc;
    if (e.c && e.beta != 0.f) x += ((const int32_t *)e.c)[batch * e.c_batch + m * e.c_row + n * e.c_col];
    if (e.bias) x += ((const int32_t *)e.bias)[n];
    if (e.activation == RELU && x < 0) x = 0;
    if (e.residual) x += ((const int32_t *)e.residual)[batch * e.r_batch + m * e.r_row + n * e.r_col];
    ((int32_t *)e.d)[batch * e.d_batch + m * e.d_row + n * e.d_col] = x;
}

// The two factors of a product; strides count elements. `k_step`: how much further along k each product of a stack begins.
struct Factors {
    const void *a, *b;
    int64_t a_row, a_batch, b_row, b_batch;
    int32_t m, n, k, k_step;
};
