// Convolutions as products: windows of images become rows of a matrix, and back. Rows are [group][image, y, x], columns
// [channel of the group, ky, kx]. Images have any strides; the matrix is dense.
#include "ops.cuh"

struct Conv {
    const void *from;
    void *to;
    int64_t image, channel, row, col; // strides of the images
    int32_t images, channels, height, width, groups, out_height, out_width, kernel_height, kernel_width;
    int32_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x, reserved;
};

extern "C" __global__ void windows_of_images(Conv c)
{
    int per_group = c.channels / c.groups, size = c.kernel_height * c.kernel_width, cols = per_group * size;
    int64_t rows = (int64_t)c.images * c.out_height * c.out_width, count = rows * cols * c.groups;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (int64_t)gridDim.x * blockDim.x) {
        int col = (int)(at % cols), group = (int)(at / cols / rows);
        int64_t row = at / cols % rows;
        int x = (int)(row % c.out_width), y = (int)(row / c.out_width % c.out_height), image = (int)(row / c.out_width / c.out_height);
        int channel = group * per_group + col / size, ky = col % size / c.kernel_width, kx = col % c.kernel_width;
        int in_y = y * c.stride_y - c.pad_y + ky * c.dilation_y, in_x = x * c.stride_x - c.pad_x + kx * c.dilation_x;
        bool inside = in_y >= 0 && in_y < c.height && in_x >= 0 && in_x < c.width;
        ((T *)c.to)[at] = inside ? ((const T *)c.from)[image * c.image + channel * c.channel + in_y * c.row + in_x * c.col] : from_float<T>(0.f);
    }
}
// Each element of an image is the sum of the windows that hold it. The windows are 32-bit floats: rounded to 16 bits, one
// that is much larger than the sum would leave its own error in it.
extern "C" __global__ void images_of_windows(Conv c)
{
    int per_group = c.channels / c.groups, size = c.kernel_height * c.kernel_width, cols = per_group * size;
    int64_t rows = (int64_t)c.images * c.out_height * c.out_width, count = (int64_t)c.images * c.channels * c.height * c.width;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (int64_t)gridDim.x * blockDim.x) {
        int in_x = (int)(at % c.width), in_y = (int)(at / c.width % c.height), channel = (int)(at / c.width / c.height % c.channels);
        int image = (int)(at / c.width / c.height / c.channels), group = channel / per_group;
        float sum = 0;
        for (int ky = 0; ky < c.kernel_height; ++ky) {
            int y = in_y + c.pad_y - ky * c.dilation_y;
            if (y < 0 || y % c.stride_y || y / c.stride_y >= c.out_height) continue;
            for (int kx = 0; kx < c.kernel_width; ++kx) {
                int x = in_x + c.pad_x - kx * c.dilation_x;
                if (x < 0 || x % c.stride_x || x / c.stride_x >= c.out_width) continue;
                int64_t row = ((int64_t)image * c.out_height + y / c.stride_y) * c.out_width + x / c.stride_x;
                sum += ((const float *)c.from)[(group * rows + row) * cols + (channel % per_group) * size + ky * c.kernel_width + kx];
            }
        }
        ((T *)c.to)[image * c.image + channel * c.channel + in_y * c.row + in_x * c.col] = from_float<T>(sum);
    }
}
