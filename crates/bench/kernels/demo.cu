// What the tenants of `mica demo` run. Compiled by: nvcc -ptx -arch=compute_75 demo.cu

// One step of gravity among n bodies: position and mass in `bodies`, accelerations out. n is a multiple of 256.
extern "C" __global__ void gravity(const float4 *bodies, float4 *acceleration, int n, float softening)
{
    __shared__ float4 tile[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 me = bodies[i];
    float x = 0, y = 0, z = 0;
    for (int base = 0; base < n; base += 256) {
        tile[threadIdx.x] = bodies[base + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < 256; ++k) {
            float4 other = tile[k];
            float dx = other.x - me.x, dy = other.y - me.y, dz = other.z - me.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + softening);
            float pull = other.w * inverse * inverse * inverse;
            x += dx * pull;
            y += dy * pull;
            z += dz * pull;
        }
        __syncthreads();
    }
    acceleration[i] = make_float4(x, y, z, 0);
}

// The mistake of the demo: writes where nothing is.
extern "C" __global__ void wild(int *nowhere)
{
    nowhere[threadIdx.x] = 42;
}
