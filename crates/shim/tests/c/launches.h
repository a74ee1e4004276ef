// Launches with arguments that can all be told apart, called with every register that a callee must keep holding a
// known value, and compared with what the stand-in driver was given.
//   call_checked(function, eleven arguments): its result, or -99 if a register came back changed.
__asm__(
    ".intel_syntax noprefix\n"
    ".pushsection .text\n"
    ".type call_checked, @function\n"
    "call_checked:\n"
    ".cfi_startproc\n"
    "push rbx\n push rbp\n push r12\n push r13\n push r14\n push r15\n"
    "sub rsp, 56\n"
    ".cfi_def_cfa_offset 112\n .cfi_offset rbx, -16\n .cfi_offset rbp, -24\n .cfi_offset r12, -32\n"
    ".cfi_offset r13, -40\n .cfi_offset r14, -48\n .cfi_offset r15, -56\n"
    "mov rax, rdi\n mov r10, rsi\n"
    "mov r11, [r10 + 48]\n mov [rsp], r11\n"
    "mov r11, [r10 + 56]\n mov [rsp + 8], r11\n"
    "mov r11, [r10 + 64]\n mov [rsp + 16], r11\n"
    "mov r11, [r10 + 72]\n mov [rsp + 24], r11\n"
    "mov r11, [r10 + 80]\n mov [rsp + 32], r11\n"
    "mov rdi, [r10]\n mov rsi, [r10 + 8]\n mov rdx, [r10 + 16]\n"
    "mov rcx, [r10 + 24]\n mov r8, [r10 + 32]\n mov r9, [r10 + 40]\n"
    "mov rbx, 0x11\n mov rbp, 0x22\n mov r12, 0x33\n mov r13, 0x44\n mov r14, 0x55\n mov r15, 0x66\n"
    "call rax\n"
    "cmp rbx, 0x11\n jne 1f\n cmp rbp, 0x22\n jne 1f\n cmp r12, 0x33\n jne 1f\n"
    "cmp r13, 0x44\n jne 1f\n cmp r14, 0x55\n jne 1f\n cmp r15, 0x66\n je 2f\n"
    "1: mov eax, -99\n"
    "2: add rsp, 56\n"
    "pop r15\n pop r14\n pop r13\n pop r12\n pop rbp\n pop rbx\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size call_checked, .-call_checked\n"
    ".popsection\n"
    ".att_syntax\n");
extern int call_checked(void *function, const uint64_t *arguments);

struct config { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned count; };
static const char *const LAUNCHES[] = { "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz" };

// Launches by the function of this number on a stream; 0 if all of it arrived as it was given.
static int launch_checked(int which, uint64_t stream) {
    static uint64_t calls;
    uint64_t n = ++calls, a[11] = { 0 };
    struct config config = { { 1, 2, 3 }, { 4, 5, 6 }, 5, (void *)stream, (void *)5, 0 };
    if (which < 2) {
        // Beside the stream is what could be taken for another one.
        const uint64_t all[] = { 0xF00000000000 + n, 0xA0000001 + n, 2, 3, 4, 5, 0xB0000006, 5, stream, 0xD00000000000 + n, 0xE00000000000 + n };
        memcpy(a, all, sizeof all);
    } else {
        a[0] = (uint64_t)&config, a[1] = 0xF00000000000 + n, a[2] = 0xD00000000000 + n, a[3] = 0xE00000000000 + n;
    }
    uint64_t *seen = dlsym(standin, "standin_seen");
    memset(seen, 0, 13 * sizeof *seen);
    int result = call_checked(sym(LAUNCHES[which]), a);
    if (result != 40 + which) return result ? result : -1;
    if (memcmp(seen, a, (which < 2 ? 11 : 4) * sizeof *a)) return -2;
    if (which >= 2 && seen[11] != stream) return -3;
    return seen[12] ? -4 : 0; // the stack must be aligned where the driver begins
}

// Without a configuration the driver is to say what it thinks of that.
static int launch_without_config(int which) {
    const uint64_t a[11] = { 0, 0xF00D };
    return call_checked(sym(LAUNCHES[which]), a) == 1 ? 0 : -5;
}
