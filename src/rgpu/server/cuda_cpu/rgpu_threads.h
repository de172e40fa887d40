// The threads of a block. A kernel without barriers runs them one after the other; with RGPU_FIBERS each is a
// fiber with a stack of its own, so that barriers, warp shuffles and votes wait for one another as on a GPU.
// Blocks are independent: the caller gives ranges of them to several cores, each with its own thread-locals.
#pragma once

namespace rgpu {
constexpr size_t dynamic_shared_bytes = 256 << 10;
alignas(64) static thread_local char dynamic_shared[dynamic_shared_bytes];
}  // namespace rgpu

#ifdef RGPU_FIBERS
#include <sys/mman.h>
#include <condition_variable>
#include <mutex>

#if defined(__x86_64__) && !defined(RGPU_UCONTEXT)
extern "C" void rgpu_switch(void** save, void* load) __attribute__((visibility("hidden")));
asm(R"(
.text
.p2align 4
.hidden rgpu_switch
.globl rgpu_switch
.type rgpu_switch, @function
rgpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size rgpu_switch, .-rgpu_switch
)");
namespace rgpu {
struct Context {
    void* sp;
    void start(char* stack, size_t bytes, void (*entry)()) {
        void** top = (void**)((uintptr_t)(stack + bytes) & ~(uintptr_t)15);
        top[-1] = nullptr;           // entry never returns
        top[-2] = (void*)entry;      // where the first switch returns to
        for (int i = 3; i <= 8; ++i) top[-i] = nullptr;
        sp = top - 8;
    }
    static void change(Context& from, Context& to) { rgpu_switch(&from.sp, to.sp); }
};
}  // namespace rgpu
#else
#include <ucontext.h>
namespace rgpu {
struct Context {
    ucontext_t c;
    void start(char* stack, size_t bytes, void (*entry)()) {
        getcontext(&c);
        c.uc_stack.ss_sp = stack, c.uc_stack.ss_size = bytes, c.uc_link = nullptr;
        makecontext(&c, entry, 0);
    }
    static void change(Context& from, Context& to) { swapcontext(&from.c, &to.c); }
};
}  // namespace rgpu
#endif

namespace rgpu {
constexpr size_t stack_bytes = 128 << 10;
constexpr unsigned most_threads = 1024, lanes = 32;

struct Fiber {
    Context context;
    Fiber *next, *previous;
    unsigned linear;
    uint3 index;
};
struct Warp {
    unsigned live, arrived, released;
    alignas(16) char slots[lanes][16];
};
struct Block {
    Fiber fibers[most_threads];
    Warp warps[most_threads / lanes];
    Context outside;
    Fiber* current;
    unsigned live, arrived, generation;
    int votes;          // of __syncthreads_count and its kin
    int last_votes;
    bool waiting;       // for the other blocks of a grid
    char* stacks;
    void (*body)(void*);
    void* argument;
};
static thread_local Block* block;

// The blocks of a cooperative launch: each has a thread of the system, and all of them are running.
struct Grid {
    std::mutex lock;
    std::condition_variable all_here;
    int64_t live, arrived, generation;

