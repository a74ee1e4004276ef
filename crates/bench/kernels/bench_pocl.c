// The same kernels in OpenCL C, for whatever CPU device the installed OpenCL offers (PoCL). Declares
// the few entry points it needs, so that no headers have to be installed.
#include "bench_common.h"
#include <stdint.h>
typedef struct handle *cl_handle;
typedef int32_t cl_int;
typedef uint64_t cl_flags;
cl_int clGetPlatformIDs(uint32_t, cl_handle *, uint32_t *);
cl_int clGetDeviceIDs(cl_handle, cl_flags, uint32_t, cl_handle *, uint32_t *);
cl_int clGetDeviceInfo(cl_handle, uint32_t, size_t, void *, size_t *);
cl_handle clCreateContext(const intptr_t *, uint32_t, const cl_handle *, void *, void *, cl_int *);
cl_handle clCreateCommandQueue(cl_handle, cl_handle, cl_flags, cl_int *);
cl_handle clCreateProgramWithSource(cl_handle, uint32_t, const char **, const size_t *, cl_int *);
cl_int clBuildProgram(cl_handle, uint32_t, const cl_handle *, const char *, void *, void *);
cl_handle clCreateKernel(cl_handle, const char *, cl_int *);
cl_handle clCreateBuffer(cl_handle, cl_flags, size_t, void *, cl_int *);
cl_int clSetKernelArg(cl_handle, uint32_t, size_t, const void *);
cl_int clEnqueueNDRangeKernel(cl_handle, cl_handle, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t, const cl_handle *, cl_handle *);
cl_int clEnqueueReadBuffer(cl_handle, cl_handle, uint32_t, size_t, size_t, void *, uint32_t, const cl_handle *, cl_handle *);
cl_int clEnqueueWriteBuffer(cl_handle, cl_handle, uint32_t, size_t, size_t, const void *, uint32_t, const cl_handle *, cl_handle *);
cl_int clFinish(cl_handle);
enum { CPU = 2, COPY_HOST = 32, READ_WRITE = 1, NAME = 0x102B };

static const char *SOURCE =
    "kernel void vadd(global const float *a, global const float *b, global float *c, int n) {"
    " int i = get_global_id(0); if (i < n) c[i] = a[i] + b[i]; }\n"
    "kernel void nbody(global const float4 *p, global float4 *o, int n, float softening) {"
    " local float4 tile[256]; int i = get_global_id(0), t = get_local_id(0); float4 me = p[i]; float x = 0, y = 0, z = 0;"
    " for (int base = 0; base < n; base += 256) { tile[t] = p[base + t]; barrier(CLK_LOCAL_MEM_FENCE);"
    "  for (int k = 0; k < 256; ++k) { float4 q = tile[k]; float dx = q.x - me.x, dy = q.y - me.y, dz = q.z - me.z;"
    "   float v = rsqrt(dx * dx + dy * dy + dz * dz + softening); float s = q.w * v * v * v; x += dx * s; y += dy * s; z += dz * s; }"
    "  barrier(CLK_LOCAL_MEM_FENCE); } o[i] = (float4)(x, y, z, 0); }\n"
    "kernel void matmul(global const float *a, global const float *b, global float *c, int n) {"
    " local float as[32][32], bs[32][32]; int lx = get_local_id(0), ly = get_local_id(1), row = get_global_id(1), column = get_global_id(0);"
    " float sum = 0; for (int t = 0; t < n; t += 32) { as[ly][lx] = a[row * n + t + lx]; bs[ly][lx] = b[(t + ly) * n + column];"
    "  barrier(CLK_LOCAL_MEM_FENCE); for (int i = 0; i < 32; ++i) sum += as[ly][i] * bs[i][lx]; barrier(CLK_LOCAL_MEM_FENCE); }"
    " c[row * n + column] = sum; }\n"
    "kernel void mandelbrot(global int *out, int w, int h, int limit) { int x = get_global_id(0), y = get_global_id(1);"
    " if (x >= w || y >= h) return; float cr = -2.f + 3.f * x / w, ci = -1.5f + 3.f * y / h, zr = 0, zi = 0; int i = 0;"
    " while (i < limit && zr * zr + zi * zi < 4.f) { float t = zr * zr - zi * zi + cr; zi = 2.f * zr * zi + ci; zr = t; ++i; }"
    " out[y * w + x] = i; }\n"
    "kernel void reduction(global const float *in, global float *out, int n) { local float part[256]; int t = get_local_id(0);"
    " float sum = 0; for (int i = get_global_id(0); i < n; i += get_global_size(0)) sum += in[i]; part[t] = sum;"
    " barrier(CLK_LOCAL_MEM_FENCE); for (int d = 128; d > 0; d /= 2) { if (t < d) part[t] += part[t + d]; barrier(CLK_LOCAL_MEM_FENCE); }"
    " if (t == 0) out[get_group_id(0)] = part[0]; }\n"
    "kernel void histogram(global const uchar *in, global uint *out, int n) { local uint bins[256]; int t = get_local_id(0);"
    " bins[t] = 0; barrier(CLK_LOCAL_MEM_FENCE); for (int i = get_global_id(0); i < n; i += get_global_size(0)) atomic_inc(&bins[in[i]]);"
    " barrier(CLK_LOCAL_MEM_FENCE); atomic_add(&out[t], bins[t]); }\n"
    "kernel void stencil(global const float *in, global float *out, int n) { int x = get_global_id(0), y = get_global_id(1);"
    " if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;"
    " out[y * n + x] = .25f * (in[y * n + x - 1] + in[y * n + x + 1] + in[(y - 1) * n + x] + in[(y + 1) * n + x]); }\n";

