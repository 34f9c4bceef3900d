// An emulation of the CUDA driver, cuBLAS and cuRAND on one CPU thread, sufficient for `gnnflow check-device`.
//
// The kernels of gnnflow are compiled for the CPU from their source (device.h). The threads of a block run one after another, or
// as fibers if the kernel has shuffles or barriers. The kernels of candle that the check needs are reimplemented below. Every
// allocation is filled with NaN and is followed by an unreadable page, which detects out-of-bounds and uninitialized accesses.
//
// The emulator checks the results of kernels and their calls. It does not check the speed or the memory model of a GPU.
//
// Environment: EMULATED_GPUS (1), EMULATED_CAPABILITY (80 for 8.0), EMULATED_DRIVER (13000 for CUDA 13.0), EMULATED_MEMORY_MIB (1024), and EMULATED_BROKEN_GPU, the number of a
// GPU that cannot be opened.

#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

Dim3 threadIdx, blockIdx, blockDim, gridDim;

// ---- The threads of a block ----

namespace {

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Dim3 thread;
    bool done;
};

const size_t STACK = 64 << 10;
std::vector<Fiber> fibers;
ucontext_t scheduler;
size_t current;
std::vector<uint64_t> offers;
const std::vector<uint64_t> *integers;
const std::vector<double> *doubles;
void *entry;

// Integers and doubles are passed in different registers, so their relative order does not matter.
void call_kernel() {
    typedef void (*Kernel)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                           uint64_t, double, double);
    const std::vector<uint64_t> &i = *integers;
    const std::vector<double> &d = *doubles;
    ((Kernel)entry)(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11], d[0], d[1]);
}

void fiber_main() {
    call_kernel();
    fibers[current].done = true;
}

// Runs the other threads of the block until they reach the same point.
void wait_for_block() {
    swapcontext(&fibers[current].context, &scheduler);
}

void run_block(bool with_fibers) {
    size_t threads = (size_t)blockDim.x * blockDim.y;
    if (!with_fibers) {
        for (threadIdx.y = 0; threadIdx.y < blockDim.y; threadIdx.y++)
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) call_kernel();
        return;
    }
    if (fibers.size() < threads) fibers.resize(threads);
    offers.assign(threads, 0);
    for (size_t t = 0; t < threads; t++) {
        Fiber &fiber = fibers[t];
        if (!fiber.stack) fiber.stack.reset(new char[STACK]);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = &scheduler;
        fiber.thread = {(unsigned)(t % blockDim.x), (unsigned)(t / blockDim.x), 0};
        fiber.done = false;
        makecontext(&fiber.context, fiber_main, 0);
    }
    for (bool any = true; any;) {
        any = false;
        for (current = 0; current < threads; current++) {
            if (fibers[current].done) continue;
            any = true;
            threadIdx = fibers[current].thread;
            swapcontext(&scheduler, &fibers[current].context);
        }
    }
}

} // namespace

unsigned lane_of_warp() { return current % 32; }

uint64_t exchange(uint64_t offered, unsigned from_lane) {
    offers[current] = offered;
    wait_for_block();
    uint64_t received = offers[current / 32 * 32 + from_lane];
    wait_for_block();
    return received;
}

void __syncthreads() { wait_for_block(); }
void __syncwarp() { wait_for_block(); }

// ---- Candle's kernels ----