    void release() { arrived = 0, ++generation, all_here.notify_all(); }
    void wait() {
        std::unique_lock<std::mutex> held(lock);
        const int64_t mine = generation;
        if (++arrived >= live) return release();
        all_here.wait(held, [&] { return generation != mine; });
    }
    void leave() {
        std::lock_guard<std::mutex> held(lock);
        if (--live > 0 && arrived >= live) release();
    }
};
static Grid grid;

static inline void go(Fiber* to) {
    Fiber* from = block->current;
    block->current = to;
    threadIdx = to->index;
    Context::change(from->context, to->context);
}
static inline void yield() {
    Fiber* next = block->current->next;
    if (next != block->current) go(next);
}
static inline void release_block() {
    block->arrived = 0, ++block->generation;
    block->last_votes = block->votes, block->votes = 0;
}
static __attribute__((noinline)) void sync_block(int vote = 0) {
    const unsigned mine = block->generation;
    block->votes += vote;
    if (++block->arrived >= block->live) return release_block();
    do yield();
    while (block->generation == mine);
}
static __attribute__((noinline)) void sync_grid() {
    sync_block();
    if (!block->waiting) block->waiting = true, grid.wait();  // one thread waits for the whole block
    sync_block();
    block->waiting = false;
}
// Waits for the living lanes of the mask; several disjoint masks may wait at once.
static __attribute__((noinline)) void sync_warp(unsigned mask) {
    const unsigned linear = block->current->linear, bit = 1u << linear % lanes;
    Warp& warp = block->warps[linear / lanes];
    mask |= bit;
    warp.arrived |= bit;
    while (!(warp.released & bit)) {
        const unsigned all = mask & warp.live;
        if ((warp.arrived & all) == all) warp.arrived &= ~all, warp.released |= all;
        else yield();
    }
    warp.released &= ~bit;
}
static inline unsigned lane() { return block->current->linear % lanes; }
static inline Warp& warp() { return block->warps[block->current->linear / lanes]; }

template <class T>
inline T exchange(unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) <= 16, "shuffles move up to 16 bytes");
    Warp& w = warp();
    memcpy(w.slots[lane()], &value, sizeof(T));
    sync_warp(mask);
    T result = value;
    if (source < lanes && (w.live >> source & 1)) memcpy(&result, w.slots[source], sizeof(T));
    sync_warp(mask);
    return result;
}
inline unsigned ballot(unsigned mask, bool predicate) {
    Warp& w = warp();
    w.slots[lane()][0] = predicate;
    sync_warp(mask);
    unsigned result = 0;
    for (unsigned i = 0; i < lanes; ++i)
        if ((mask & w.live) >> i & 1) result |= (unsigned)w.slots[i][0] << i;
    sync_warp(mask);
    return result;
}
template <class T, class Combine>
inline T reduce(unsigned mask, T value, Combine combine) {
    Warp& w = warp();
    memcpy(w.slots[lane()], &value, sizeof(T));
    sync_warp(mask);
    bool first = true;
    T result = value;
    for (unsigned i = 0; i < lanes; ++i) {
        if (!((mask & w.live) >> i & 1)) continue;
        T other;
        memcpy(&other, w.slots[i], sizeof(T));
        result = first ? other : combine(result, other), first = false;
    }
    sync_warp(mask);
    return result;
}

static void fiber_main() {
    block->body(block->argument);
    Fiber* self = block->current;
    Warp& w = block->warps[self->linear / lanes];
    w.live &= ~(1u << self->linear % lanes);
    --block->live;
    if (block->live && block->arrived >= block->live) release_block();
    Fiber* next = self->next;
    if (next == self) {
        Context::change(self->context, block->outside);
    } else {
        self->previous->next = next, next->previous = self->previous;
        go(next);
    }
    __builtin_unreachable();
}

struct Owner {  // of what a thread of the system needs to run blocks
    ~Owner() {
        if (block) munmap(block->stacks, stack_bytes * most_threads), free(block);
        block = nullptr;
    }
};

static void prepare_block() {
    if (block) return;
    static thread_local Owner owner;
    (void)&owner;
    void* stacks = mmap(nullptr, stack_bytes * most_threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) abort();
    block = (Block*)calloc(1, sizeof(Block));
    block->stacks = (char*)stacks;
}

static void run_block(unsigned x, unsigned y, unsigned z, void (*body)(void*), void* argument) {
    const unsigned count = x * y * z;
    Block& b = *block;
    b.body = body, b.argument = argument;
    b.live = count, b.arrived = 0, b.votes = 0, b.waiting = false;
    for (unsigned i = 0; i < count; ++i) {
        Fiber& f = b.fibers[i];
        f.linear = i, f.index = {i % x, i / x % y, i / x / y};
        f.next = &b.fibers[i + 1 == count ? 0 : i + 1], f.previous = &b.fibers[i ? i - 1 : count - 1];
        f.context.start(b.stacks + i * stack_bytes, stack_bytes, fiber_main);
    }
    for (unsigned i = 0; i * lanes < count; ++i) {
        const unsigned left = count - i * lanes;
        b.warps[i].live = left >= lanes ? ~0u : (1u << left) - 1;
        b.warps[i].arrived = b.warps[i].released = 0;
    }
    b.current = &b.fibers[0];
    threadIdx = b.current->index;
    Context::change(b.outside, b.current->context);
}
}  // namespace rgpu

