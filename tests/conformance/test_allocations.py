"""Who looks at allocations, and who makes them: memory hooks, allocators in Python, CUDA's pools by handle."""

import ctypes
import gc
import io
import json
import threading
import weakref

import numpy as np
import pytest


class Listener:
    """Writes down what a hook is told."""

    @staticmethod
    def of(cp):
        class Hook(cp.cuda.MemoryHook):
            name = "Listener"

            def __init__(self):
                self.told = []

            malloc_preprocess = lambda self, **said: self.told.append(("taking", said))  # noqa: E731
            malloc_postprocess = lambda self, **said: self.told.append(("taken", said))  # noqa: E731
            alloc_postprocess = lambda self, **said: self.told.append(("grown", said))  # noqa: E731
            free_postprocess = lambda self, **said: self.told.append(("freed", said))  # noqa: E731

            def sizes(self, kind):
                return [said["mem_size"] for what, said in self.told if what == kind]

        return Hook()


def test_a_hook_hears_of_each_array_also_of_calls_that_were_made_before(cp):
    a = cp.arange(1000.0)
    for _ in range(4):  # the C core has learned them by now
        (a + a).sum()
    hook = Listener.of(cp)
    with hook:
        for _ in range(3):
            b = a * 2 + 1
            del b
        view = a[10:]
    assert hook.sizes("taking") == hook.sizes("taken") == [8192] * 6
    assert hook.sizes("freed") == [8192] * 6
    pointers = [said["mem_ptr"] for what, said in hook.told if what == "taken"]
    assert sorted(pointers) == sorted(said["mem_ptr"] for what, said in hook.told if what == "freed")
    (view + a[10:]).get()
    assert len(hook.told) == 18 + len(hook.sizes("grown"))  # nothing after its end
    with hook, pytest.raises(KeyError, match="Listener"):
        hook.__enter__()


def test_a_hook_is_its_threads_own_and_names_the_device(two):
    cp, hook, kept = two, Listener.of(two), []
    with hook:
        thread = threading.Thread(target=lambda: kept.append(cp.zeros(100)))
        thread.start()
        thread.join()
        with cp.cuda.Device(1):
            kept.append(cp.zeros(100))
    assert [said["device_id"] for what, said in hook.told if what == "taking"] == [1]


def test_a_pool_grows_for_what_it_has_not_had(cp):
    pool, hook = cp.cuda.MemoryPool(), Listener.of(cp)
    kept = pool.malloc(4096)
    del kept
    with hook:
        first = pool.malloc(4000)
        second = pool.malloc(8000)
    grown = sum(hook.sizes("grown"))
    assert hook.sizes("taken") == [4096, 8192] and grown == pool.total_bytes() - 4096 > 0
    assert pool.used_bytes() == 4096 + 8192
    del first, second
    assert pool.free_bytes() == pool.total_bytes() >= 4096 + 8192 and pool.n_free_blocks() > 0
    pool.free_all_blocks()
    assert (pool.total_bytes(), pool.n_free_blocks()) == (0, 0)


def test_debug_print_writes_json(cp):
    text = io.StringIO()
    with cp.cuda.memory_hooks.DebugPrintHook(file=text):
        a = cp.zeros(3)
        address = a.data.ptr
        del a
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    assert [line["mem_ptr"] for line in lines if line["hook"] in ("malloc", "free")] == [address] * 2
    assert next(line for line in lines if line["hook"] == "malloc")["size"] == 24


def test_line_profile_adds_up_by_the_programs_lines(cp):
    hook, text = cp.cuda.memory_hooks.LineProfileHook(), io.StringIO()
    with hook:
        for _ in range(3):
            cp.ones(128)
    hook.print_report(file=text)
    report = text.getvalue()
    assert report.startswith("_root (3.00KB, ") and "rgpu/functions" not in report
    last = report.splitlines()[-1]
    assert "test_allocations.py" in last and "(3.00KB, " in last and "by_the_programs_lines" in last


class Shelf:
    """A Python allocator that lends parts of one piece of memory again and again, as some do."""

    def __init__(self, cp, size=1 << 20):
        self.cp, self.base, self.size = cp, cp.cuda.runtime.malloc(size), size
        self.free, self.lent = list(range(self.base, self.base + size, 1 << 16)), []

    def take(self, size, device):
        assert size <= 1 << 16 and device == self.cp.cuda.runtime.getDevice()
        self.lent.append(self.free.pop(0))
        return self.lent[-1]

    def give(self, pointer, device):
        self.lent.remove(pointer)
        self.free.insert(0, pointer)