namespace {

struct Call {
    std::vector<uint64_t> i;
    std::vector<double> d;
};

// The offset of element `index` of a tensor with these dimensions and strides.
size_t place(size_t index, size_t rank, const size_t *dims, const size_t *strides) {
    if (!dims) return index;
    size_t at = 0;
    for (size_t k = rank; k-- > 0; index /= dims[k]) at += index % dims[k] * strides[k];
    return at;
}

template <typename T> void binary(const Call &c, T (*f)(T, T)) {
    const size_t *dims = (const size_t *)c.i[2];
    for (size_t k = 0; k < c.i[0]; k++) {
        T left = ((T *)c.i[3])[place(k, c.i[1], dims, dims + c.i[1])];
        T right = ((T *)c.i[4])[place(k, c.i[1], dims, dims + 2 * c.i[1])];
        ((T *)c.i[5])[k] = f(left, right);
    }
}

template <typename From, typename To> void copy(const Call &c) {
    const size_t *dims = (const size_t *)c.i[2];
    for (size_t k = 0; k < c.i[0]; k++)
        ((To *)c.i[4])[k] = (To)((From *)c.i[3])[place(k, c.i[1], dims, dims + c.i[1])];
}

// Sums of c.i[1] consecutive elements each.
template <typename T> void sum(const Call &c, size_t sums) {
    const size_t *dims = (const size_t *)c.i[3];
    for (size_t s = 0; s < sums; s++) {
        T total = 0;
        for (size_t k = s * c.i[1]; k < (s + 1) * c.i[1]; k++) total += ((T *)c.i[4])[place(k, c.i[2], dims, dims + c.i[2])];
        ((T *)c.i[5])[s] = total;
    }
}

template <typename T> void constant(const Call &c, T value, uint64_t out) {
    for (size_t k = 0; k < c.i[0]; k++) ((T *)out)[k] = value;
}

// Copies rows of c.i[3] values between different pitches.
template <typename T> void copy_rows(const Call &c) {
    for (size_t row = 0; row < c.i[2]; row++)
        memcpy((T *)c.i[1] + row * c.i[5], (T *)c.i[0] + row * c.i[4], c.i[3] * sizeof(T));
}

template <typename T> void affine(const Call &c, T factor, T summand) {
    const size_t *dims = (const size_t *)c.i[2];
    for (size_t k = 0; k < c.i[0]; k++) {
        T x = ((T *)c.i[3])[place(k, c.i[1], dims, dims + c.i[1])];
        ((T *)c.i[4])[k] = x * factor + summand;
    }
}

// Selects rows: c.i[8] indices of type u32, rows of c.i[9] values.
template <typename T> void select_rows(const Call &c) {
    const uint32_t *rows = (const uint32_t *)c.i[3];
    for (size_t k = 0; k < c.i[8]; k++)
        memcpy((T *)c.i[5] + k * c.i[9], (T *)c.i[4] + rows[k] * c.i[9], c.i[9] * sizeof(T));
}

// Whether two values are equal, as a byte.
template <typename T> void compare(const Call &c) {
    const size_t *dims = (const size_t *)c.i[2];
    for (size_t k = 0; k < c.i[0]; k++) {
        T left = ((T *)c.i[3])[place(k, c.i[1], dims, dims + c.i[1])];
        T right = ((T *)c.i[4])[place(k, c.i[1], dims, dims + 2 * c.i[1])];
        ((uint8_t *)c.i[5])[k] = left == right;
    }
}

template <typename T> void unary(const Call &c, T (*f)(T)) {
    const size_t *dims = (const size_t *)c.i[2];
    for (size_t k = 0; k < c.i[0]; k++) ((T *)c.i[4])[k] = f(((T *)c.i[3])[place(k, c.i[1], dims, dims + c.i[1])]);
}

template <typename T> T subtract(T a, T b) { return a - b; }
template <typename T> T divide(T a, T b) { return a / b; }
template <typename T> T larger(T a, T b) { return a < b ? b : a; }
template <typename T> T add(T a, T b) { return a + b; }
template <typename T> T multiply(T a, T b) { return a * b; }

bool run_candle(const std::string &name, const Call &c) {
    if (name == "bmul_f32") binary<float>(c, multiply);
    else if (name == "bmul_f64") binary<double>(c, multiply);
    else if (name == "badd_f32") binary<float>(c, add);
    else if (name == "badd_f64") binary<double>(c, add);
    else if (name == "bsub_f32") binary<float>(c, subtract);
    else if (name == "bdiv_f32") binary<float>(c, divide);
    else if (name == "bmaximum_f32") binary<float>(c, larger);
    else if (name == "eq_f32") compare<float>(c);
    else if (name == "cast_u8_f32") copy<uint8_t, float>(c);
    else if (name == "usqrt_f32") unary<float>(c, sqrtf);
    else if (name == "usqr_f32") unary<float>(c, [](float x) { return x * x; });
    else if (name == "urecip_f32") unary<float>(c, [](float x) { return 1 / x; });
    else if (name == "uneg_f32") unary<float>(c, [](float x) { return -x; });
    else if (name == "affine_f32") affine<float>(c, bits_as<float>((uint32_t)c.i[5]), bits_as<float>((uint32_t)c.i[6]));
    else if (name == "affine_f64") affine<double>(c, c.d[0], c.d[1]);
    else if (name == "is_u32_f32") select_rows<float>(c);
    else if (name == "ucopy_f32") copy<float, float>(c);
    else if (name == "ucopy_f64") copy<double, double>(c);
    else if (name == "copy2d_f32") copy_rows<float>(c);
    else if (name == "copy2d_f64") copy_rows<double>(c);
    else if (name == "cast_f32_f64") copy<float, double>(c);
    else if (name == "cast_f64_f32") copy<double, float>(c);
    else if (name == "fast_sum_f32") sum<float>(c, c.i[0] / c.i[1]);
    else if (name == "fast_sum_f64") sum<double>(c, c.i[0] / c.i[1]);
    else if (name == "fast_sum_small_f32") sum<float>(c, c.i[0]);
    else if (name == "fast_sum_small_f64") sum<double>(c, c.i[0]);
    else if (name == "const_set_f32") constant<float>(c, bits_as<float>((uint32_t)c.i[3]), c.i[4]);
    else if (name == "const_set_f64") constant<double>(c, c.d[0], c.i[3]);
    else return false;
    return true;
}

// ---- Modules ----

struct Function {
    std::string name;
    // The PTX type of each argument: 'i' 64-bit integers and addresses, 'u' 32-bit integers, 'f' and 'd' floats.
    std::string types;
    bool with_fibers;
    void *address;
};

typedef std::map<std::string, Function> Module;

Module *parse(const char *ptx) {
    Module *module = new Module;
    std::string text(ptx);
    for (size_t at = text.find(".entry "); at != std::string::npos;) {
        size_t begin = at + 7, next = text.find(".entry ", begin), open = text.find('(', begin), close = text.find(')', begin);
        Function function;
        function.name = text.substr(begin, open - begin);
        while (!function.name.empty() && isspace(function.name.back())) function.name.pop_back();
        for (size_t p = text.find(".param .", open); p < close; p = text.find(".param .", p + 1)) {
            std::string type = text.substr(p + 8, 3);
            function.types += type == "u64" || type == "b64" || type == "s64" ? 'i' : type == "f64" ? 'd' : type == "f32" ? 'f' : 'u';
        }
        std::string body = text.substr(close, next == std::string::npos ? next : next - close);
        function.with_fibers = body.find("shfl.") != std::string::npos || body.find("bar.sync") != std::string::npos || body.find("bar.warp.sync") != std::string::npos;
        function.address = dlsym(RTLD_DEFAULT, function.name.c_str());
        (*module)[function.name] = function;
        at = next;
    }
    return module;
}

// ---- Memory ----

const size_t PAGE = 4096;
std::map<uintptr_t, std::pair<char *, size_t>> regions;
// Bytes in use, and the most so far.
size_t in_use = 0, most_in_use = 0;
std::recursive_mutex emulator_mutex;
const int OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, UNSUPPORTED_PTX = 222, NOT_FOUND = 500, LAUNCH_FAILED = 719;

} // namespace

