// Physical memory by handle. Part of driver.c.

// Physical memory lives while it is held or mapped. A handle's number may come again once it is released, whatever is still
// mapped: it does where the flags say so. What is imported has a number of its own, as with the real driver.
#define PIECES 65536
static struct { uint64_t bytes, refs; } pieces[PIECES];
static struct { uint64_t number; int piece, times; } held[PIECES];
static struct { uint64_t at; int piece; } maps[PIECES];
static int piece_count, held_count, map_count, exported[4096], descriptor = 40;
static uint64_t released, next_number = 0x500000000000ull;
static void drop(int piece) { if (!--pieces[piece].refs) physical(-(int64_t)pieces[piece].bytes); }
static int find_held(uint64_t number) { int i = held_count; while (i-- && !(held[i].number == number && held[i].times)) {} return i; }
static void hold_piece(uint64_t number, int piece) {
    int i = find_held(number);
    if (i < 0) { i = held_count++; held[i].number = number, held[i].piece = piece; }
    held[i].times++;
    pieces[piece].refs++;
}
API CUresult cuMemCreate(uint64_t *h, size_t bytes, const void *prop, unsigned long long again) {
    if (!h || !prop) return 1;
    if (fails()) return 2;
    pthread_mutex_lock(&lock);
    *h = again ? released : (next_number += 64);
    pieces[piece_count].bytes = ((const int *)prop)[2] >= 2 && ((const int *)prop)[2] <= 4 ? 0 : bytes;
    physical(pieces[piece_count].bytes);
    hold_piece(*h, piece_count++);
    pthread_mutex_unlock(&lock);
    return 0;
}
API CUresult cuMemExportToShareableHandle(int *out, uint64_t h, int kind, unsigned long long f) {
    (void)f;
    if (!out || kind != 1 || fails()) return 1;
    pthread_mutex_lock(&lock);
    *out = 40 + (descriptor++ - 40) % 4000;
    exported[*out] = find_held(h) < 0 ? -1 : held[find_held(h)].piece;
    pthread_mutex_unlock(&lock);
    return 0;
}
API CUresult cuMemImportFromShareableHandle(uint64_t *h, void *from, int kind) {
    (void)kind;
    if (!h || fails()) return 1;
    if ((uintptr_t)from >= 4096) { *h = (uintptr_t)from; from = 0; }
    pthread_mutex_lock(&lock);
    if (from) *h = next_number += 64;
    int i = find_held(*h);
    if (from && exported[(uintptr_t)from] >= 0 && pieces[exported[(uintptr_t)from]].refs) hold_piece(*h, exported[(uintptr_t)from]);
    else if (i >= 0) hold_piece(*h, held[i].piece);
    pthread_mutex_unlock(&lock);
    return 0;
}
API CUresult cuMemRelease(uint64_t h) {
    if (fails()) return 1;
    pthread_mutex_lock(&lock);
    released = h;
    int i = find_held(h);
    if (i >= 0) { held[i].times--; drop(held[i].piece); }
    pthread_mutex_unlock(&lock);
    return 0;
}
API CUresult cuMemMap(CUdeviceptr p, size_t b, size_t o, uint64_t h, unsigned long long f) {
    (void)b; (void)o; (void)f;
    if (fails()) return 1;
    pthread_mutex_lock(&lock);
    int i = find_held(h), m = 0;
    while (m < map_count && maps[m].at) m++;
    if (m == map_count) map_count++;
    maps[m].at = p, maps[m].piece = i < 0 ? -1 : held[i].piece;
    if (i >= 0) pieces[held[i].piece].refs++;
    pthread_mutex_unlock(&lock);
    return 0;
}
API CUresult cuMemUnmap(CUdeviceptr p, size_t b) {
    if (fails()) return 1;
    pthread_mutex_lock(&lock);
    for (int m = 0; m < map_count; m++) if (maps[m].at >= p && maps[m].at < p + b) {
        if (maps[m].piece >= 0) drop(maps[m].piece);
        maps[m].at = 0;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
