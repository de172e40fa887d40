"""Integer division in kernels' code goes on where x86 raises an exception; anywhere else it ends the process."""

import platform
import signal
import subprocess
import sys

import pytest

from rgpu import _native
from rgpu.server import host

pytestmark = pytest.mark.skipif(
    _native.IMPLEMENTATION is _native.PURE or platform.machine() != "x86_64" or sys.platform != "linux",
    reason="no C core, or no such exceptions",
)

# Each function divides rdx:rax by an operand of another encoding and gives quotient and remainder back.
SOURCE = r"""
#include <stdint.h>
extern "C" {
#define EXPORT __attribute__((visibility("default")))
static int64_t zeros[8], minus[2] = {-1, -1};
#define BODY(name, code, divisor)                                                                              \
    EXPORT void name(uint64_t* x) {                                                                            \
        uint64_t a = x[0], d = x[1];                                                                           \
        int64_t* p = divisor;                                                                                  \
        __asm__ volatile(code : "+a"(a), "+d"(d) : "b"(p), "c"(0L) : "r8", "r12", "r13", "r15", "cc", "memory"); \
        x[0] = a;                                                                                              \
        x[1] = d;                                                                                              \
    }
BODY(reg, "divl %%ecx", zeros)
BODY(reg8, "xorl %%r8d, %%r8d; divq %%r8", zeros)
BODY(sreg, "idivl %%ecx", zeros)
BODY(sreg15, "xorl %%r15d, %%r15d; idivq %%r15", zeros)
BODY(half, "divw %%cx", zeros)
BODY(byte, "divb %%cl", zeros)
BODY(upper, "divb %%ch", zeros)
BODY(plain, "divl (%%rbx)", zeros)
BODY(near, "divq 8(%%rbx)", zeros)
BODY(far, "lea -4096(%%rbx), %%r12; divq 4096(%%r12)", zeros)
BODY(indexed, "lea -16(%%rbx), %%r13; mov $2, %%r8; divq (%%r13,%%r8,8)", zeros)
BODY(nobase, "mov %%rbx, %%r8; shr $3, %%r8; and $7, %%ebx; divl %%ecx", zeros)
BODY(stack, "push %%rcx; divl (%%rsp); pop %%rcx", zeros)
BODY(least, "idivq (%%rbx)", minus)
BODY(least32, "idivl (%%rbx)", minus)
EXPORT void relative(uint64_t* x) {
    static volatile uint32_t here;
    uint32_t a = (uint32_t)x[0], d = 0;
    __asm__ volatile("divl %2" : "+a"(a), "+d"(d) : "m"(here) : "cc");
    x[0] = a;
    x[1] = d;
}
EXPORT int loop(int n, int by) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += (i / by) + (i % by);
    return sum;
}
}
"""

PROGRAM = f"""
import ctypes, sys
from rgpu.server.kernels_cpu import build
library = build.load({SOURCE!r})
def run(name, a, d=0):
    x = (ctypes.c_uint64 * 2)(a, d)
    getattr(library, name)(x)
    return x[0], x[1]
ones, full = 2**32 - 1, 2**64 - 1
for name in ("reg", "sreg", "plain", "stack", "relative", "nobase"):
    assert run(name, 7) == (ones, 7), (name, run(name, 7))
for name in ("reg8", "sreg15", "near", "far", "indexed"):
    assert run(name, 7 << 33) == (full, 7 << 33), (name, run(name, 7 << 33))
assert run("half", 0x120007, 0x340000) == (0x12FFFF, 0x340007)
assert run("byte", 0x120007) == run("upper", 0x120007) == (0x1207FF, 0)
assert run("least", 2**63, full) == (2**63, 0)
assert run("least32", 2**31, ones) == (2**31, 0)
assert library.loop(1000, 0) == sum(range(1000)) - 1000
print("went on", flush=True)
"""

ELSEWHERE = """
other = ctypes.CDLL(sys.argv[1])
other.divide(1, 0)
"""


def _run(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def compiler():
    found = list(host.compilers())
    return found[0] if found else pytest.skip("no C++ compiler")


def test_every_encoding_of_the_operand(compiler):
    done = _run(PROGRAM)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr[-3000:]


def test_elsewhere_the_process_ends(compiler, tmp_path):
    source = tmp_path / "other.cpp"
    source.write_text('extern "C" int divide(volatile int a, volatile int b) { return a / b; }')
    other = tmp_path / "other.so"
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", other], timeout=100, check=True)
    done = _run(PROGRAM + ELSEWHERE, str(other))
    assert (done.returncode, done.stdout) == (-signal.SIGFPE, "went on\n"), done.stderr[-3000:]


def test_a_signal_that_was_sent_ends_the_process(compiler):
    assert _run(PROGRAM + "import os, signal; os.kill(os.getpid(), signal.SIGFPE)").returncode == -signal.SIGFPE


def test_what_is_not_loaded_is_not_added():
    assert not _native.divide_as_gpu("/nowhere.so")