// Reads a number from the environment.
static int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

#define API extern "C" __attribute__((visibility("default")))
#define LOCK std::lock_guard<std::recursive_mutex> lock(emulator_mutex)
// ---- Streams ----
// All work is done at once but copies from page-locked memory on other streams than the first one. These are done as late as possible: when
// the host or the first stream waits for them. Work that does not wait for its copies then reads what is not a number.

static void *const FIRST_STREAM = (void *)1;

// A copy, or an event after copies.
struct Late {
    uintptr_t to;
    const void *from;
    size_t bytes;
    uintptr_t event;
};
static std::map<void *, std::deque<Late>> late;
static std::map<void *, void *> recorded_on;

// The page-locked memory: addresses of first bytes.
struct Locked {
    std::map<const char *, size_t> all;
    size_t &operator[](const void *address) { return all[(const char *)address]; }
    void erase(const void *address) { all.erase((const char *)address); }
    bool count(const void *address) const {
        auto after = all.upper_bound((const char *)address);
        if (after == all.begin()) return false;
        --after;
        return (const char *)address < after->first + after->second;
    }
};
static Locked locked;

// Does the work of a stream up to the last record of an event (0: all). An event that has happened has no record.
static void work_until(void *stream, uintptr_t event) {
    LOCK;
    auto &work = late[stream];
    size_t last = work.size();
    if (event) {
        while (last > 0 && work[last - 1].event != event) last--;
    }
    for (; last > 0; last--) {
        Late item = work.front();
        work.pop_front();
        if (item.bytes) memcpy((void *)item.to, item.from, item.bytes);
    }
}

// Returns the bytes of the memory.
static size_t memory() { return (size_t)setting("EMULATED_MEMORY_MIB", 1024) << 20; }