static inline void __syncthreads() { rgpu::sync_block(); }
static inline int __syncthreads_count(int p) { return rgpu::sync_block(!!p), rgpu::block->last_votes; }
static inline int __syncthreads_or(int p) { return __syncthreads_count(p) != 0; }
static inline int __syncthreads_and(int p) { return __syncthreads_count(!p) == 0; }
static inline void __syncwarp(unsigned mask = ~0u) { rgpu::sync_warp(mask); }
static inline unsigned __activemask() { return rgpu::warp().live; }
static inline unsigned __ballot_sync(unsigned mask, int p) { return rgpu::ballot(mask, p); }
static inline int __any_sync(unsigned mask, int p) { return rgpu::ballot(mask, p) != 0; }
static inline int __all_sync(unsigned mask, int p) { return rgpu::ballot(mask, !p) == 0; }
template <class T> static inline T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
    return rgpu::exchange(mask, v, (rgpu::lane() & ~(width - 1)) + (source & (width - 1)));
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    const unsigned lane = rgpu::lane();
    return rgpu::exchange(mask, v, (lane & (width - 1)) >= delta ? lane - delta : lane);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    const unsigned lane = rgpu::lane();
    return rgpu::exchange(mask, v, (lane & (width - 1)) + delta < (unsigned)width ? lane + delta : lane);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int other, int width = 32) {
    const unsigned lane = rgpu::lane(), source = lane ^ other;
    return rgpu::exchange(mask, v, source / width == lane / width ? source : lane);
}
template <class T> static inline unsigned __match_any_sync(unsigned mask, T v) {
    unsigned result = 0;
    for (unsigned i = 0; i < 32; ++i)  // every lane takes part in every round
        result |= (unsigned)(rgpu::exchange(mask, v, i) == v && (mask & rgpu::warp().live) >> i & 1) << i;
    return result;
}
template <class T> static inline T __reduce_add_sync(unsigned m, T v) { return rgpu::reduce(m, v, [](T a, T b) { return (T)(a + b); }); }
template <class T> static inline T __reduce_min_sync(unsigned m, T v) { return rgpu::reduce(m, v, [](T a, T b) { return b < a ? b : a; }); }
template <class T> static inline T __reduce_max_sync(unsigned m, T v) { return rgpu::reduce(m, v, [](T a, T b) { return a < b ? b : a; }); }
template <class T> static inline T __reduce_and_sync(unsigned m, T v) { return rgpu::reduce(m, v, [](T a, T b) { return (T)(a & b); }); }
template <class T> static inline T __reduce_or_sync(unsigned m, T v) { return rgpu::reduce(m, v, [](T a, T b) { return (T)(a | b); }); }
template <class T> static inline T __reduce_xor_sync(unsigned m, T v) { return rgpu::reduce(m, v, [](T a, T b) { return (T)(a ^ b); }); }
// the forms without a mask, gone since CUDA 9 but still in old sources
template <class T> static inline T __shfl(T v, int source, int width = 32) { return __shfl_sync(~0u, v, source, width); }
template <class T> static inline T __shfl_up(T v, unsigned delta, int width = 32) { return __shfl_up_sync(~0u, v, delta, width); }
template <class T> static inline T __shfl_down(T v, unsigned delta, int width = 32) { return __shfl_down_sync(~0u, v, delta, width); }
template <class T> static inline T __shfl_xor(T v, int other, int width = 32) { return __shfl_xor_sync(~0u, v, other, width); }
static inline unsigned __ballot(int p) { return __ballot_sync(~0u, p); }
static inline int __any(int p) { return __any_sync(~0u, p); }
static inline int __all(int p) { return __all_sync(~0u, p); }

