// Prints what a GPU samples from textures of fixed contents, for mica-ptx-ops to be tested with.
//
// One line per sample:
//   tex GEOMETRY FORMAT CHANNELS FILTER MODE NORMALIZED INTEGER W H D LAYER X Y Z = R G B A
// GEOMETRY is 1d, 2d, 3d, a1d, a2d, cube or fetch (integer coordinates on linear memory); FORMAT is
// a CUarray_format; FILTER 0 point, 1 linear; MODE a CUaddress_mode; numbers are hexadecimal except
// the first ones; X Y Z and R G B A are bits.
// Gathers (tld4) print `tld4.COMPONENT` instead of `tex`.
//
//   nvcc -std=c++17 -arch=sm_90 -cudart static golden_texture.cu -o golden_texture
//   ./golden_texture > ../golden/h200_texture.txt
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(x)                                                                     \
  do {                                                                               \
    cudaError_t e = (x);                                                             \
    if (e != cudaSuccess) {                                                          \
      fprintf(stderr, "%s:%d %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e)); \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

struct Point {
  float x, y, z;
  uint32_t layer;
  uint32_t out[4];
};

enum Geometry { G1, G2, G3, GA1, GA2, GCUBE, GFETCH, GATHER0, GATHER2 };
static const char *names[] = {"tex 1d", "tex 2d", "tex 3d", "tex a1d", "tex a2d", "tex cube", "tex fetch", "tld4.0 2d", "tld4.2 2d"};

#define OUT "=r"(o[0]), "=r"(o[1]), "=r"(o[2]), "=r"(o[3])
template <bool INTEGER>
__global__ void sample(cudaTextureObject_t t, int geometry, Point *points, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  Point p = points[i];
  uint32_t o[4];
#define SAMPLE(ty)                                                                                                      \
  switch (geometry) {                                                                                                   \
  case G1: asm volatile("tex.1d.v4." ty ".f32 {%0,%1,%2,%3}, [%4, {%5}];" : OUT : "l"(t), "f"(p.x)); break;              \
  case G2: asm volatile("tex.2d.v4." ty ".f32 {%0,%1,%2,%3}, [%4, {%5,%6}];" : OUT : "l"(t), "f"(p.x), "f"(p.y)); break; \
  case G3: asm volatile("tex.3d.v4." ty ".f32 {%0,%1,%2,%3}, [%4, {%5,%6,%7,%7}];" : OUT : "l"(t), "f"(p.x), "f"(p.y), "f"(p.z)); break; \
  case GA1: asm volatile("tex.a1d.v4." ty ".f32 {%0,%1,%2,%3}, [%4, {%5,%6}];" : OUT : "l"(t), "r"(p.layer), "f"(p.x)); break; \
  case GA2: asm volatile("tex.a2d.v4." ty ".f32 {%0,%1,%2,%3}, [%4, {%5,%6,%7,%7}];" : OUT : "l"(t), "r"(p.layer), "f"(p.x), "f"(p.y)); break; \
  case GCUBE: asm volatile("tex.cube.v4." ty ".f32 {%0,%1,%2,%3}, [%4, {%5,%6,%7,%7}];" : OUT : "l"(t), "f"(p.x), "f"(p.y), "f"(p.z)); break; \
  case GFETCH: asm volatile("tex.1d.v4." ty ".s32 {%0,%1,%2,%3}, [%4, {%5}];" : OUT : "l"(t), "r"((int)p.x)); break;     \
  case GATHER0: asm volatile("tld4.r.2d.v4." ty ".f32 {%0,%1,%2,%3}, [%4, {%5,%6}];" : OUT : "l"(t), "f"(p.x), "f"(p.y)); break; \
  case GATHER2: asm volatile("tld4.b.2d.v4." ty ".f32 {%0,%1,%2,%3}, [%4, {%5,%6}];" : OUT : "l"(t), "f"(p.x), "f"(p.y)); break; \
  }
  if (INTEGER) {
    SAMPLE("u32")
  } else {
    SAMPLE("f32")
  }
  for (int j = 0; j < 4; j++) points[i].out[j] = o[j];
}

static uint64_t seed = 1;
static uint32_t random32() {
  seed = seed * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)(seed >> 33);
}
static float uniform(float from, float to) { return from + (to - from) * (random32() & 0xffffff) / 16777216.0f; }

static int bytes_of(int format) { return format == 1 || format == 8 ? 1 : format == 2 || format == 9 || format == 16 ? 2 : 4; }

// Component c of the texel at x, y, z: the same as in the Rust test.
static uint32_t content(int format, int x, int y, int z, int c) {
  int p = (x * 7 + y * 13 + z * 29 + c * 5) % 251;
  float f = p * 0.25f;
  uint32_t bits;
  switch (format) {
  case 1: return p;
  case 8: return (uint8_t)(p - 125);
  case 2: return p * 200;
  case 9: return (uint16_t)((p - 125) * 200);
  case 3: return p * 1000;
  case 10: return (uint32_t)((p - 125) * 1000);
  case 16: return (uint32_t)(0x3000 + p); // small positive halves
  default: memcpy(&bits, &f, 4); return bits;
  }
}

static void run(int geometry, int format, int channels, int filter, int mode, bool normalized, bool integer, int w, int h, int d) {
  int size = bytes_of(format), texel = size * channels;
  std::vector<uint8_t> data((size_t)w * h * d * texel);
  for (int z = 0; z < d; z++)
    for (int y = 0; y < h; y++)
      for (int x = 0; x < w; x++)
        for (int c = 0; c < channels; c++) {
          uint32_t v = content(format, x, y, z, c);
          memcpy(&data[(((size_t)z * h + y) * w + x) * texel + c * size], &v, size);
        }
  int b[4] = {0, 0, 0, 0};
  for (int c = 0; c < channels; c++) b[c] = 8 * size;
  cudaChannelFormatKind kind = format >= 16 ? cudaChannelFormatKindFloat : format >= 8 ? cudaChannelFormatKindSigned : cudaChannelFormatKindUnsigned;
  cudaChannelFormatDesc desc = cudaCreateChannelDesc(b[0], b[1], b[2], b[3], kind);
  cudaResourceDesc resource = {};
  cudaArray_t array = nullptr;
  void *linear = nullptr;
  if (geometry == GFETCH) {
    CHECK(cudaMalloc(&linear, data.size()));
    CHECK(cudaMemcpy(linear, data.data(), data.size(), cudaMemcpyHostToDevice));
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = linear;
    resource.res.linear.desc = desc;
    resource.res.linear.sizeInBytes = data.size();
  } else {
    bool flat = geometry == G1 || geometry == GA1;
    bool deep = geometry != G1 && geometry != G2 && geometry != GATHER0 && geometry != GATHER2;
    unsigned flags = geometry == GCUBE ? cudaArrayCubemap : geometry == GA1 || geometry == GA2 ? cudaArrayLayered
                   : geometry >= GATHER0 ? cudaArrayTextureGather : 0;
    cudaExtent extent = make_cudaExtent(w, flat ? 0 : h, deep ? d : 0);
    CHECK(cudaMalloc3DArray(&array, &desc, extent, flags));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(data.data(), (size_t)w * texel, w, h);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(w, h, d);
    copy.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&copy));
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
  }
  cudaTextureDesc texture = {};
  for (int i = 0; i < 3; i++) texture.addressMode[i] = (cudaTextureAddressMode)mode;
  texture.filterMode = filter ? cudaFilterModeLinear : cudaFilterModePoint;
  texture.readMode = integer || format >= 16 || size == 4 ? cudaReadModeElementType : cudaReadModeNormalizedFloat;
  texture.normalizedCoords = normalized;
  float border[4] = {0.5f, 0.25f, 0.75f, 1.0f};
  memcpy(texture.borderColor, border, sizeof(border));
  cudaTextureObject_t object;
  CHECK(cudaCreateTextureObject(&object, &resource, &texture, nullptr));
  std::vector<Point> points;
  seed = 7;
  for (int i = 0; i < 40; i++) {
    Point p = {};
    if (geometry == GCUBE) {
      p.x = uniform(-1, 1); p.y = uniform(-1, 1); p.z = uniform(-1, 1);
    } else if (geometry == GFETCH) {
      p.x = (float)((int)(random32() % (w + 6)) - 3);
    } else {
      float s[3] = {normalized ? 1.0f : w, normalized ? 1.0f : h, normalized ? 1.0f : d};
      p.x = uniform(-1.2f, 2.4f) * s[0]; p.y = uniform(-1.2f, 2.4f) * s[1]; p.z = uniform(-1.2f, 2.4f) * s[2];
      if (i < 8) { p.x = (i + 0.5f) * (normalized ? 1.0f / w : 1.0f); p.y = 0.5f * (normalized ? 1.0f / h : 1.0f); p.z = p.y; }
      if (i == 8) { p.x = p.y = p.z = 0; }
    }
    p.layer = random32() % (d + 2);
    points.push_back(p);
  }
  Point *device;
  int n = (int)points.size();
  CHECK(cudaMalloc(&device, n * sizeof(Point)));
  CHECK(cudaMemcpy(device, points.data(), n * sizeof(Point), cudaMemcpyHostToDevice));
  if (integer) sample<true><<<1, 64>>>(object, geometry, device, n);
  else sample<false><<<1, 64>>>(object, geometry, device, n);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(points.data(), device, n * sizeof(Point), cudaMemcpyDeviceToHost));
  for (auto &p : points) {
    uint32_t c[3];
    memcpy(c, &p.x, 12);
    printf("%s %d %d %d %d %d %d %d %d %d %d %x %x %x = %x %x %x %x\n", names[geometry], format, channels, filter, mode, normalized, integer, w, h, d,
           p.layer, c[0], c[1], c[2], p.out[0], p.out[1], p.out[2], p.out[3]);
  }
  CHECK(cudaFree(device));
  CHECK(cudaDestroyTextureObject(object));
  if (array) CHECK(cudaFreeArray(array));
  if (linear) CHECK(cudaFree(linear));
}