API int cuMemAllocAsync(uintptr_t *out, size_t bytes, void *) {
    LOCK;
    // The behavior of a driver is undocumented here, so gnnflow must not allocate 0 bytes.
    if (bytes == 0) { fprintf(stderr, "the emulator does not allocate 0 bytes\n"); return INVALID; }
    size_t used = (bytes + 15) / 16 * 16, whole = (used + PAGE - 1) / PAGE * PAGE;
    if (in_use + used > memory()) return OUT_OF_MEMORY;
    char *base = (char *)mmap(nullptr, whole + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return OUT_OF_MEMORY;
    in_use += used;
    if (in_use > most_in_use) most_in_use = in_use;
    mprotect(base + whole, PAGE, PROT_NONE);
    memset(base, 0xff, whole);
    *out = (uintptr_t)(base + whole - used);
    regions[*out] = {base, whole + PAGE};
    return OK;
}
API int cuMemFreeAsync(uintptr_t address, void *stream) {
    LOCK;
    // In the order of the stream.
    if (stream != FIRST_STREAM) work_until(stream, 0);
    auto region = regions.find(address);
    if (region == regions.end()) return INVALID;
    size_t bytes = region->second.first + region->second.second - PAGE - (char *)address;
    for (auto &[stream, work] : late)
        for (auto &item : work)
            if (item.bytes && item.to >= address && item.to < address + bytes) return fprintf(stderr, "the emulator has a copy to memory that is freed\n"), INVALID;
    in_use -= bytes;
    munmap(region->second.first, region->second.second);
    regions.erase(region);
    return OK;
}
API int cuMemsetD8Async(uintptr_t to, unsigned char value, size_t bytes, void *) { return memset((void *)to, value, bytes), OK; }
API int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *stream) {
    LOCK;
    // Memory that is not page-locked is read at once.
    if (stream == FIRST_STREAM || !locked.count(from)) return memcpy((void *)to, from, bytes), OK;
    return late[stream].push_back({to, from, bytes, 0}), OK;
}
API int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *) { return memcpy(to, (void *)from, bytes), OK; }
API int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *) { return memmove((void *)to, (void *)from, bytes), OK; }

// ---- The driver ----

API int cuInit(unsigned) { return OK; }
API int cuDriverGetVersion(int *version) { return *version = 13000, OK; }
API int cuDeviceGet(int *device, int number) { return *device = number, OK; }
API int cuDeviceGetCount(int *count) { return *count = setting("EMULATED_GPUS", 1), OK; }
API int cuDeviceGetName(char *name, int length, int) { return snprintf(name, length, "an emulator, not a GPU"), OK; }
API int cuMemGetInfo_v2(size_t *free, size_t *all) {
    LOCK;
    return *all = memory(), *free = *all - in_use, OK;
}
API int cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = 0, OK; }
// The compute capability (attributes 75 and 76), and memory pools (attribute 115).
API int cuDeviceGetAttribute(int *value, int attribute, int) {
    int capability = setting("EMULATED_CAPABILITY", 80);
    return *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : attribute == 115, OK;
}
API int cuDeviceGetDefaultMemPool(void **pool, int) { return *pool = nullptr, OK; }
API int cuMemPoolSetAttribute(void *, int attribute, void *) {
    LOCK;
    if (attribute == 8) most_in_use = in_use;
    return OK;
}
// The most bytes in use (attribute 8).
API int cuMemPoolGetAttribute(void *, int attribute, void *value) {
    LOCK;
    if (attribute != 8) return INVALID;
    return *(unsigned long long *)value = most_in_use, OK;
}
API int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (device == setting("EMULATED_BROKEN_GPU", -1)) return INVALID;
    return *context = (void *)1, OK;
}
API int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
API int cuCtxGetCurrent(void **context) { return *context = (void *)1, OK; }
API int cuCtxSetCurrent(void *) { return OK; }
API int cuCtxSynchronize() {
    LOCK;
    for (auto &[stream, work] : late) work_until(stream, 0);
    return OK;
}
API int cuStreamCreate(void **stream, unsigned) {
    LOCK;
    static uintptr_t streams = 0;
    return *stream = (void *)++streams, OK;
}
API int cuStreamDestroy_v2(void *stream) { return work_until(stream, 0), OK; }
API int cuStreamSynchronize(void *stream) { return work_until(stream, 0), OK; }
API int cuEventCreate(void **event, unsigned) {
    LOCK;
    static uintptr_t events = 0;
    return *event = (void *)++events, OK;
}
API int cuEventRecord(void *event, void *stream) {
    LOCK;
    if (stream != FIRST_STREAM) late[stream].push_back({0, nullptr, 0, (uintptr_t)event}), recorded_on[event] = stream;
    return OK;
}
API int cuEventSynchronize(void *event) {
    LOCK;
    auto stream = recorded_on.find(event);
    if (stream != recorded_on.end()) work_until(stream->second, (uintptr_t)event);
    return OK;
}
API int cuStreamWaitEvent(void *stream, void *event, unsigned) {
    // Other streams have copies only, which read memory of the host.
    return stream == FIRST_STREAM ? cuEventSynchronize(event) : OK;
}
API int cuEventDestroy_v2(void *event) {
    LOCK;
    return recorded_on.erase(event), OK;
}
API int cuMemHostAlloc(void **out, size_t bytes, unsigned) {
    LOCK;
    return *out = malloc(bytes), locked[*out] = bytes, OK;
}
API int cuMemFreeHost(void *address) {
    LOCK;
    return locked.erase(address), free(address), OK;
}
API int cuEventElapsedTime_v2(float *milliseconds, void *, void *) { return *milliseconds = 1, OK; }
API int cuGetErrorName(int code, const char **text) {
    return *text = code == UNSUPPORTED_PTX ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" : "an error of the emulator", OK;
}
API int cuGetErrorString(int, const char **text) { return *text = "an error of the emulator", OK; }