namespace cooperative_groups {
struct thread_block {
    void sync() const { __syncthreads(); }
    unsigned thread_rank() const { return rgpu::block->current->linear; }
    unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
    unsigned num_threads() const { return size(); }
    dim3 thread_index() const { return threadIdx; }
    dim3 group_index() const { return blockIdx; }
    dim3 group_dim() const { return blockDim; }
    dim3 dim_threads() const { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

struct grid_group {
    void sync() const { rgpu::sync_grid(); }
    bool is_valid() const { return rgpu::grid.live > 0; }
    unsigned long long block_rank() const { return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
    unsigned long long num_blocks() const { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
    unsigned long long thread_rank() const { return block_rank() * this_thread_block().size() + rgpu::block->current->linear; }
    unsigned long long size() const { return num_blocks() * this_thread_block().size(); }
    unsigned long long num_threads() const { return size(); }
    dim3 block_index() const { return blockIdx; }
    dim3 dim_blocks() const { return gridDim; }
    dim3 group_dim() const { return gridDim; }
};
inline grid_group this_grid() { return {}; }
template <class Group> inline void sync(const Group& g) { g.sync(); }

// Copies that a GPU does aside: here they are done when they are asked for, and waiting is a barrier.
template <class Group, class T, class Size>
inline void memcpy_async(const Group& g, T* to, const T* from, Size bytes) {
    for (size_t k = g.thread_rank(), n = (size_t)bytes; k < n; k += g.size()) ((char*)to)[k] = ((const char*)from)[k];
}
template <class Group> inline void wait(const Group& g) { g.sync(); }
template <unsigned stages, class Group> inline void wait_prior(const Group& g) { g.sync(); }
template <unsigned width>
struct thread_block_tile {
    unsigned mask() const { return (width == 32 ? ~0u : (1u << width % 32) - 1) << (rgpu::lane() & ~(width - 1)); }
    void sync() const { __syncwarp(mask()); }
    unsigned thread_rank() const { return rgpu::lane() % width; }
    static constexpr unsigned size() { return width; }
    static constexpr unsigned num_threads() { return width; }
    unsigned meta_group_rank() const { return rgpu::block->current->linear / width; }
    template <class T> T shfl(T v, int source) const { return __shfl_sync(mask(), v, source, width); }
    template <class T> T shfl_down(T v, unsigned delta) const { return __shfl_down_sync(mask(), v, delta, width); }
    template <class T> T shfl_up(T v, unsigned delta) const { return __shfl_up_sync(mask(), v, delta, width); }
    template <class T> T shfl_xor(T v, int other) const { return __shfl_xor_sync(mask(), v, other, width); }
    int any(int p) const { return __any_sync(mask(), p); }
    int all(int p) const { return __all_sync(mask(), p); }
    unsigned ballot(int p) const { return __ballot_sync(mask(), p) >> (rgpu::lane() & ~(width - 1)); }
};
template <unsigned width> inline thread_block_tile<width> tiled_partition(const thread_block&) { return {}; }
}  // namespace cooperative_groups

namespace cuda {
template <size_t n> struct aligned_size_t {
    size_t value;
    constexpr explicit aligned_size_t(size_t value) : value(value) {}
    constexpr operator size_t() const { return value; }
};
}  // namespace cuda

// how many blocks of a cooperative launch are about to run
extern "C" __attribute__((visibility("default"))) void rgpu_together(int64_t blocks) {
    rgpu::grid.live = blocks, rgpu::grid.arrived = 0;
}
#endif  // RGPU_FIBERS

namespace rgpu {
// What the server calls: one for each __global__ function. It reads every argument's bytes as CUDA does.
struct Entry {
    int64_t count;
    const int64_t* sizes;
    void (*run)(const int64_t* geometry, char* const* arguments, int64_t first, int64_t last);
};

template <auto function> struct Kernel;
template <class... P, void (*function)(P...)>
struct Kernel<function> {
    static constexpr int64_t sizes[sizeof...(P) + 1] = {(int64_t)sizeof(P)..., 0};

    template <size_t... I>
    static inline __attribute__((always_inline)) void call(char* const* a, std::index_sequence<I...>) {
        function(*reinterpret_cast<std::remove_cv_t<P>*>(a[I])...);
    }
    template <size_t... I>
    static void one_by_one(char* const* a, unsigned nx, unsigned ny, unsigned nz, std::index_sequence<I...>) {
        const std::tuple<std::remove_cv_t<P>...> values{*reinterpret_cast<std::remove_cv_t<P>*>(a[I])...};
        for (unsigned z = 0; z < nz; ++z)
            for (unsigned y = 0; y < ny; ++y)
                for (unsigned x = 0; x < nx; ++x) {
                    threadIdx.x = x, threadIdx.y = y, threadIdx.z = z;
                    function(std::get<I>(values)...);
                }
    }
    static void one(void* a) { call((char* const*)a, std::index_sequence_for<P...>()); }

    static void run(const int64_t* geometry, char* const* a, int64_t first, int64_t last) {
        // Member by member: as long as no address of these is taken, no pointer of a kernel can mean them.
        gridDim.x = geometry[0], gridDim.y = geometry[1], gridDim.z = geometry[2];
        blockDim.x = geometry[3], blockDim.y = geometry[4], blockDim.z = geometry[5];
        const unsigned nx = blockDim.x, ny = blockDim.y, nz = blockDim.z;
#ifdef RGPU_FIBERS
        prepare_block();
#endif
        for (int64_t i = first; i < last; ++i) {
            blockIdx.x = i % geometry[0], blockIdx.y = i / geometry[0] % geometry[1], blockIdx.z = i / geometry[0] / geometry[1];
#ifdef RGPU_FIBERS
            run_block(nx, ny, nz, one, (void*)a);
            grid.leave();
#else
            one_by_one(a, nx, ny, nz, std::index_sequence_for<P...>());
#endif
        }
    }
    static constexpr Entry entry = {sizeof...(P), sizes, run};
};

struct Symbol {
    const void* address;
    int64_t bytes;
};
}  // namespace rgpu
