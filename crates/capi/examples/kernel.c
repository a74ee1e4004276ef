/* A kernel of one's own: PTX text, a launch with parameters in a stream, and what a wrong launch is answered. */
#include <mica.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const PTX =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry scale(.param .u64 data, .param .f32 factor, .param .u32 count)\n{\n"
    ".reg .b64 %d<3>; .reg .b32 %r<6>; .reg .f32 %f<3>; .reg .pred %p;\n"
    "ld.param.u64 %d1, [data];\nld.param.f32 %f1, [factor];\nld.param.u32 %r1, [count];\n"
    "mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmov.u32 %r4, %tid.x;\n"
    "mad.lo.u32 %r5, %r2, %r3, %r4;\nsetp.ge.u32 %p, %r5, %r1;\n@%p ret;\n"
    "mul.wide.u32 %d2, %r5, 4;\nadd.u64 %d1, %d1, %d2;\n"
    "ld.global.f32 %f2, [%d1];\nmul.f32 %f2, %f2, %f1;\nst.global.f32 [%d1], %f2;\nret;\n}\n";

static void check(mica_status status) {
    if (status != MICA_OK) {
        fprintf(stderr, "%s: %s\n", mica_status_name(status), mica_last_error());
        exit(1);
    }
}

int main(void) {
    mica_vgpu *vgpu = NULL;
    mica_stream *stream = NULL;
    mica_module *module = NULL;
    mica_kernel *kernel = NULL;
    mica_buffer *buffer = NULL;
    check(mica_vgpu_create(NULL, &vgpu));
    check(mica_stream_create(vgpu, &stream));
    check(mica_module_load(vgpu, PTX, &module));
    check(mica_module_kernel(module, "scale", &kernel));

    float values[1000];
    uint32_t count = 1000;
    for (uint32_t i = 0; i < count; i++)
        values[i] = (float)i;
    check(mica_buffer_alloc(vgpu, sizeof values, &buffer));
    check(mica_buffer_write(buffer, 0, values, sizeof values, stream));

    uint64_t address = 0;
    float factor = 0.5f;
    check(mica_buffer_address(buffer, &address));
    mica_grid grid = {{4, 1, 1}, {256, 1, 1}, 0, 0};
    mica_param params[] = {{&address, sizeof address}, {&factor, sizeof factor}, {&count, sizeof count}};
    check(mica_launch(kernel, &grid, params, 3, stream));
    check(mica_buffer_read(buffer, 0, values, sizeof values, stream));
    printf("%g %g %g\n", values[1], values[500], values[999]);

    mica_status wrong = mica_launch(kernel, &grid, params, 2, stream);
    printf("two parameters: %s\n", mica_status_name(wrong));

    check(mica_buffer_free(buffer));
    mica_status again = mica_buffer_free(buffer);
    printf("freed twice: %s: %s\n", mica_status_name(again), mica_last_error());
    check(mica_kernel_free(kernel));
    check(mica_module_free(module));
    check(mica_stream_free(stream));
    check(mica_vgpu_free(vgpu));
    return 0;
}
