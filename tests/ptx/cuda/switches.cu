// Dense switches (brx.idx), local arrays, loops with early exits.
extern "C" __global__ void dispatch(const int *ops, int *data) {
    int i = threadIdx.x, v = data[i];
    switch (ops[i]) {
    case 0: v = v * 3 + 1; break;
    case 1: v = v >> 2; break;
    case 2: v = ~v; break;
    case 3: v = __popc(v); break;
    case 4: v = v * v; break;
    case 5: v -= 17; break;
    case 6: v = v % 10; break;
    case 7: v = __clz(v); break;
    case 8: v ^= 0x5a5a; [[fallthrough]];
    case 9: v += 9; break;
    case 10: return;
    case 11: v = data[i ^ 1]; break;
    default: v = -1;
    }
    data[i] = v;
}
extern "C" __global__ void machine(const unsigned char *code, int *mem, int steps) {
    int pc = 0, acc = threadIdx.x, reg = 0;
    for (int i = 0; i < steps; ++i) {
        switch (code[pc++]) {
        case 0: acc += mem[code[pc++]]; break;
        case 1: mem[code[pc++]] = acc; break;
        case 2: acc -= mem[code[pc]]; mem[code[pc++]] = reg; break;
        case 3: pc = acc ? code[pc] : pc + 1; break;
        case 4: reg = acc; acc = mem[reg & 255]; break;
        case 5: mem[acc & 255] ^= reg; break;
        case 6: acc = atomicAdd(&mem[256], acc); break;
        case 7: __threadfence(); reg = mem[257]; break;
        case 8: mem[258] = i; acc *= 3; break;
        case 9: mem[259] += pc; break;
        case 10: acc = __popc(mem[reg & 127]); break;
        case 11: mem[threadIdx.x] = acc; return;
        case 12: acc = mem[260] / (reg | 1); break;
        default: mem[261] = pc; return;
        }
    }
    mem[threadIdx.x] = acc;
}
extern "C" __global__ void local_arrays(const int *idx, int *out, int n) {
    int stack[64];
    int top = 0;
    for (int i = 0; i < n; ++i) {
        int k = idx[i];
        if (k < 0) { if (top > 0) --top; else break; }
        else if (top < 64) stack[top++] = k;
        else continue;
    }
    int s = 0;
    while (top > 0) s = s * 31 + stack[--top];
    out[threadIdx.x] = s;
}
extern "C" __global__ void collatz(const unsigned *in, unsigned *out) {
    unsigned long long x = in[threadIdx.x];
    unsigned steps = 0;
    while (x != 1) {
        x = x & 1 ? 3 * x + 1 : x / 2;
        if (++steps > 10000) break;
    }
    out[threadIdx.x] = steps;
}
extern "C" __global__ void mandelbrot(unsigned char *out, int w, int h, float x0, float y0, float step, int limit) {
    int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
    if (px >= w || py >= h) return;
    float cx = x0 + px * step, cy = y0 + py * step, x = 0, y = 0;
    int i = 0;
    for (; i < limit && x * x + y * y < 4.f; ++i) { float t = x * x - y * y + cx; y = 2 * x * y + cy; x = t; }
    out[py * w + px] = i;
}
