// Convolutions on Hopper, as products whose first factor is never stored: its rows are the windows of the images, and for each
// element of a window the copy unit fetches 64 channels of as many pixels as a block has rows. Images are [image][y][x][channel]
// and come through a map of windows; weights are [output][element of the window][channel], through a map with the axes
// (channel, element, output). What lies outside of an image, and channels beyond the last one, are zeros.
#include "gemm_wgmma.cuh"

// `last`: the last element of a window where the weights begin with that one, as gradients of images need them; else 0.
struct Windows {
    int32_t channel_steps, kernel_width, out_height, out_width;
    int32_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
    int32_t last, reserved;
};

template <int BN> struct Convolution {
    const TensorMap &images, &weights;
    const Windows &w;

    template <class Place> __device__ __forceinline__ void first(uint32_t to, const Place &p, int k, uint32_t full) const
    {
        int element = k / 64 / w.channel_steps, channel = (k / 64 - element * w.channel_steps) * 64;
        int line = p.m0 / w.out_width, image = line / w.out_height;
        int x = (p.m0 - line * w.out_width) * w.stride_x - w.pad_x, y = (line - image * w.out_height) * w.stride_y - w.pad_y;
        if (w.last) element = w.last - element;
        int ky = element / w.kernel_width, kx = element - ky * w.kernel_width;
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::
                         "r"(to), "l"(&images), "r"(channel), "r"(x), "r"(y), "r"(image), "r"(full),
                     "h"((uint16_t)(kx * w.dilation_x)), "h"((uint16_t)(ky * w.dilation_y)) : "memory");
    }
    template <class Place> __device__ __forceinline__ void second(uint32_t to, const Place &p, int k, uint32_t full) const
    {
        int element = k / 64 / w.channel_steps, channel = (k / 64 - element * w.channel_steps) * 64, half = cluster_rank() * (BN / 2);
        copy_box_to_both(to + half * 128, weights, channel, element, p.n0 + half, full);
    }
};

#define KERNEL(columns, stages)                                                                                                     \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)                                                  \
        conv_wgmma_##columns(const __grid_constant__ TensorMap images, const __grid_constant__ TensorMap weights, Windows w,        \
                             Factors f, Epilogue e)                                                                                 \
    {                                                                                                                               \
        Convolution<columns> convolution{images, weights, w};                                                                       \
        Tile<2, columns, stages, false, false>::run(convolution, f, e, 1);                                                          \
    }
KERNEL(256, 4)
KERNEL(128, 5)