API int cuModuleLoadData(void **module, const void *ptx) {
    LOCK;
    // A driver for a CUDA version before 13.0, which the first line of gnnflow's PTX names, cannot load it.
    if (setting("EMULATED_DRIVER", 13000) < 13000) return UNSUPPORTED_PTX;
    return *module = parse((const char *)ptx), OK;
}
API int cuModuleUnload(void *module) { return delete (Module *)module, OK; }
API int cuModuleGetFunction(void **function, void *module, const char *name) {
    LOCK;
    auto found = ((Module *)module)->find(name);
    if (found == ((Module *)module)->end()) return NOT_FOUND;
    return *function = &found->second, OK;
}

API int cuLaunchKernel(void *which, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned, void *,
                       void **arguments, void **) {
    LOCK;
    const Function &function = *(Function *)which;
    if (!gx || !gy || gz != 1 || !bx || !by || bz != 1 || bx * by > 1024) { fprintf(stderr, "the emulator cannot launch %s on %ux%ux%u blocks of %ux%ux%u\n", function.name.c_str(), gx, gy, gz, bx, by, bz); return INVALID; }
    Call call;
    for (size_t k = 0; k < function.types.size(); k++) {
        char type = function.types[k];
        if (type == 'd') call.d.push_back(*(double *)arguments[k]);
        else call.i.push_back(type == 'i' ? *(uint64_t *)arguments[k] : *(uint32_t *)arguments[k]);
    }
    if (!function.address) {
        if (run_candle(function.name, call)) return OK;
        fprintf(stderr, "the emulator has no kernel %s (%s)\n", function.name.c_str(), function.types.c_str());
        return LAUNCH_FAILED;
    }
    call.i.resize(12);
    call.d.resize(2);
    integers = &call.i;
    doubles = &call.d;
    entry = function.address;
    gridDim = {gx, gy, 1};
    blockDim = {bx, by, 1};
    for (blockIdx.y = 0; blockIdx.y < gy; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < gx; blockIdx.x++) run_block(function.with_fibers);
    return OK;
}

// ---- cuBLAS and cuRAND ----

template <typename T>
static int gemm(int ta, int tb, int m, int n, int k, T alpha, const T *a, int lda, const T *b, int ldb, T beta, T *c, int ldc) {
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            double sum = 0;
            for (int i = 0; i < k; i++)
                sum += (double)a[ta ? (size_t)row * lda + i : (size_t)i * lda + row] *
                       (double)b[tb ? (size_t)i * ldb + column : (size_t)column * ldb + i];
            T &out = c[(size_t)column * ldc + row];
            out = alpha * (T)sum + (beta == 0 ? 0 : beta * out);
        }
    return OK;
}
API int cublasCreate_v2(void **handle) { return *handle = (void *)1, OK; }
API int cublasDestroy_v2(void *) { return OK; }
API int cublasSetStream_v2(void *, void *) { return OK; }
API int cublasSgemm_v2(void *, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda, const float *b, int ldb,
                       const float *beta, float *c, int ldc) {
    LOCK;
    return gemm(ta, tb, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);
}
API int cublasDgemm_v2(void *, int ta, int tb, int m, int n, int k, const double *alpha, const double *a, int lda, const double *b,
                       int ldb, const double *beta, double *c, int ldc) {
    LOCK;
    return gemm(ta, tb, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);
}
API int curandCreateGenerator(void **generator, int) { return *generator = (void *)1, OK; }
API int curandSetPseudoRandomGeneratorSeed(void *, unsigned long long) { return OK; }
API int curandSetStream(void *, void *) { return OK; }
API int curandDestroyGenerator(void *) { return OK; }
