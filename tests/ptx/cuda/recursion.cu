// Recursion, function pointers, virtual calls, structures by value, deep stacks.
extern "C" __device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__device__ __noinline__ int ackermann(int m, int n) { return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1)); }
extern "C" __global__ void recurse(int *out, int n) { out[threadIdx.x] = fib(n) + ackermann(2, threadIdx.x & 3); }

__device__ __noinline__ int is_odd(int n);
__device__ __noinline__ int is_even(int n) { return n == 0 ? 1 : is_odd(n - 1); }
__device__ __noinline__ int is_odd(int n) { return n == 0 ? 0 : is_even(n - 1); }
extern "C" __global__ void parity(int *out) { out[threadIdx.x] = is_even(threadIdx.x); }

typedef float (*binary)(float, float);
__device__ float add(float a, float b) { return a + b; }
__device__ float sub(float a, float b) { return a - b; }
__device__ float mul(float a, float b) { return a * b; }
__device__ binary table[3] = {add, sub, mul};
extern "C" __global__ void pointers(const int *ops, const float *x, float *y) {
    int i = threadIdx.x;
    y[i] = table[ops[i]](x[i], y[i]);
}
extern "C" __global__ void pass_pointer(binary *out) { *out = mul; }

struct Shape { __device__ virtual float area() const = 0; __device__ virtual int sides() const { return 0; } };
struct Square : Shape { float s; __device__ Square(float s) : s(s) {} __device__ float area() const override { return s * s; } __device__ int sides() const override { return 4; } };
struct Circle : Shape { float r; __device__ Circle(float r) : r(r) {} __device__ float area() const override { return 3.14159f * r * r; } };
extern "C" __global__ void virtuals(float *out, int n) {
    Shape *s = threadIdx.x & 1 ? (Shape *)new Square(n) : (Shape *)new Circle(n);
    out[threadIdx.x] = s->area() + s->sides();
    delete s;
}

struct Big { double m[4][4]; int tag; };
struct Small { char c; short s; float f; };
__device__ __noinline__ Big twist(Big b, Small s) { for (int i = 0; i < 4; ++i) b.m[i][i] += s.f + s.c; b.tag += s.s; return b; }
extern "C" __global__ void structs(Big in, Small s, Big *out) { *out = twist(in, s); }