int main() {
  cudaDeviceProp p;
  CHECK(cudaGetDeviceProperties(&p, 0));
  printf("# %s\n", p.name);
  // Address modes of CUDA: 0 wrap, 1 clamp, 2 mirror, 3 border.
  for (int filter = 0; filter < 2; filter++)
    for (int mode = 0; mode < 4; mode++)
      for (int normalized = 0; normalized < 2; normalized++) {
        if (!normalized && (mode == 0 || mode == 2)) continue;
        run(G1, 32, 1, filter, mode, normalized, false, 8, 1, 1);
        run(G2, 32, 1, filter, mode, normalized, false, 8, 5, 1);
        run(G3, 32, 1, filter, mode, normalized, false, 4, 5, 3);
      }
  for (int filter = 0; filter < 2; filter++) {
    run(GA1, 32, 2, filter, 1, false, false, 8, 1, 3);
    run(GA2, 32, 1, filter, 1, true, false, 8, 4, 3);
    run(GCUBE, 32, 1, filter, 1, true, false, 4, 4, 6);
    run(G2, 1, 4, filter, 1, false, false, 8, 4, 1);
    run(G2, 1, 1, filter, 3, false, false, 8, 4, 1);
    run(G2, 2, 2, filter, 1, false, false, 8, 4, 1);
    run(G2, 8, 1, filter, 1, false, false, 8, 4, 1);
    run(G2, 9, 2, filter, 1, false, false, 8, 4, 1);
    run(G2, 16, 4, filter, 1, false, false, 8, 4, 1);
  }
  int formats[] = {1, 2, 3, 8, 9, 10};
  for (int f : formats) {
    run(G2, f, 1, 0, 1, false, true, 8, 4, 1);
    run(G2, f, 4, 0, 3, false, true, 8, 4, 1);
    run(GFETCH, f, 2, 0, 1, false, true, 16, 1, 1);
  }
  run(GFETCH, 32, 1, 0, 1, false, false, 16, 1, 1);
  run(GATHER0, 32, 4, 0, 1, false, false, 8, 4, 1);
  run(GATHER2, 32, 4, 0, 1, false, false, 8, 4, 1);
  return 0;
}
