/* Stands in for the kernel: answers the resource manager's escapes as the real one would. */
#include <stdarg.h>
#include <stdint.h>
#include <errno.h>

uint64_t fake_slice_us;
uint64_t fake_refuse_us;
int fake_calls;
/* Flags of the request that begins the use of managed memory. */
uint64_t fake_uvm_flags;
/* The number of a request that a filter refuses. */
unsigned long fake_not_permitted;

int ioctl(int fd, unsigned long request, ...)
{
    va_list list;
    va_start(list, request);
    uint32_t *block = va_arg(list, uint32_t *);
    va_end(list);
    fake_calls++;
    if (request == 0x30000001) {
        fake_uvm_flags = *(uint64_t *)block;
        return 0;
    }
    if ((request >> 8 & 0xff) != 'F') {
        errno = ENOTTY;
        return -1;
    }
    if (fake_not_permitted && (request & 0xff) == fake_not_permitted) {
        errno = EPERM;
        return -1;
    }
    if ((request & 0xff) == 0x2a && block[2] == 0xa06c0103) {
        uint64_t us = **(uint64_t **)(block + 4);
        block[7] = us == fake_refuse_us ? 0x1f : 0;
        if (!block[7])
            fake_slice_us = us;
    }
    if ((request & 0xff) == 0x2a && block[2] == 0x2080018d) {
        uint32_t *pids = *(uint32_t **)(block + 4);
        block[7] = 0;
        pids[2] = 5;
        for (uint32_t i = 0; i < 5; i++)
            pids[3 + i] = 10 + i;
    }
    return 0;
}
