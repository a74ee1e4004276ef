// Prints what a GPU computes for PTX instructions over a fixed set of inputs.
//
// One line per case: the instruction, its operands' bits in hex, `=`, the result's bits. Matrix
// products print 32 lines, one per lane. The output, kept as tests/golden/h200_math.txt, is what
// mica-ptx-ops is tested against.
//
//   nvcc -std=c++17 -arch=sm_90 -cudart static golden_math.cu -o golden_math
//   ./golden_math > ../golden/h200_math.txt
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;

#define CHECK(x)                                                                     \
  do {                                                                               \
    cudaError_t e = (x);                                                             \
    if (e != cudaSuccess) {                                                          \
      fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e));                        \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

struct Case {
  u64 a, b, c;
};

template <class F>
__global__ void evaluate(const Case *in, u64 *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = F::apply(in[i].a, in[i].b, in[i].c);
}

template <class F>
void run(const std::vector<Case> &cases) {
  int n = (int)cases.size();
  Case *in;
  u64 *out;
  CHECK(cudaMalloc(&in, n * sizeof(Case)));
  CHECK(cudaMalloc(&out, n * sizeof(u64)));
  CHECK(cudaMemcpy(in, cases.data(), n * sizeof(Case), cudaMemcpyHostToDevice));
  evaluate<F><<<(n + 127) / 128, 128>>>(in, out, n);
  CHECK(cudaDeviceSynchronize());
  std::vector<u64> result(n);
  CHECK(cudaMemcpy(result.data(), out, n * sizeof(u64), cudaMemcpyDeviceToHost));
  CHECK(cudaFree(in));
  CHECK(cudaFree(out));
  for (int i = 0; i < n; i++) {
    printf("%s %llx", F::name(), (unsigned long long)(cases[i].a & F::mask_a()));
    if (F::operands() > 1) printf(" %llx", (unsigned long long)(cases[i].b & F::mask_b()));
    if (F::operands() > 2) printf(" %llx", (unsigned long long)(cases[i].c & F::mask_c()));
    printf(" = %llx\n", (unsigned long long)result[i]);
  }
}

constexpr u64 mask_of(size_t bytes) { return bytes == 8 ? ~0ull : (1ull << (8 * bytes)) - 1; }

#define STRUCT(id, text, count, TA, TB, TC, body)                                    \
  struct id {                                                                        \
    static const char *name() { return text; }                                       \
    static int operands() { return count; }                                          \
    static u64 mask_a() { return mask_of(sizeof(TA)); }                              \
    static u64 mask_b() { return mask_of(sizeof(TB)); }                              \
    static u64 mask_c() { return mask_of(sizeof(TC)); }                              \
    static __device__ u64 apply(u64 a, u64 b, u64 c) {                               \
      (void)b;                                                                       \
      (void)c;                                                                       \
      body                                                                           \
    }                                                                                \
  };
#define CAT2(a, b) a##b
#define CAT(a, b) CAT2(a, b)
#define ID CAT(Op, __LINE__)

