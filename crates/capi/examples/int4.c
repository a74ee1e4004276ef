/* Numbers of four bits, two in a byte, and their exact product. */
#include <mica.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void check(mica_status status) {
    if (status != MICA_OK) {
        fprintf(stderr, "%s: %s\n", mica_status_name(status), mica_last_error());
        exit(1);
    }
}

/* Two numbers from -8 to 7 in a byte, the first in its lower half. */
static uint8_t pair(int first, int second) {
    return (uint8_t)((first & 15) | (second & 15) << 4);
}

int main(void) {
    mica_vgpu_options options = {0};
    options.struct_size = sizeof options;
    options.memory_bytes = 64 << 20;
    mica_vgpu *vgpu = NULL;
    check(mica_vgpu_create(&options, &vgpu));

    /* 2 x 3: 1 -2 3, -8 7 0; elements follow each other across rows. */
    const uint8_t left[3] = {pair(1, -2), pair(3, -8), pair(7, 0)};
    /* 3 x 1: 7 -8 1. The last byte has one element. */
    const uint8_t right[2] = {pair(7, -8), pair(1, 0)};
    const size_t left_shape[] = {2, 3}, right_shape[] = {3, 1};
    mica_tensor *a = NULL, *b = NULL, *c = NULL;
    check(mica_tensor_create(vgpu, MICA_I4, left_shape, 2, left, sizeof left, &a));
    check(mica_tensor_create(vgpu, MICA_I4, right_shape, 2, right, sizeof right, &b));
    check(mica_gemm(a, b, 1.0f, NULL, MICA_NONE, &c));

    int32_t result[2];
    check(mica_tensor_read(c, result, sizeof result));
    printf("%d %d\n", (int)result[0], (int)result[1]);

    /* In 32-bit floats, with what can follow a product. */
    const float added[2] = {100, -50};
    const size_t added_shape[] = {2, 1};
    mica_tensor *residual = NULL, *d = NULL;
    check(mica_tensor_create(vgpu, MICA_F32, added_shape, 2, added, sizeof added, &residual));
    mica_gemm_options then = {0};
    then.struct_size = sizeof then;
    then.alpha = 0.5f;
    then.activation = MICA_RELU;
    then.scale = 3;
    then.c = residual;
    then.beta = -0.125f;
    then.residual = residual;
    then.f32_result = 1;
    check(mica_gemm_with(a, b, &then, &d));
    float values[2];
    check(mica_tensor_read(d, values, sizeof values));
    printf("%g %g\n", values[0], values[1]);

    mica_tensor *wrong = NULL;
    mica_status refused = mica_tensor_create(vgpu, MICA_I4, left_shape, 2, left, 6, &wrong);
    printf("%s: %s\n", mica_status_name(refused), mica_last_error());

    mica_tensor *tensors[] = {a, b, c, residual, d};
    for (int i = 0; i < 5; i++)
        check(mica_tensor_free(tensors[i]));
    check(mica_vgpu_free(vgpu));
    return 0;
}
