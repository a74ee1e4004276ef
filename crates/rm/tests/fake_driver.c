/* Stands in for libcuda: makes its requests through its own import of ioctl. */
#include <stdint.h>
#include <sys/ioctl.h>

#define ESC(nr, type) _IOC(_IOC_READ | _IOC_WRITE, 'F', nr, sizeof(type))
typedef struct { uint32_t root, parent, object, class_; uint64_t params; uint32_t bytes, status; } nvos21;
typedef struct { uint32_t client, object, command, flags; uint64_t params; uint32_t bytes, status; } nvos54;
typedef struct { uint32_t root, parent, object, status; } nvos00;

int driver_alloc(int fd, uint32_t parent, uint32_t object, uint32_t class_)
{
    nvos21 block = { 1, parent, object, class_, 0, 0, 0 };
    return ioctl(fd, ESC(0x2b, block), &block);
}

int driver_free(int fd, uint32_t object)
{
    nvos00 block = { 1, 0, object, 0 };
    return ioctl(fd, ESC(0x29, block), &block);
}

/* Returns the status, and leaves in *us what the caller had put there if nobody touched it. */
uint32_t driver_slice(int fd, uint32_t group, uint64_t *us)
{
    nvos54 block = { 1, group, 0xa06c0103, 0, (uint64_t)(uintptr_t)us, sizeof *us, 0xffff };
    return ioctl(fd, ESC(0x2a, block), &block) < 0 ? 0xdead : block.status;
}

int driver_uvm_initialize(int fd, uint64_t flags)
{
    uint64_t block[2] = { flags, 0 };
    return ioctl(fd, 0x30000001, block);
}

int driver_bytes_ready(int fd)
{
    int ready = -1;
    return ioctl(fd, FIONREAD, &ready) < 0 ? -1 : ready;
}

/* As NVML lists the processes of a GPU: returns how many, their numbers in list. */
uint32_t driver_pids(int fd, uint32_t *list)
{
    uint32_t params[3 + 950] = { 0 };
    nvos54 block = { 1, 3, 0x2080018d, 0, (uint64_t)(uintptr_t)params, sizeof params, 0xffff };
    if (ioctl(fd, ESC(0x2a, block), &block) < 0 || block.status)
        return 0xdead;
    for (uint32_t i = 0; i < params[2]; i++)
        list[i] = params[3 + i];
    return params[2];
}