// Register classes: r is 32 bits, l 64, h 16.
#define T_r u32
#define T_l u64
#define T_h u16
#define OP1(list, o, x, text)                                                        \
  STRUCT(ID, text, 1, T_##x, T_##x, T_##x,                                           \
         { T_##o d; asm volatile(text " %0, %1;" : "=" #o(d) : #x((T_##x)a)); return (u64)d; }) \
  REGISTER(ID, list)
#define OP2(list, o, x, y, text)                                                     \
  STRUCT(ID, text, 2, T_##x, T_##y, T_##y, {                                         \
    T_##o d;                                                                         \
    asm volatile(text " %0, %1, %2;" : "=" #o(d) : #x((T_##x)a), #y((T_##y)b));      \
    return (u64)d;                                                                   \
  })                                                                                 \
  REGISTER(ID, list)
#define OP3(list, o, x, y, z, text)                                                  \
  STRUCT(ID, text, 3, T_##x, T_##y, T_##z, {                                         \
    T_##o d;                                                                         \
    asm volatile(text " %0, %1, %2, %3;"                                             \
                 : "=" #o(d)                                                         \
                 : #x((T_##x)a), #y((T_##y)b), #z((T_##z)c));                        \
    return (u64)d;                                                                   \
  })                                                                                 \
  REGISTER(ID, list)

std::vector<void (*)()> &registry() {
  static std::vector<void (*)()> all;
  return all;
}
#define REGISTER(id, list) REGISTER2(id, list)
#define REGISTER2(id, list)                                                          \
  static int CAT(id, _registered) = (registry().push_back([] { run<id>(list()); }), 0);

// ---- inputs ------------------------------------------------------------------------------

static u64 seed = 1;
static u64 random64() {
  seed = seed * 6364136223846793005ull + 1442695040888963407ull;
  return seed ^ seed >> 29;
}
static u64 f32(float x) {
  u32 b;
  memcpy(&b, &x, 4);
  return b;
}
static u64 f64(double x) {
  u64 b;
  memcpy(&b, &x, 8);
  return b;
}

static std::vector<u64> singles() {
  std::vector<u64> v = {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000, 0x00800001,
                        0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001,
                        0x3f800000, 0xbf800000, 0x3f7fffff, 0x3f800001, 0x3f000000, 0xbf000000, 0x40000000,
                        0x7f000000, 0x7e800000, 0x7e800001, 0x00400000, 0x33800000, 0x34000000};
  const float plain[] = {0.25f, 0.75f, 1.5f,    2.5f,   3.5f,   -1.5f,   -2.5f,     0.1f,       -0.1f,       3.14159265f, 1.5707963f, 100.f,
                         127.f, 128.f, 127.5f,  255.f,  255.5f, 256.f,   -128.f,    -128.5f,    -129.f,      32767.f,     32768.f,    -32768.5f,
                         65535.f, 65536.f, 65504.f, 65520.f, 2147483648.f, -2147483648.f, 4294967296.f, 4294967040.f, 9.2233720e18f, -9.2233720e18f, 1.8446744e19f, 1e20f,
                         448.f, 464.f, 480.f, 57344.f, 61440.f, 1e-40f, 6e-8f, 3e-8f, 5.9e-5f, -1e-5f, 10.5f, -100.25f,
                         126.f, -126.f, -127.f, -149.f, -150.f, 88.f};
  for (float x : plain) v.push_back(f32(x));
  for (int i = 0; i < 40; i++) v.push_back(random64() >> 32);
  for (int i = 0; i < 60; i++) v.push_back((random64() & 0x807fffff) | (112 + random64() % 32) << 23);
  return v;
}
static std::vector<u64> doubles() {
  std::vector<u64> v = {0, 1ull << 63, 1, 0x000fffffffffffff, 0x0010000000000000, 0x7fefffffffffffff, 0x7ff0000000000000,
                        0xfff0000000000000, 0x7ff8000000000000, 0xfff8000000000001, 0x7ff0000000000001, f64(1), f64(-1)};
  for (u64 x : singles()) {
    float s;
    u32 b = (u32)x;
    memcpy(&s, &b, 4);
    v.push_back(f64(s));
  }
  for (int i = 0; i < 30; i++) v.push_back(random64());
  for (int i = 0; i < 60; i++) v.push_back((random64() & 0x800fffffffffffff) | (1000 + random64() % 60) << 52);
  return v;
}
static std::vector<u64> halves() {
  std::vector<u64> v = {0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x3c00, 0xbc00, 0x3c01, 0x3800, 0x7f80, 0xff80, 0x7fc0, 0x0080, 0x3f80, 0xbf80};
  for (int i = 0; i < 120; i++) v.push_back(random64() >> 48);
  return v;
}
static std::vector<u64> integers() {
  std::vector<u64> v = {0, 1, 2, 3, 7, 31, 32, 33, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0x8000, 0xffff, 0x10000, 0xffffff, 0x1000000, 0x1000001,
                        0x7fffffff, 0x80000000, 0x80000001, 0xfffffffe, 0xffffffff, 0x100000000, 0x7fffffffffffffff, 0x8000000000000000,
                        0xffffffffffffffff, 0xfffffffffffffc00, 0x20000000000001, 0x7fffff8000000000, 65504, 65520, 65519};
  for (int i = 0; i < 40; i++) v.push_back(random64());
  for (int i = 0; i < 20; i++) v.push_back(random64() >> (random64() % 60));
  return v;
}

static std::vector<Case> each(const std::vector<u64> &v) {
  std::vector<Case> out;
  for (u64 x : v) out.push_back({x, 0, 0});
  return out;
}
// Every special value with some others, then random pairs and triples.
static std::vector<Case> mixed(const std::vector<u64> &v, size_t specials) {
  std::vector<Case> out;
  for (size_t i = 0; i < specials && i < v.size(); i++)
    for (size_t j = 0; j < 5; j++) out.push_back({v[i], v[(i * 7 + j * 5) % specials], v[(i + j * 11) % v.size()]});
  for (int i = 0; i < 150; i++) out.push_back({v[random64() % v.size()], v[random64() % v.size()], v[random64() % v.size()]});
  return out;
}
static std::vector<Case> s1() { seed = 1; return each(singles()); }
static std::vector<Case> d1() { seed = 2; return each(doubles()); }
static std::vector<Case> h1() { seed = 3; return each(halves()); }
static std::vector<Case> i1() { seed = 4; return each(integers()); }
static std::vector<Case> s3() { seed = 5; return mixed(singles(), 27); }
static std::vector<Case> d3() { seed = 6; return mixed(doubles(), 13); }
static std::vector<Case> h3() { seed = 7; return mixed(halves(), 23); }
static std::vector<Case> i3() { seed = 8; return mixed(integers(), 34); }
// Bit positions and lengths are small numbers.
static std::vector<Case> bits3() {
  seed = 9;
  std::vector<Case> out;
  for (int i = 0; i < 200; i++) out.push_back({random64(), random64() % 70, random64() % 70});
  return out;
}
static std::vector<Case> select3() {
  seed = 10;
  std::vector<Case> out;
  for (int i = 0; i < 120; i++) out.push_back({random64(), random64(), random64()});
  return out;
}
static std::vector<Case> bytes1() {
  std::vector<Case> out;
  for (u64 i = 0; i < 256; i++) out.push_back({i | (255 - i) << 8, 0, 0});
  return out;
}

// ---- instructions ------------------------------------------------------------------------

OP1(s1, r, r, "rcp.approx.f32")
OP1(s1, r, r, "rcp.approx.ftz.f32")
OP1(s1, r, r, "rsqrt.approx.f32")
OP1(s1, r, r, "rsqrt.approx.ftz.f32")
OP1(s1, r, r, "sqrt.approx.f32")
OP1(s1, r, r, "sqrt.approx.ftz.f32")
OP1(s1, r, r, "sin.approx.f32")
OP1(s1, r, r, "sin.approx.ftz.f32")
OP1(s1, r, r, "cos.approx.f32")
OP1(s1, r, r, "cos.approx.ftz.f32")
OP1(s1, r, r, "lg2.approx.f32")
OP1(s1, r, r, "lg2.approx.ftz.f32")
OP1(s1, r, r, "ex2.approx.f32")
OP1(s1, r, r, "ex2.approx.ftz.f32")
OP1(s1, r, r, "tanh.approx.f32")
OP1(h1, h, h, "ex2.approx.f16")
OP1(h1, h, h, "tanh.approx.f16")
OP1(h1, h, h, "ex2.approx.ftz.bf16")
OP1(h1, h, h, "tanh.approx.bf16")
OP1(d1, l, l, "rcp.approx.ftz.f64")
OP1(d1, l, l, "rsqrt.approx.f64")
OP1(d1, l, l, "rsqrt.approx.ftz.f64")
OP2(s3, r, r, r, "div.approx.f32")
OP2(s3, r, r, r, "div.approx.ftz.f32")
OP2(s3, r, r, r, "div.full.f32")
OP2(s3, r, r, r, "div.full.ftz.f32")

OP1(s1, r, r, "rcp.rn.f32")
OP1(s1, r, r, "rcp.rz.f32")
OP1(s1, r, r, "rcp.rm.f32")
OP1(s1, r, r, "rcp.rp.ftz.f32")
OP1(s1, r, r, "sqrt.rn.f32")
OP1(s1, r, r, "sqrt.rz.f32")
OP1(s1, r, r, "sqrt.rm.ftz.f32")
OP1(s1, r, r, "sqrt.rp.f32")
OP1(d1, l, l, "rcp.rn.f64")
OP1(d1, l, l, "rcp.rp.f64")
OP1(d1, l, l, "sqrt.rn.f64")
OP1(d1, l, l, "sqrt.rm.f64")
OP1(s1, r, r, "abs.f32")
OP1(s1, r, r, "abs.ftz.f32")
OP1(s1, r, r, "neg.f32")
OP1(s1, r, r, "neg.ftz.f32")
OP1(h1, h, h, "abs.f16")
OP1(h1, h, h, "neg.f16")
OP1(h1, h, h, "abs.bf16")
OP1(h1, h, h, "neg.bf16")
OP1(d1, l, l, "abs.f64")
OP1(d1, l, l, "neg.f64")

OP2(s3, r, r, r, "add.rn.f32")
OP2(s3, r, r, r, "add.rz.f32")
OP2(s3, r, r, r, "add.rm.f32")
OP2(s3, r, r, r, "add.rp.f32")
OP2(s3, r, r, r, "add.rn.ftz.f32")
OP2(s3, r, r, r, "add.rz.ftz.sat.f32")
OP2(s3, r, r, r, "sub.rn.sat.f32")
OP2(s3, r, r, r, "sub.rm.f32")
OP2(s3, r, r, r, "mul.rn.f32")
OP2(s3, r, r, r, "mul.rz.f32")
OP2(s3, r, r, r, "mul.rm.f32")
OP2(s3, r, r, r, "mul.rp.f32")
OP2(s3, r, r, r, "mul.rn.ftz.f32")
OP2(s3, r, r, r, "mul.rp.ftz.sat.f32")
OP2(s3, r, r, r, "div.rn.f32")
OP2(s3, r, r, r, "div.rz.f32")
OP2(s3, r, r, r, "div.rm.ftz.f32")
OP2(s3, r, r, r, "div.rp.f32")
OP3(s3, r, r, r, r, "fma.rn.f32")
OP3(s3, r, r, r, r, "fma.rz.f32")
OP3(s3, r, r, r, r, "fma.rm.f32")
OP3(s3, r, r, r, r, "fma.rp.ftz.f32")
OP3(s3, r, r, r, r, "fma.rn.ftz.sat.f32")
OP2(s3, r, r, r, "min.f32")
OP2(s3, r, r, r, "max.f32")
OP2(s3, r, r, r, "min.ftz.f32")
OP2(s3, r, r, r, "min.NaN.f32")
OP2(s3, r, r, r, "max.ftz.NaN.f32")
OP2(s3, r, r, r, "min.xorsign.abs.f32")
OP2(s3, r, r, r, "max.NaN.xorsign.abs.f32")
OP2(s3, r, r, r, "copysign.f32")
OP2(d3, l, l, l, "add.rn.f64")
OP2(d3, l, l, l, "add.rz.f64")
OP2(d3, l, l, l, "sub.rm.f64")
OP2(d3, l, l, l, "mul.rn.f64")
OP2(d3, l, l, l, "mul.rp.f64")
OP2(d3, l, l, l, "div.rn.f64")
OP2(d3, l, l, l, "div.rz.f64")
OP3(d3, l, l, l, l, "fma.rn.f64")
OP3(d3, l, l, l, l, "fma.rz.f64")
OP3(d3, l, l, l, l, "fma.rm.f64")
OP3(d3, l, l, l, l, "fma.rp.f64")
OP2(d3, l, l, l, "min.f64")
OP2(d3, l, l, l, "max.f64")
OP2(h3, h, h, h, "add.rn.f16")
OP2(h3, h, h, h, "add.rn.ftz.sat.f16")
OP2(h3, h, h, h, "sub.rn.f16")
OP2(h3, h, h, h, "mul.rn.f16")
OP2(h3, h, h, h, "mul.rn.ftz.f16")
OP3(h3, h, h, h, h, "fma.rn.f16")
OP3(h3, h, h, h, h, "fma.rn.ftz.sat.f16")
OP3(h3, h, h, h, h, "fma.rn.relu.f16")
OP2(h3, h, h, h, "add.rn.bf16")
OP2(h3, h, h, h, "sub.rn.bf16")
OP2(h3, h, h, h, "mul.rn.bf16")
OP3(h3, h, h, h, h, "fma.rn.bf16")
OP3(h3, h, h, h, h, "fma.rn.relu.bf16")
OP2(h3, h, h, h, "min.f16")
OP2(h3, h, h, h, "max.NaN.f16")
OP2(h3, h, h, h, "min.ftz.f16")
OP2(h3, h, h, h, "max.bf16")

OP1(s1, r, r, "cvt.rni.s32.f32")
OP1(s1, r, r, "cvt.rzi.s32.f32")
OP1(s1, r, r, "cvt.rmi.s32.f32")
OP1(s1, r, r, "cvt.rpi.ftz.s32.f32")
OP1(s1, r, r, "cvt.rni.u32.f32")
OP1(s1, r, r, "cvt.rzi.u32.f32")
OP1(s1, r, r, "cvt.rzi.ftz.u32.f32")
OP1(s1, l, r, "cvt.rni.s64.f32")
OP1(s1, l, r, "cvt.rzi.s64.f32")
OP1(s1, l, r, "cvt.rzi.u64.f32")
OP1(s1, l, r, "cvt.rpi.u64.f32")
OP1(s1, h, r, "cvt.rzi.s16.f32")
OP1(s1, h, r, "cvt.rni.u16.f32")
OP1(s1, r, r, "cvt.rzi.s8.f32")
OP1(s1, r, r, "cvt.rni.u8.f32")
OP1(s1, r, r, "cvt.rzi.sat.u8.f32")
OP1(d1, r, l, "cvt.rni.s32.f64")
OP1(d1, r, l, "cvt.rzi.s32.f64")
OP1(d1, r, l, "cvt.rzi.u32.f64")
OP1(d1, l, l, "cvt.rmi.s64.f64")
OP1(d1, l, l, "cvt.rzi.s64.f64")
OP1(d1, l, l, "cvt.rni.u64.f64")
OP1(h1, r, h, "cvt.rni.s32.f16")
OP1(h1, r, h, "cvt.rzi.u32.f16")
OP1(h1, h, h, "cvt.rzi.s16.f16")
OP1(h1, h, h, "cvt.rni.u16.f16")
OP1(h1, l, h, "cvt.rzi.s64.f16")
OP1(i1, r, r, "cvt.rn.f32.s32")
OP1(i1, r, r, "cvt.rz.f32.s32")
OP1(i1, r, r, "cvt.rm.f32.u32")
OP1(i1, r, r, "cvt.rp.f32.u32")
OP1(i1, r, l, "cvt.rn.f32.s64")
OP1(i1, r, l, "cvt.rz.f32.u64")
OP1(i1, r, l, "cvt.rp.f32.s64")
OP1(i1, l, r, "cvt.rn.f64.s32")
OP1(i1, l, l, "cvt.rn.f64.s64")
OP1(i1, l, l, "cvt.rm.f64.u64")
OP1(i1, h, r, "cvt.rn.f16.s32")
OP1(i1, h, l, "cvt.rn.f16.u64")
OP1(i1, h, h, "cvt.rz.f16.u16")
OP1(i1, r, r, "cvt.sat.u8.s32")
OP1(i1, r, r, "cvt.sat.s8.u32")
OP1(i1, h, l, "cvt.sat.s16.s64")
OP1(i1, r, l, "cvt.sat.u32.s64")
OP1(i1, l, r, "cvt.s64.s32")
OP1(s1, h, r, "cvt.rn.f16.f32")
OP1(s1, h, r, "cvt.rz.f16.f32")
OP1(s1, h, r, "cvt.rn.ftz.f16.f32")
OP1(s1, h, r, "cvt.rn.relu.f16.f32")
OP1(s1, h, r, "cvt.rn.bf16.f32")
OP1(s1, h, r, "cvt.rz.bf16.f32")
OP1(s1, h, r, "cvt.rn.relu.bf16.f32")
OP1(h1, r, h, "cvt.f32.f16")
OP1(h1, r, h, "cvt.ftz.f32.f16")
OP1(h1, r, h, "cvt.sat.f32.f16")
OP1(h1, r, h, "cvt.f32.bf16")
OP1(h1, l, h, "cvt.f64.f16")
OP1(d1, r, l, "cvt.rn.f32.f64")
OP1(d1, r, l, "cvt.rz.f32.f64")
OP1(d1, r, l, "cvt.rm.ftz.f32.f64")
OP1(d1, r, l, "cvt.rp.sat.f32.f64")
OP1(d1, h, l, "cvt.rn.f16.f64")
OP1(s1, l, r, "cvt.f64.f32")
OP1(s1, l, r, "cvt.ftz.f64.f32")
OP1(s1, r, r, "cvt.rni.f32.f32")
OP1(s1, r, r, "cvt.rzi.ftz.f32.f32")
OP1(s1, r, r, "cvt.rmi.f32.f32")
OP1(s1, r, r, "cvt.rpi.sat.f32.f32")
OP1(s1, r, r, "cvt.sat.f32.f32")
OP1(d1, l, l, "cvt.rni.f64.f64")
OP1(h1, h, h, "cvt.rmi.f16.f16")
OP1(s1, r, r, "cvt.rna.tf32.f32")
OP2(s3, r, r, r, "cvt.rn.f16x2.f32")
OP2(s3, r, r, r, "cvt.rz.relu.f16x2.f32")
OP2(s3, r, r, r, "cvt.rn.bf16x2.f32")
OP2(s3, r, r, r, "cvt.rn.relu.bf16x2.f32")
OP2(s3, h, r, r, "cvt.rn.satfinite.e4m3x2.f32")
OP2(s3, h, r, r, "cvt.rn.satfinite.e5m2x2.f32")
OP2(s3, h, r, r, "cvt.rn.satfinite.relu.e4m3x2.f32")
OP1(bytes1, r, h, "cvt.rn.f16x2.e4m3x2")
OP1(bytes1, r, h, "cvt.rn.f16x2.e5m2x2")
OP1(bytes1, r, h, "cvt.rn.relu.f16x2.e4m3x2")
OP1(select3, h, r, "cvt.rn.satfinite.e4m3x2.f16x2")
OP1(select3, h, r, "cvt.rn.satfinite.e5m2x2.f16x2")

OP2(i3, r, r, r, "div.s32")
OP2(i3, r, r, r, "div.u32")
OP2(i3, l, l, l, "div.s64")
OP2(i3, l, l, l, "div.u64")
OP2(i3, h, h, h, "div.s16")
OP2(i3, h, h, h, "div.u16")
OP2(i3, r, r, r, "rem.s32")
OP2(i3, r, r, r, "rem.u32")
OP2(i3, l, l, l, "rem.s64")
OP2(i3, l, l, l, "rem.u64")
OP2(i3, h, h, h, "rem.s16")
OP2(i3, r, r, r, "mul.hi.s32")
OP2(i3, r, r, r, "mul.hi.u32")
OP2(i3, l, l, l, "mul.hi.s64")
OP2(i3, l, r, r, "mul.wide.s32")
OP2(i3, r, r, r, "mul24.lo.s32")
OP2(i3, r, r, r, "mul24.hi.u32")
OP2(i3, r, r, r, "add.sat.s32")
OP2(i3, r, r, r, "sub.sat.s32")
OP3(i3, r, r, r, r, "mad.hi.sat.s32")
OP3(i3, r, r, r, r, "mad24.hi.sat.s32")
OP3(i3, r, r, r, r, "sad.s32")
OP3(i3, r, r, r, r, "sad.u32")
OP3(i3, r, r, r, r, "dp4a.s32.s32")
OP3(i3, r, r, r, r, "dp4a.u32.s32")
OP3(i3, r, r, r, r, "dp2a.lo.s32.u32")
OP3(i3, r, r, r, r, "dp2a.hi.u32.u32")
OP3(bits3, r, r, r, r, "bfe.s32")
OP3(bits3, r, r, r, r, "bfe.u32")
OP3(bits3, l, l, r, r, "bfe.s64")
OP3(bits3, l, l, r, r, "bfe.u64")
OP1(i1, r, r, "bfind.s32")
OP1(i1, r, r, "bfind.shiftamt.u32")
OP1(i1, r, l, "bfind.s64")
OP2(bits3, r, r, r, "shl.b32")
OP2(bits3, r, r, r, "shr.s32")
OP2(bits3, l, l, r, "shr.s64")
OP2(bits3, l, l, r, "shl.b64")
OP2(bits3, h, h, r, "shr.s16")
OP2(bits3, r, r, r, "bmsk.clamp.b32")
OP2(bits3, r, r, r, "bmsk.wrap.b32")
OP2(bits3, r, r, r, "szext.clamp.s32")
OP2(bits3, r, r, r, "szext.wrap.u32")
OP3(select3, r, r, r, r, "shf.l.wrap.b32")
OP3(select3, r, r, r, r, "shf.r.clamp.b32")
OP3(select3, r, r, r, r, "prmt.b32")
OP3(select3, r, r, r, r, "prmt.b32.f4e")
OP3(select3, r, r, r, r, "prmt.b32.b4e")
OP3(select3, r, r, r, r, "prmt.b32.rc8")
OP3(select3, r, r, r, r, "prmt.b32.ecl")
OP3(select3, r, r, r, r, "prmt.b32.ecr")
OP3(select3, r, r, r, r, "prmt.b32.rc16")
OP3(bits3, r, r, r, r, "fns.b32")
OP3(select3, r, r, r, r, "vabsdiff4.u32.u32.u32.add")
OP3(select3, r, r, r, r, "vadd2.s32.s32.s32.sat")
OP3(select3, r, r, r, r, "vavrg4.u32.u32.u32")
OP3(select3, r, r, r, r, "vmax4.s32.s32.s32")
OP3(i3, r, r, r, r, "vadd.s32.s32.u32.sat.min")
OP3(i3, r, r, r, r, "vmad.s32.s32.s32.sat.shr7")
OP3(select3, r, r, r, r, "cvt.pack.sat.u8.s32.b32")
OP2(i3, r, r, r, "cvt.pack.sat.s16.s32")

// ---- matrices ----------------------------------------------------------------------------

// Each lane prints its registers of A, B, C and D. 32-bit registers throughout, except f64.
template <int A, int B, int C, int D, class T>
struct Registers {
  T a[A], b[B], c[C], d[D];
};

template <class F>
__global__ void multiply(typename F::Set *sets) {
  F::apply(sets[threadIdx.x]);
}

static u64 small_half() { return (random64() & 0x83ff) | (12 + random64() % 6) << 10; }
static u64 small_bf16() { return (random64() & 0x807f) | (124 + random64() % 6) << 7; }
static u64 small_single() { return (random64() & 0x807fffff) | (124 + random64() % 6) << 23; }
static u64 small_double() { return (random64() & 0x800fffffffffffff) | (1020 + random64() % 6) << 52; }
static u64 two_halves() { u64 x = small_half(); return x << 16 | small_half(); }
static u64 two_bf16() { u64 x = small_bf16(); return x << 16 | small_bf16(); }
static u64 any32() { return random64() >> 32; }
static u64 small_int() { return (u32)(int)(random64() % 2001) - 1000; }
static u64 four_fp8() { return any32() & 0xbfbfbfbf; }

template <class F>
void run_matrix() {
  seed = 11;
  for (int round = 0; round < 3; round++) {
    std::vector<typename F::Set> sets(32);
    for (auto &s : sets) {
      for (auto &x : s.a) x = F::element();
      for (auto &x : s.b) x = F::element();
      for (auto &x : s.c) x = F::accumulator();
      memset(s.d, 0, sizeof(s.d));
    }
    typename F::Set *device;
    CHECK(cudaMalloc(&device, 32 * sizeof(sets[0])));
    CHECK(cudaMemcpy(device, sets.data(), 32 * sizeof(sets[0]), cudaMemcpyHostToDevice));
    multiply<F><<<1, 32>>>(device);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(sets.data(), device, 32 * sizeof(sets[0]), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(device));
    for (auto &s : sets) {
      printf("%s", F::name());
      for (auto x : s.a) printf(" %llx", (unsigned long long)x);
      printf(" |");
      for (auto x : s.b) printf(" %llx", (unsigned long long)x);
      printf(" |");
      for (auto x : s.c) printf(" %llx", (unsigned long long)x);
      printf(" =");
      for (auto x : s.d) printf(" %llx", (unsigned long long)x);
      printf("\n");
    }
  }
}

#define MATRIX(id, text, NA, NB, NC, ND, T, elem, acc, pattern, outs, ins)           \
  struct id {                                                                        \
    typedef Registers<NA, NB, NC, ND, T> Set;                                        \
    static const char *name() { return text; }                                       \
    static u64 element() { return elem(); }                                          \
    static u64 accumulator() { return acc(); }                                       \
    static __device__ void apply(Set &s) { asm volatile(text pattern : outs : ins); } \
  };                                                                                 \
  static int CAT(id, _registered) = (registry().push_back([] { run_matrix<id>(); }), 0);
#define COMMA ,
#define D2(k) "=" k(s.d[0]) COMMA "=" k(s.d[1])
#define D4(k) D2(k) COMMA "=" k(s.d[2]) COMMA "=" k(s.d[3])
#define D8(k) D4(k) COMMA "=" k(s.d[4]) COMMA "=" k(s.d[5]) COMMA "=" k(s.d[6]) COMMA "=" k(s.d[7])
#define I1(k, v) k(s.v[0])
#define I2(k, v) I1(k, v) COMMA k(s.v[1])
#define I4(k, v) I2(k, v) COMMA k(s.v[2]) COMMA k(s.v[3])
#define I8(k, v) I4(k, v) COMMA k(s.v[4]) COMMA k(s.v[5]) COMMA k(s.v[6]) COMMA k(s.v[7])

MATRIX(M1, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 4, 2, 4, 4, u32, two_halves, small_single,
       " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};", D4("r"), I4("r", a) COMMA I2("r", b) COMMA I4("r", c))
MATRIX(M2, "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", 4, 2, 2, 2, u32, two_halves, two_halves,
       " {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%9};", D2("r"), I4("r", a) COMMA I2("r", b) COMMA I2("r", c))
MATRIX(M3, "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 2, 1, 4, 4, u32, two_halves, small_single,
       " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};", D4("r"), I2("r", a) COMMA I1("r", b) COMMA I4("r", c))
MATRIX(M4, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 4, 2, 4, 4, u32, two_bf16, small_single,
       " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};", D4("r"), I4("r", a) COMMA I2("r", b) COMMA I4("r", c))
MATRIX(M5, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2, 4, 4, u32, small_single, small_single,
       " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};", D4("r"), I4("r", a) COMMA I2("r", b) COMMA I4("r", c))
MATRIX(M6, "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", 2, 1, 4, 4, u32, small_single, small_single,
       " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};", D4("r"), I2("r", a) COMMA I1("r", b) COMMA I4("r", c))
MATRIX(M7, "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", 1, 1, 2, 2, u64, small_double, small_double,
       " {%0,%1}, {%2}, {%3}, {%4,%5};", D2("l"), I1("l", a) COMMA I1("l", b) COMMA I2("l", c))
MATRIX(M8, "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64", 8, 4, 4, 4, u64, small_double, small_double,
       " {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, {%16,%17,%18,%19};", D4("l"), I8("l", a) COMMA I4("l", b) COMMA I4("l", c))
MATRIX(M9, "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", 4, 2, 4, 4, u32, any32, small_int,
       " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};", D4("r"), I4("r", a) COMMA I2("r", b) COMMA I4("r", c))
MATRIX(M10, "mma.sync.aligned.m16n8k16.row.col.satfinite.s32.u8.s8.s32", 2, 1, 4, 4, u32, any32, any32,
       " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};", D4("r"), I2("r", a) COMMA I1("r", b) COMMA I4("r", c))
MATRIX(M11, "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32", 1, 1, 2, 2, u32, any32, small_int,
       " {%0,%1}, {%2}, {%3}, {%4,%5};", D2("r"), I1("r", a) COMMA I1("r", b) COMMA I2("r", c))
MATRIX(M12, "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32", 4, 2, 4, 4, u32, any32, small_int,
       " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};", D4("r"), I4("r", a) COMMA I2("r", b) COMMA I4("r", c))
MATRIX(M13, "mma.sync.aligned.m8n8k32.row.col.s32.u4.s4.s32", 1, 1, 2, 2, u32, any32, small_int,
       " {%0,%1}, {%2}, {%3}, {%4,%5};", D2("r"), I1("r", a) COMMA I1("r", b) COMMA I2("r", c))
MATRIX(M14, "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc", 4, 2, 4, 4, u32, any32, small_int,
       " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};", D4("r"), I4("r", a) COMMA I2("r", b) COMMA I4("r", c))
MATRIX(M15, "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.and.popc", 1, 1, 2, 2, u32, any32, small_int,
       " {%0,%1}, {%2}, {%3}, {%4,%5};", D2("r"), I1("r", a) COMMA I1("r", b) COMMA I2("r", c))
MATRIX(M16, "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", 2, 2, 8, 8, u32, two_halves, small_single,
       " {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, {%12,%13,%14,%15,%16,%17,%18,%19};", D8("r"), I2("r", a) COMMA I2("r", b) COMMA I8("r", c))
MATRIX(M17, "mma.sync.aligned.m8n8k4.col.row.f16.f16.f16.f16", 2, 2, 4, 4, u32, two_halves, two_halves,
       " {%0,%1,%2,%3}, {%4,%5}, {%6,%7}, {%8,%9,%10,%11};", D4("r"), I2("r", a) COMMA I2("r", b) COMMA I4("r", c))
MATRIX(M18, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", 4, 2, 4, 4, u32, four_fp8, small_single,
       " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};", D4("r"), I4("r", a) COMMA I2("r", b) COMMA I4("r", c))

int main() {
  cudaDeviceProp p;
  CHECK(cudaGetDeviceProperties(&p, 0));
  printf("# %s, compute capability %d.%d\n", p.name, p.major, p.minor);
  for (auto f : registry()) f();
  return 0;
}