@pytest.fixture(params=["python", "c"])
def shelf(cp, request):
    shelf = Shelf(cp)
    if request.param == "python":
        allocator = cp.cuda.PythonFunctionAllocator(shelf.take, shelf.give)
    else:
        word = ctypes.c_void_p
        take = ctypes.CFUNCTYPE(word, word, ctypes.c_size_t, ctypes.c_int)(lambda _, size, n: shelf.take(size, n))
        give = ctypes.CFUNCTYPE(None, word, word, ctypes.c_int)(lambda _, ptr, n: shelf.give(ptr, n))
        addresses = [ctypes.cast(function, word).value for function in (take, give)]
        allocator = cp.cuda.CFunctionAllocator(0, *addresses, (take, give))
    cp.cuda.set_allocator(allocator.malloc)
    yield shelf
    cp.cuda.set_allocator(cp.get_default_memory_pool().malloc)


def test_results_lie_where_a_python_allocator_says(cp, shelf):
    host = np.arange(5000.0).reshape(50, 100)
    a = cp.asarray(host)
    for _ in range(3):
        b = (a.T + 1)[5:]
        a = cp.sqrt(b[:, :50]).T
        inside = [x.data.ptr - shelf.base for x in (a, b)]
        assert all(0 <= at < shelf.size for at in inside) and len(shelf.lent) >= 2
        host = np.sqrt((host.T + 1)[5:][:, :50]).T
        np.testing.assert_allclose(a.get(), host)
        if host.shape[1] < 100:
            break
    view = b[2:]
    before = view.get()
    del a, b
    gc.collect()
    other = cp.full(1000, -1.0)
    np.testing.assert_array_equal(view.get(), before)  # the memory under a view is not lent again
    del view, other
    gc.collect()
    assert shelf.lent == []


def test_any_function_may_allocate(cp):
    sizes, pool = [], cp.cuda.MemoryPool()

    def allocate(size):
        sizes.append(size)
        return pool.malloc(size)

    with cp.cuda.using_allocator(allocate):
        a = cp.zeros(100)
        b = a + 1
    c = a + 1
    assert sizes == [800, 800] and float((b == c).sum()) == 100
    assert pool.used_bytes() == 2048


def test_pools_by_handle(cp):
    runtime = cp.cuda.runtime
    pool = runtime.memPoolCreate(runtime.MemPoolProps(1, 0, 1, 0))
    stream = cp.cuda.Stream()
    pointer = runtime.mallocFromPoolAsync(1000, pool, stream.ptr)
    used, reserved = runtime.cudaMemPoolAttrUsedMemCurrent, runtime.cudaMemPoolAttrReservedMemCurrent
    assert runtime.memPoolGetAttribute(pool, used) == 1024
    runtime.freeAsync(pointer, 0)
    assert runtime.memPoolGetAttribute(pool, used) == 0 and runtime.memPoolGetAttribute(pool, reserved) >= 1024
    runtime.memPoolTrimTo(pool, 0)
    assert runtime.memPoolGetAttribute(pool, reserved) == 0
    runtime.memPoolDestroy(pool)
    with pytest.raises(runtime.CUDARuntimeError):
        runtime.memPoolDestroy(pool)
    with pytest.raises(runtime.CUDARuntimeError):
        runtime.memPoolCreate(runtime.MemPoolProps(1, 0, 1, 99))


class Described:
    """An object of another library that shows memory of a device."""

    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def test_an_array_over_described_memory_keeps_its_owner_and_says_whose_it_is(cp):
    owner = Described(cp.arange(24.0).reshape(2, 3, 4).T)
    seen = weakref.ref(owner)
    over = cp.asarray(owner)
    address, memory = owner.array.data.ptr, over.data.mem
    assert isinstance(memory, cp.cuda.UnownedMemory) and (memory.size, memory.ptr) == (192, address)
    part = over[1:]
    assert part.data.ptr == address + 8 and part.data.mem.size == 192
    assert cp.shares_memory(owner.array, part)
    owner.array += 1
    del owner, over, memory
    gc.collect()
    assert seen() is not None and float(part[0, 0, 0]) == 2
    del part
    gc.collect()
    assert seen() is None


def test_a_sum_that_drops_imaginary_parts_warns(cp):
    a = cp.ones(8, np.complex64)
    for _ in range(3):
        with pytest.warns(np.exceptions.ComplexWarning):
            assert a.sum(dtype=np.float32) == 8
        with pytest.warns(np.exceptions.ComplexWarning):
            cp.cumsum(a, dtype=np.float64)
