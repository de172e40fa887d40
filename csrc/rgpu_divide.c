/* Integer division in clients' kernels, as on a GPU: where x86 raises an exception, a number comes out and the kernel goes on.
 *
 * A handler of SIGFPE writes the result that the instruction has no number for and steps over it: a division by zero has
 * the quotient with all bits set and the dividend as remainder; the least integer divided by -1 is itself, remainder 0.
 * Only instructions inside of the shared objects named to rgpu_divide_as_gpu are treated so. Others end the process. */
#define _GNU_SOURCE
#include "rgpu_core.h"

#if defined(__x86_64__) && defined(__linux__)

#include <elf.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <ucontext.h>

/* <link.h>, which cannot be included beside a link.h of ours: the fields that every C library has. */
struct dl_phdr_info {
    Elf64_Addr dlpi_addr;
    const char *dlpi_name;
    const Elf64_Phdr *dlpi_phdr;
    Elf64_Half dlpi_phnum;
};
int dl_iterate_phdr(int (*callback)(struct dl_phdr_info *, size_t, void *), void *data);

#define MOST_RANGES 4096 /* of code; what is loaded beyond them divides as before */

static struct {
    uintptr_t begin, end;
} ranges[MOST_RANGES];
static atomic_int used;
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;

/* An instruction's numbering of registers in the context's. */
static const int numbered[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                 REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static int is_kernel(uintptr_t at)
{
    for (int i = 0, n = atomic_load_explicit(&used, memory_order_acquire); i < n; i++)
        if (at >= ranges[i].begin && at < ranges[i].end)
            return 1;
    return 0;
}

static uint64_t low_bytes(uint64_t value, int size)
{
    return size == 8 ? value : value & ((UINT64_C(1) << 8 * size) - 1);
}

/* Writes a register of 2, 4 or 8 bytes: 4 clear the upper half, 2 keep the rest. */
static void put(greg_t *reg, uint64_t value, int size)
{
    uint64_t old = (uint64_t)*reg;
    *reg = (greg_t)(size == 2 ? (old & ~UINT64_C(0xffff)) | (value & 0xffff) : low_bytes(value, size));
}

/* Where the operand in memory lies whose ModRM byte is at `code`; `*length`: of ModRM, SIB and displacement. */
static uint64_t address(const uint8_t *code, int rex, const greg_t *regs, int *length)
{
    int mod = code[0] >> 6, rm = code[0] & 7, n = 1, wide = mod == 2;
    uint64_t at = 0;
    int32_t offset = 0;
    if (rm == 4) {
        int scale = code[1] >> 6, index = ((code[1] >> 3) & 7) | (rex & 2) << 2, base = code[1] & 7;
        n = 2;
        if (index != 4)
            at += (uint64_t)regs[numbered[index]] << scale;
        if (base == 5 && mod == 0)
            wide = 1;
        else
            at += (uint64_t)regs[numbered[base | (rex & 1) << 3]];
    } else if (rm == 5 && mod == 0) {
        wide = 2; /* from the end of the instruction */
    } else {
        at = (uint64_t)regs[numbered[rm | (rex & 1) << 3]];
    }
    if (wide)
        memcpy(&offset, code + n, 4);
    else if (mod == 1)
        offset = (int8_t)code[n];
    n += wide ? 4 : mod == 1;
    *length = n;
    return at + (uint64_t)(int64_t)offset + (wide == 2 ? (uint64_t)(uintptr_t)(code + n) : 0);
}

/* Carries out the division at the context's instruction; 0 if it is none that is known here. */
static int divide(greg_t *regs)
{
    const uint8_t *code = (const uint8_t *)regs[REG_RIP];
    int rex = 0, size = 4, length = 1;
    for (; *code == 0x66; code++)
        size = 2;
    if ((*code & 0xf0) == 0x40)
        rex = *code++;
    if (rex & 8)
        size = 8;
    if (*code != 0xf6 && *code != 0xf7)
        return 0;
    if (*code++ == 0xf6)
        size = 1;
    int which = (code[0] >> 3) & 7; /* 6: div, 7: idiv */
    if (which < 6)
        return 0;
    uint64_t divisor = 0;
    if (code[0] >> 6 == 3) {
        int reg = (code[0] & 7) | (rex & 1) << 3;
        int upper = size == 1 && !rex && reg >= 4; /* ah, ch, dh, bh */
        divisor = (uint64_t)regs[numbered[upper ? reg - 4 : reg]] >> (upper ? 8 : 0);
    } else {
        const void *operand = (const void *)address(code, rex, regs, &length);
        memcpy(&divisor, operand, (size_t)size);
    }
    divisor = low_bytes(divisor, size);
    uint64_t dividend = (uint64_t)regs[REG_RAX], quotient = ~UINT64_C(0), rest = dividend;
    if (divisor) { /* too large a quotient: what of it fits */
        quotient = dividend;
        rest = 0;
    }
    if (size == 1) { /* al: quotient, ah: remainder */
        regs[REG_RAX] = (greg_t)((dividend & ~UINT64_C(0xffff)) | (rest & 0xff) << 8 | (quotient & 0xff));
    } else {
        put(&regs[REG_RAX], quotient, size);
        put(&regs[REG_RDX], rest, size);
    }
    regs[REG_RIP] = (greg_t)(code + length);
    return 1;
}

static void on_fpe(int number, siginfo_t *info, void *context)
{
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    int fault = info->si_code == FPE_INTDIV || info->si_code == FPE_INTOVF;
    if (fault && is_kernel((uintptr_t)regs[REG_RIP]) && divide(regs))
        return;
    signal(number, SIG_DFL); /* the instruction comes again, and ends the process */
    if (!fault)
        raise(number);
}

/* Adds the code of the loaded object of this path. */
static int add_code(struct dl_phdr_info *object, size_t size, void *path)
{
    (void)size;
    if (!object->dlpi_name || strcmp(object->dlpi_name, path))
        return 0;
    int n = atomic_load_explicit(&used, memory_order_relaxed), found = 0;
    for (int i = 0; i < object->dlpi_phnum && n < MOST_RANGES; i++) {
        const Elf64_Phdr *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && part->p_flags & PF_X) {
            ranges[n].begin = object->dlpi_addr + part->p_vaddr;
            ranges[n++].end = object->dlpi_addr + part->p_vaddr + part->p_memsz;
            found = 1;
        }
    }
    atomic_store_explicit(&used, n, memory_order_release);
    return found;
}

int rgpu_divide_as_gpu(const char *path)
{
    pthread_mutex_lock(&adding);
    int found = dl_iterate_phdr(add_code, (void *)path);
    if (found) {
        struct sigaction action = {.sa_sigaction = on_fpe, .sa_flags = SA_SIGINFO};
        sigemptyset(&action.sa_mask);
        found = sigaction(SIGFPE, &action, NULL) == 0;
    }
    pthread_mutex_unlock(&adding);
    return found;
}

#else

int rgpu_divide_as_gpu(const char *path)
{
    (void)path;
    return 0; /* ARM's division raises nothing */
}

#endif
