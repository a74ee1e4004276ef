/* A virtual GPU with a memory limit, a product with bias and ReLU, and the refusal of what does not fit. */
#include <mica.h>
#include <stdio.h>
#include <stdlib.h>

static void check(mica_status status) {
    if (status != MICA_OK) {
        fprintf(stderr, "%s: %s\n", mica_status_name(status), mica_last_error());
        exit(1);
    }
}

int main(void) {
    mica_vgpu_options options = {0};
    options.struct_size = sizeof options;
    options.memory_bytes = 64 << 20;
    mica_vgpu *vgpu = NULL;
    check(mica_vgpu_create(&options, &vgpu));

    const float left[2 * 3] = {1, 2, 3, 4, 5, 6};
    const float right[3 * 2] = {1, 0, 0, 1, -1, -2};
    const float offset[2] = {10, 0.5f};
    const size_t left_shape[] = {2, 3}, right_shape[] = {3, 2}, offset_shape[] = {2};
    mica_tensor *a = NULL, *b = NULL, *bias = NULL, *c = NULL;
    check(mica_tensor_create(vgpu, MICA_F32, left_shape, 2, left, sizeof left, &a));
    check(mica_tensor_create(vgpu, MICA_F32, right_shape, 2, right, sizeof right, &b));
    check(mica_tensor_create(vgpu, MICA_F32, offset_shape, 1, offset, sizeof offset, &bias));
    check(mica_gemm(a, b, 1.0f, bias, MICA_RELU, &c));

    float result[2 * 2];
    check(mica_tensor_read(c, result, sizeof result));
    for (int row = 0; row < 2; row++)
        printf("%g %g\n", result[2 * row], result[2 * row + 1]);

    mica_buffer *large = NULL;
    mica_status refused = mica_buffer_alloc(vgpu, 128 << 20, &large);
    printf("128 MiB in a virtual GPU of 64 MiB: %s\n", mica_status_name(refused));

    mica_tensor *tensors[] = {a, b, bias, c};
    for (int i = 0; i < 4; i++)
        check(mica_tensor_free(tensors[i]));
    check(mica_vgpu_free(vgpu));
    return 0;
}
