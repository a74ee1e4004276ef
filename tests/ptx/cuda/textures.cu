// Texture objects of every geometry.
extern "C" __global__ void tex_read(cudaTextureObject_t t1, cudaTextureObject_t t2, cudaTextureObject_t t3, cudaTextureObject_t l1,
                                    cudaTextureObject_t l2, cudaTextureObject_t cube, cudaTextureObject_t mip, float4 *out) {
    int i = threadIdx.x;
    float x = i * 0.25f, y = i * 0.5f;
    out[0] = tex1Dfetch<float4>(t1, i);
    out[1] = tex1D<float4>(t1, x);
    out[2] = tex2D<float4>(t2, x, y);
    out[3] = tex3D<float4>(t3, x, y, 0.5f);
    out[4] = tex1DLayered<float4>(l1, x, 2);
    out[5] = tex2DLayered<float4>(l2, x, y, 3);
    out[6] = texCubemap<float4>(cube, x, y, 1.f);
    out[7] = tex2DLod<float4>(mip, x, y, 1.5f);
    out[8] = tex2DGrad<float4>(mip, x, y, make_float2(0.1f, 0.2f), make_float2(0.3f, 0.4f));
    out[9] = tex2Dgather<float4>(t2, x, y, 2);
    uchar4 c = tex2D<uchar4>(t2, x, y);
    int2 d = tex1Dfetch<int2>(t1, i);
    out[10] = make_float4(c.x, c.y, d.x, d.y);
    out[11] = texCubemapLayered<float4>(cube, x, y, 1.f, 2);
    out[12] = tex3DLod<float4>(mip, x, y, 0.1f, 2.f);
    out[13].x = tex2D<float>(t2, x, y);
}
extern "C" __global__ void tex_query(cudaTextureObject_t t, int *out) {
    int w, h;
    asm("txq.width.b32 %0, [%1];" : "=r"(w) : "l"(t));
    asm("txq.height.b32 %0, [%1];" : "=r"(h) : "l"(t));
    out[0] = w; out[1] = h;
}
