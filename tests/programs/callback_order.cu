#include "check.h"
#include <atomic>
#include <mutex>
#include <thread>
// Host functions run in their stream's order, hold its later work up, and may not call CUDA.
__global__ void put(volatile int *p, int v) { *p = v; }
struct Note { int stream, number; };
static std::mutex guard;
static std::vector<Note> notes;
static void note(void *p) { std::lock_guard<std::mutex> hold(guard); notes.push_back(*(Note *)p); }
static std::atomic<bool> let_go{false};
static void hold_up(void *) { while (!let_go) std::this_thread::yield(); }
static int *mapped;
static void look(void *p) { *(int *)p = *(volatile int *)mapped; }
static std::atomic<int> inner{-1};
static void call_cuda(void *) { void *p; inner = cudaMalloc(&p, 16); }
static void CUDART_CB old_style(cudaStream_t, cudaError_t e, void *p) { *(int *)p = 100 + e; }
int main() {
    const int streams = 4, each = 50;
    cudaStream_t s[streams];
    static Note all[streams][each];
    for (int i = 0; i < streams; i++) CHECK(cudaStreamCreate(&s[i]));
    for (int k = 0; k < each; k++) for (int i = 0; i < streams; i++) { all[i][k] = {i, k}; CHECK(cudaLaunchHostFunc(s[i], note, &all[i][k])); }
    CHECK(cudaDeviceSynchronize());
    EXPECT_EQ(notes.size(), (size_t)(streams * each));
    int next[streams] = {};
    for (Note n : notes) { EXPECT_EQ(n.number, next[n.stream]); next[n.stream]++; }

    // What a kernel wrote before is seen inside; what comes after waits, and other streams do not.
    CHECK(cudaHostAlloc(&mapped, 8, cudaHostAllocMapped));
    mapped[0] = mapped[1] = 0;
    int *d, seen[3] = {};
    CHECK(cudaHostGetDevicePointer(&d, mapped, 0));
    cudaEvent_t after;
    CHECK(cudaEventCreateWithFlags(&after, cudaEventDisableTiming));
    put<<<1, 1, 0, s[0]>>>(d, 1);
    CHECK(cudaLaunchHostFunc(s[0], look, &seen[0]));
    CHECK(cudaLaunchHostFunc(s[0], hold_up, nullptr));
    put<<<1, 1, 0, s[0]>>>(d, 2);
    CHECK(cudaLaunchHostFunc(s[0], look, &seen[1]));
    CHECK(cudaEventRecord(after, s[0]));
    put<<<1, 1, 0, s[1]>>>(d + 1, 7);
    CHECK(cudaStreamSynchronize(s[1]));
    EXPECT_EQ(*(volatile int *)(mapped + 1), 7);
    EXPECT_ERROR(cudaEventQuery(after), cudaErrorNotReady);
    EXPECT_ERROR(cudaStreamQuery(s[0]), cudaErrorNotReady);
    let_go = true;
    CHECK(cudaEventSynchronize(after));
    EXPECT(seen[0] == 1 && seen[1] == 2);

    CHECK(cudaLaunchHostFunc(s[2], call_cuda, nullptr));
    CHECK(cudaStreamSynchronize(s[2]));
    EXPECT_EQ((int)inner, (int)cudaErrorNotPermitted);
    CHECK(cudaStreamAddCallback(s[3], old_style, &seen[2], 0));
    CHECK(cudaStreamSynchronize(s[3]));
    EXPECT_EQ(seen[2], 100);
    EXPECT_ERROR(cudaStreamAddCallback(s[3], old_style, &seen[2], 1), cudaErrorInvalidValue);
    cudaGetLastError();
    EXPECT_ERROR(cudaLaunchHostFunc(s[3], nullptr, nullptr), cudaErrorInvalidValue);
    cudaGetLastError();
    return finish();
}