static cl_handle context, queue, program;

static cl_handle buffer(size_t bytes, void *data)
{
    cl_int error;
    cl_handle made = clCreateBuffer(context, READ_WRITE | (data ? COPY_HOST : 0), bytes, data, &error);
    if (error) exit(3);
    return made;
}

static void write_zeros(cl_handle to, size_t bytes)
{
    void *zeros = calloc(1, bytes);
    clEnqueueWriteBuffer(queue, to, 1, 0, bytes, zeros, 0, NULL, NULL);
    free(zeros);
}

int main(void)
{
    cl_handle platforms[8], device = NULL;
    uint32_t count = 0;
    clGetPlatformIDs(8, platforms, &count);
    for (uint32_t i = 0; i < count && i < 8 && !device; ++i)
        if (clGetDeviceIDs(platforms[i], CPU, 1, &device, NULL)) device = NULL;
    if (!device) return 4;
    char label[256] = "";
    clGetDeviceInfo(device, NAME, sizeof label - 1, label, NULL);
    cl_int error;
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    queue = clCreateCommandQueue(context, device, 0, &error);
    program = clCreateProgramWithSource(context, 1, &SOURCE, NULL, &error);
    if (error || clBuildProgram(program, 1, &device, "", NULL, NULL)) return 5;
    float *a = malloc(N * 4L), *b = malloc(N * 4L), *c = calloc(N, 4);
    unsigned char *bytes = malloc(N);
    if (!a || !b || !c || !bytes) return 1;
    fill(a, b, bytes);
    cl_handle da = buffer(N * 4L, a), db = buffer(N * 4L, b), dc = buffer(N * 4L, c), dbytes = buffer(N, bytes);
    printf("%s\n", label);
    fflush(stdout);
    char name[64];
    while (scanf("%63s", name) == 1) {
        cl_handle kernel = clCreateKernel(program, name, &error);
        if (error) return 2;
        int n = N, dimensions = 1;
        size_t global[2] = {N, 1}, local[2] = {256, 1}, read = N * 4L;
        float softening = SOFTENING;
        int image = IMAGE, limit = LIMIT;
        cl_handle in = da;
        if (!strcmp(name, "nbody")) n = BODIES, global[0] = BODIES, read = 16L * BODIES;
        if (!strcmp(name, "matmul")) n = ORDER, dimensions = 2, global[0] = global[1] = ORDER, local[0] = local[1] = 32, read = 4L * ORDER * ORDER;
        if (!strcmp(name, "mandelbrot")) dimensions = 2, global[0] = global[1] = IMAGE, local[0] = 32, local[1] = 8, read = 4L * IMAGE * IMAGE;
        if (!strcmp(name, "reduction")) global[0] = 256 * 64, read = 4 * 64;
        if (!strcmp(name, "histogram")) global[0] = 256 * 64, read = 4 * 256, in = dbytes, write_zeros(dc, 1024);
        if (!strcmp(name, "stencil")) n = SIDE, dimensions = 2, global[0] = global[1] = SIDE, local[0] = 32, local[1] = 8, write_zeros(dc, N * 4L);
        if (!strcmp(name, "vadd") || !strcmp(name, "matmul")) {
            clSetKernelArg(kernel, 0, 8, &da), clSetKernelArg(kernel, 1, 8, &db), clSetKernelArg(kernel, 2, 8, &dc), clSetKernelArg(kernel, 3, 4, &n);
        } else if (!strcmp(name, "mandelbrot")) {
            clSetKernelArg(kernel, 0, 8, &dc), clSetKernelArg(kernel, 1, 4, &image), clSetKernelArg(kernel, 2, 4, &image), clSetKernelArg(kernel, 3, 4, &limit);
        } else {
            clSetKernelArg(kernel, 0, 8, &in), clSetKernelArg(kernel, 1, 8, &dc), clSetKernelArg(kernel, 2, 4, &n);
            if (!strcmp(name, "nbody")) clSetKernelArg(kernel, 3, 4, &softening);
        }
        clFinish(queue);
        double begin = now_ns();
        if (clEnqueueNDRangeKernel(queue, kernel, dimensions, NULL, global, local, 0, NULL, NULL)) return 6;
        clFinish(queue);
        double end = now_ns(), check;
        clEnqueueReadBuffer(queue, dc, 1, 0, read, c, 0, NULL, NULL);
        if (!strcmp(name, "mandelbrot") || !strcmp(name, "histogram")) check = sum_ints((unsigned *)c, read / 4);
        else if (!strcmp(name, "reduction")) check = sum_floats(c, 64, 1);
        else check = sum_floats(c, read / 4, read == N * 4L ? 997 : 1);
        printf("%.0f %.9e\n", end - begin, check);
        fflush(stdout);
    }
    return 0;
}
