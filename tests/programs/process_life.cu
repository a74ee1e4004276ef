// nvcc: -std=c++17
#include "check.h"
#include <dlfcn.h>
#include <functional>
#include <pthread.h>
#include <signal.h>
#include <string>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
// What processes do: fork before and after the first call, exec, cleared environments, closed descriptors,
// small stacks, timers' signals, threads that end and are cancelled, late calls. Each case is a process of its own,
// with a bound on its time.
__global__ void add(int *p, int v) { atomicAdd(p, v); }
__global__ void spin(int *p) { for (int i = 0; i < 20000; i++) atomicAdd(p, 1); }
__global__ void say(int i) { printf("%d", i); }
static void work() {
    Device<int> d(1);
    CHECK(cudaMemset(d, 0, 4));
    add<<<4, 32>>>(d, 1);
    EXPECT_EQ(d.host()[0], 128);
    std::vector<char> there(1 << 20, 7), back(1 << 20);
    Device<char> large(there);
    CHECK(cudaMemcpy(back.data(), large, back.size(), cudaMemcpyDeviceToHost));
    EXPECT(there == back);
}
static void *work_in_thread(void *) { work(); return nullptr; }
static char *self;
static void again(const char *name) { execl(self, self, name, nullptr); _exit(9); }
static void child(std::function<void()> body) {
    pid_t pid = fork();
    if (!pid) { body(); _exit(mismatches); }
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
}
static volatile int signals;
static void with_timer(int flags) {
    struct sigaction action = {};
    action.sa_handler = [](int) { signals = signals + 1; };
    action.sa_flags = flags;
    sigaction(SIGALRM, &action, nullptr);
    // Long system calls of a real driver must come to an end between two signals.
    itimerval every = {{0, 2000}, {0, 2000}}, never = {};
    setitimer(ITIMER_REAL, &every, nullptr);
    for (int i = 0; i < 2 || (signals < 5 && i < 100); i++) {
        work();
        Device<int> d(1);
        spin<<<1, 1>>>(d);
        CHECK(cudaDeviceSynchronize());
        int *pinned;
        CHECK(cudaMallocHost(&pinned, 8192));
        CHECK(cudaFreeHost(pinned));
    }
    setitimer(ITIMER_REAL, &never, nullptr);
    EXPECT(signals > 0);
}
static int *late;
static struct Late { ~Late() { if (late) { cudaError_t e = cudaFree(late); if (e != cudaSuccess && e != cudaErrorCudartUnloading) _exit(7); } } } freed_after_main;
static struct { const char *name; void (*body)(); } cases[] = {
    {"plain", work},
    {"child before the first call", [] { child(work); work(); }},
    {"child after it", [] {
        work();
        child([] { int *p; EXPECT_ERROR(cudaMalloc(&p, 4), cudaErrorInitializationError); EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorInitializationError); });
        child([] { exit(0); });
        child([] { again("plain"); });
        pid_t pid = vfork();
        if (!pid) again("plain");
        int status = -1;
        EXPECT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_EQ(status, 0);
        work();
    }},
    {"exec", [] { work(); again("plain"); }},
    {"no environment", [] { clearenv(); work(); }},
    {"closed descriptors", [] { for (int fd = 3; fd < 256; fd++) close(fd); work(); }},
    {"closed standard descriptors", [] { for (int fd = 0; fd < 3; fd++) close(fd); work(); }},
    {"small stacks", [] {
        work();
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        EXPECT_EQ(pthread_attr_setstacksize(&attributes, 64 << 10), 0);
        for (int i = 0; i < 4; i++) {
            pthread_t thread;
            EXPECT_EQ(pthread_create(&thread, &attributes, work_in_thread, nullptr), 0);
            pthread_join(thread, nullptr);
        }
    }},
    {"a timer", [] { with_timer(0); }},
    {"a timer that restarts", [] { with_timer(SA_RESTART); }},
    {"a cancelled thread", [] {
        work();
        if (!freopen("/dev/null", "w", stdout)) exit(3);
        pthread_t thread;
        // Asked to end at any moment, it ends between calls only: a driver that prints may not be left in the middle.
        pthread_create(&thread, nullptr, [](void *) -> void * {
            for (int state;;) {
                pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
                say<<<1, 1>>>(1);
                cudaDeviceSynchronize();
                pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
                pthread_testcancel();
            }
        }, nullptr);
        usleep(20000);
        pthread_cancel(thread);
        void *result = nullptr;
        pthread_join(thread, &result);
        EXPECT(result == PTHREAD_CANCELED);
        work();
    }},
    {"the library opened and closed", [] {
        for (int i = 0; i < 3; i++) {
            void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
            EXPECT(library != nullptr);
            auto init = (int (*)(unsigned))dlsym(library, "cuInit");
            EXPECT_EQ(init(0), 0);
            EXPECT_EQ(dlclose(library), 0);
        }
        work();
    }},
    {"late calls", [] { CHECK(cudaMalloc(&late, 100)); atexit([] { int *p; cudaMalloc(&p, 4); }); }},
    {"work left undone", [] { Device<int> d(1); spin<<<8, 32>>>(d); quick_exit(0); }},
    {"a main thread that has ended", [] {
        pthread_t thread;
        pthread_create(&thread, nullptr, [](void *) -> void * { work(); exit(mismatches); }, nullptr);
        pthread_exit(nullptr);
    }},
    {"a reset again and again", [] { for (int i = 0; i < 5; i++) { work(); CHECK(cudaDeviceReset()); } }},
};
static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
// A case in a process of its own, with whatever that starts: ended when it takes too long, named when it is slow.
static void start(const char *name) {
    // An emulated processor on a busy machine may need longer.
    const char *patience = getenv("CHILD_PATIENCE");
    const double bound = 20 * (patience ? atof(patience) : 1), slow = 3, begun = now();
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) { setpgid(0, 0); again(name); }
    setpgid(pid, pid);
    int status = -1;
    pid_t ended;
    while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && now() - begun < bound) usleep(5000);
    const double took = now() - begun;
    if (ended == 0) {
        kill(-pid, SIGKILL);
        ended = waitpid(pid, &status, 0);
        printf("%s: not over after %.0f s\n", name, bound);
        mismatch();
    } else if (status != 0) {
        printf("%s: status %#x\n", name, status);
        mismatch();
    }
    EXPECT_EQ(ended, pid);
    if (took > slow) fprintf(stderr, "%s took %.1f s\n", name, took);
}
int main(int argc, char **argv) {
    static char path[4096];
    self = path;
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) return 1;
    if (argc > 1) {
        for (auto &c : cases) if (!strcmp(c.name, argv[1])) { c.body(); return mismatches; }
        return 2;
    }
    for (auto &c : cases) start(c.name);
    return finish();
}
