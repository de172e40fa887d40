"""What programs do with cupy.cuda: devices, streams, events, memory, the runtime functions.

Written from CuPy's documentation and examples; true on any backend.
"""

import ctypes
import gc
import pickle
import threading
import warnings
import weakref

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(25)


# ---- devices --------------------------------------------------------------------------------------


def test_a_device_has_properties_and_attributes(cp):
    device = cp.cuda.Device(0)
    properties = cp.cuda.runtime.getDeviceProperties(0)
    assert isinstance(properties["name"], bytes) and properties["multiProcessorCount"] > 0
    assert device.compute_capability == f"{properties['major']}{properties['minor']}"
    assert device.attributes["MaxThreadsPerBlock"] == properties["maxThreadsPerBlock"] >= 256
    assert device.attributes["WarpSize"] in (32, 64)
    assert (
        cp.cuda.runtime.deviceGetAttribute(cp.cuda.runtime.cudaDevAttrWarpSize, 0) == properties["warpSize"]
    )
    free, total = device.mem_info
    assert 0 < free <= total == properties["totalGlobalMem"]
    assert cp.cuda.runtime.runtimeGetVersion() >= 11000 and cp.cuda.runtime.is_hip is False
    assert cp.is_available() and cp.cuda.is_available()


def test_what_is_an_integer_in_c_is_one_here(cp):
    runtime, device = cp.cuda.runtime, cp.cuda.Device(0)
    assert runtime.getDeviceProperties(device) == runtime.getDeviceProperties(0)
    assert runtime.deviceGetPCIBusId(np.uint8(0)) == runtime.deviceGetPCIBusId(device)
    runtime.setDevice(device)
    with pytest.raises(TypeError):
        runtime.setDevice("0")
    a = cp.ones(4, np.uint8)
    runtime.memset(a.data, np.int16(7), np.int64(2))
    assert a.tolist() == [7, 7, 1, 1]


def test_the_compilers_version_is_cudas(cp):
    major, minor = cp.cuda.nvrtc.getVersion()
    assert major * 1000 + minor * 10 == cp.cuda.runtime.runtimeGetVersion()


def test_with_and_use_switch_the_current_device(two):
    cp = two
    first, second = cp.cuda.Device(0), cp.cuda.Device(1)
    second.use()
    with first:
        a = cp.arange(3)
        second.use()
        assert cp.cuda.Device() == second
    assert cp.cuda.Device() == second and a.device == first
    first.use()
    assert first < second and first != second and len({first, cp.cuda.Device(0)}) == 1 and first != 0


@pytest.mark.parametrize("number", [99, -1])
def test_a_wrong_device_number_is_cudas_error_when_used(cp, number):
    device = cp.cuda.Device(number)
    for use in (
        device.use,
        device.synchronize,
        device.__enter__,
        lambda: device.mem_info,
        lambda: device.attributes,
    ):
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError) as caught:
            use()
        assert caught.value.status == 101
        assert str(caught.value) == "cudaErrorInvalidDevice: invalid device ordinal"
    assert cp.cuda.Device().id == 0


def test_every_device_has_its_own_bus_id(cp):
    count = cp.cuda.runtime.getDeviceCount()
    names = [cp.cuda.Device(i).pci_bus_id for i in range(count)]
    assert len(set(names)) == count
    assert [cp.cuda.Device.from_pci_bus_id(name).id for name in names] == list(range(count))
    for wrong, status in (("fake:id", 1), ("FFFF:FF:FF.F", 101)):
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError) as caught:
            cp.cuda.Device.from_pci_bus_id(wrong)
        assert caught.value.status == status


def test_peer_access_is_bookkeeping(two):
    runtime = two.cuda.runtime
    assert runtime.deviceCanAccessPeer(0, 1) == 1 and runtime.deviceCanAccessPeer(0, 0) == 0
    runtime.deviceEnablePeerAccess(1)
    with pytest.raises(runtime.CUDARuntimeError, match="PeerAccessAlreadyEnabled"):
        runtime.deviceEnablePeerAccess(1)
    runtime.deviceDisablePeerAccess(1)
    with pytest.raises(runtime.CUDARuntimeError, match="PeerAccessNotEnabled"):
        runtime.deviceDisablePeerAccess(1)


# ---- memory ---------------------------------------------------------------------------------------


def test_pointers_of_arrays_and_their_views(cp):
    a = cp.arange(12, dtype=np.float32).reshape(3, 4)
    b = cp.arange(12, dtype=np.float32)
    assert a[1, 2:].data.ptr - a.data.ptr == 24
    assert a.T.data.ptr == a.data.ptr != b.data.ptr
    assert a[::-1].data.ptr == a.data.ptr + 32
    assert a.data.mem.ptr == a[2].data.mem.ptr and a.data.mem.size == 512 and a.data.device_id == 0
    assert cp.cuda.device.from_pointer(a.data.ptr).id == 0
    assert cp.empty(0).data.ptr == 0


def test_asking_for_a_pointer_waits_for_nothing(cp):
    a = cp.arange(10)
    a.get()
    before = cp.stats()["round_trips"]
    pointers = {(a + i).data.ptr for i in range(50)}
    assert len(pointers) == 50  # never the same address twice
    assert cp.stats()["round_trips"] == before


def test_arrays_over_allocated_memory(cp):
    memory = cp.cuda.alloc(64)
    a = cp.ndarray((4, 2), np.float64, memptr=memory)
    a[...] = cp.arange(8).reshape(4, 2)
    shared = cp.ndarray((2,), np.float64, memptr=memory + 16)
    assert shared.get().tolist() == [2, 3] and shared.data.ptr == memory.ptr + 16
    fortran = cp.ndarray((4, 2), np.float64, memptr=memory, order="F")
    assert fortran.get().tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    every = cp.ndarray((4,), np.float64, memptr=memory, strides=(16,))
    every[...] = -1
    del memory
    assert a.get()[:, 0].tolist() == [-1] * 4
    size = cp.cuda.alloc(64).mem.size  # a pool lends multiples of 512, and all of it may be used
    cp.ndarray(size, np.uint8, memptr=cp.cuda.alloc(64)).fill(7)
    with pytest.raises(ValueError, match="does not fit"):
        cp.ndarray(size + 1, np.uint8, memptr=cp.cuda.alloc(64))


def test_pointers_copy_to_and_from_the_host(cp):
    source, target = np.arange(10.0), np.zeros(10)
    memory = cp.cuda.alloc(80)
    memory.copy_from_host(source.ctypes.data, 80)
    (memory + 8).copy_to_host(target.ctypes.data, 72)
    assert target.tolist() == [*range(1, 10), 0]
    value = ctypes.c_int(7)
    memory.copy_from(ctypes.cast(ctypes.byref(value), ctypes.c_void_p), 4)
    other = cp.cuda.alloc(80)
    other.memset_async(0, 80, cp.cuda.Stream())
    other.copy_from(memory, 4)
    memory -= 0
    memory += 4
    assert int(memory - 4) == memory.ptr - 4 == (-4 + memory).ptr
    out = np.full(20, -1, np.int32)
    other.copy_to_host_async(out.ctypes.data_as(ctypes.c_void_p), 80, cp.cuda.Stream.null)
    assert out[0] == 7 and not out[1:].any()


def test_large_and_odd_copies(cp):
    source = np.random.default_rng(1).integers(0, 256, (3 << 20) + 13, np.uint8)
    memory = cp.cuda.alloc(source.size)
    memory.copy_from_host(source.ctypes.data, source.size)
    target = np.empty_like(source)
    memory.copy_to_host(target.ctypes.data, source.size)
    assert (source == target).all()
    memory.copy_from_host(0, 0)


def test_the_memcpy_family(cp):
    runtime = cp.cuda.runtime
    host, back = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)
    a, b = runtime.malloc(100), runtime.mallocManaged(100)
    stream = runtime.streamCreate()
    runtime.memcpy(a, host.ctypes.data, 100, runtime.memcpyHostToDevice)
    runtime.memcpyAsync(b, a + 10, 90, runtime.memcpyDeviceToDevice, stream)
    runtime.memset(b + 90, 9, 10)
    runtime.memcpy(back.ctypes.data, b, 100, runtime.memcpyDefault)
    assert back.tolist() == [*range(10, 100), *[9] * 10]
    runtime.memcpy(back.ctypes.data, host.ctypes.data, 50, runtime.memcpyHostToHost)
    assert back[:50].tolist() == list(range(50))
    for wrong in (
        lambda: runtime.memcpy(a, host.ctypes.data, 100, runtime.memcpyDeviceToHost),
        lambda: runtime.memcpy(a, host.ctypes.data, 513, runtime.memcpyHostToDevice),
        lambda: runtime.memcpy(a + (1 << 40), host.ctypes.data, 1, runtime.memcpyDefault),
        lambda: runtime.memset(host.ctypes.data, 0, 1),
    ):
        with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidValue: invalid argument"):
            wrong()
    kinds = [runtime.pointerGetAttributes(x).type for x in (a, b, host.ctypes.data)]
    assert kinds == [runtime.memoryTypeDevice, runtime.memoryTypeManaged, runtime.memoryTypeUnregistered]
    runtime.free(a)
    runtime.freeAsync(b, stream)
    runtime.streamDestroy(stream)
    with pytest.raises(runtime.CUDARuntimeError):
        runtime.free(a)


def test_rectangles(cp):
    runtime = cp.cuda.runtime
    host, back = np.arange(24, dtype=np.uint8).reshape(4, 6), np.zeros((4, 3), np.uint8)
    a = cp.zeros((4, 8), np.uint8)
    runtime.memcpy2D(a.data.ptr, 8, host.ctypes.data, 6, 6, 4, runtime.memcpyHostToDevice)
    assert (a.get()[:, :6] == host).all()
    b = cp.zeros((4, 16), np.uint8)
    runtime.memcpy2D(b.data.ptr + 1, 16, a.data.ptr, 8, 3, 4, runtime.memcpyDeviceToDevice)
    assert (b.get()[:, 1:4] == host[:, :3]).all() and not b.get()[:, 4:].any()
    runtime.memcpy2D(back.ctypes.data, 3, a.data.ptr + 2, 8, 3, 4, runtime.memcpyDeviceToHost)
    assert (back == host[:, 2:5]).all()


def test_copies_between_devices(two):
    cp = two
    data = np.random.default_rng(2).random(1 << 17)
    a = cp.asarray(data)
    with cp.cuda.Device(1):
        b = cp.zeros(1 << 17)
        c = cp.zeros(1 << 17)
        b.data.copy_from_device(a.data, a.nbytes)
    cp.cuda.runtime.memcpyPeer(c.data.ptr, 1, b.data.ptr, 1, b.nbytes)
    assert (c.get() == data).all() and c.data.device_id == 1


def test_memory_of_somebody_else(cp):
    owner = cp.arange(10.0)
    memory = cp.cuda.UnownedMemory(owner.data.ptr + 16, 64, owner)
    a = cp.ndarray((8,), np.float64, memptr=cp.cuda.MemoryPointer(memory, 0))
    a += 1
    assert owner.get().tolist() == [0, 1, *range(3, 11)]
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError) as caught:
        cp.cuda.UnownedMemory(12345, 64, None)
    assert "not in any live allocation" in caught.value.__notes__[0]
    address = owner.data.ptr
    del owner, memory, a
    gc.collect()
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError):
        cp.cuda.UnownedMemory(address, 64, None)


def test_arrays_can_be_referred_to_weakly(cp):
    a = cp.zeros(3)
    reference = weakref.ref(a)
    assert reference() is a
    del a
    assert reference() is None


def test_pool_figures_are_the_workers(cp):
    pool = cp.get_default_memory_pool()
    before = pool.used_bytes()
    a, b = cp.zeros(100), cp.arange(1024)
    assert pool.used_bytes() - before == 1024 + 8192
    del a
    assert pool.used_bytes() - before == 8192
    assert pool.total_bytes() == pool.used_bytes() + pool.free_bytes()
    del b
    pool.free_all_blocks()
    assert pool.used_bytes() == before
    assert pool.get_limit() == 0


def test_memory_info_counts_this_sessions_arrays(cp):
    free, total = cp.cuda.runtime.memGetInfo()
    a = cp.zeros(1 << 20)
    less, same = cp.cuda.runtime.memGetInfo()
    assert same == total and free - less >= a.nbytes


def test_a_pool_of_ones_own(cp):
    pool, default = cp.cuda.MemoryPool(), cp.get_default_memory_pool()
    before = default.used_bytes()
    with cp.cuda.using_allocator(pool.malloc):
        assert cp.cuda.get_allocator() == pool.malloc
        a = cp.zeros(128)
        with pytest.raises(ValueError):
            cp.cuda.set_allocator(default.malloc)
    b = cp.zeros(64)
    assert (pool.used_bytes(), default.used_bytes() - before) == (1024, 512)
    memory = pool.malloc(100)
    assert pool.used_bytes() == 1536 and memory.mem.size == 512
    del a, b, memory
    assert pool.used_bytes() == 0


def test_allocators_are_each_threads_or_everybodys(cp):
    pool = cp.cuda.MemoryPool()
    cp.cuda.set_allocator(pool.malloc)
    try:
        kept = []
        thread = threading.Thread(target=lambda: kept.append(cp.zeros(64)))
        thread.start()
        thread.join()
        own = cp.cuda.MemoryPool()
        with cp.cuda.using_allocator(own.malloc):
            kept.append(cp.zeros(64))
        assert (pool.used_bytes(), own.used_bytes()) == (512, 512)
        cp.cuda.set_allocator(None)
        kept.append(cp.zeros(64))
        assert pool.used_bytes() == 512
    finally:
        cp.cuda.set_allocator(cp.get_default_memory_pool().malloc)


def test_a_pool_that_was_never_used_may_be_replaced(cp):
    try:
        for _ in range(3):
            cp.cuda.set_allocator(cp.cuda.MemoryPool().malloc)
        with cp.cuda.using_allocator(cp.cuda.MemoryPool().malloc):
            with cp.cuda.using_allocator(cp.cuda.MemoryPool().malloc):
                pass
        cp.cuda.Device().synchronize()  # commands that named a pool after its end would raise here
        assert cp.arange(4).sum() == 6
    finally:
        cp.cuda.set_allocator(cp.get_default_memory_pool().malloc)


def test_a_limit_is_an_out_of_memory_error(cp):
    pool = cp.cuda.MemoryPool()
    pool.set_limit(size=4096)
    assert pool.get_limit() == 4096
    kept = pool.malloc(2048)
    with pytest.raises(cp.cuda.memory.OutOfMemoryError) as caught:
        pool.malloc(4096)
    assert str(caught.value) == (
        "Out of memory allocating 4,096 bytes (allocated so far: 2,048 bytes, limit set to: 4,096 bytes)."
    )
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and isinstance(again, MemoryError)
    del kept
    for wrong in ({"size": -1}, {"fraction": 1.5}, {"size": 1, "fraction": 0.5}):
        with pytest.raises(ValueError):
            pool.set_limit(**wrong)


def test_the_default_pools_limit(cp):
    pool = cp.get_default_memory_pool()
    pool.set_limit(fraction=0.5)
    total = cp.cuda.runtime.memGetInfo()[1]
    assert pool.get_limit() == total // 2
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        cp.zeros(total, np.uint8)
    pool.set_limit(size=0)
    assert pool.get_limit() == 0


def test_pinned_memory_is_a_buffer(cp):
    pinned = cp.cuda.alloc_pinned_memory(800)
    host = np.frombuffer(pinned, np.float64, 100)
    host[...] = np.arange(100)
    a = cp.empty(100)
    a.set(host)
    assert (a.get(out=np.frombuffer(pinned, np.float64, 100)) == np.arange(100)).all()
    assert int(pinned + 8) == pinned.ptr + 8 and (pinned + 8).size() == pinned.mem.size - 8
    pool = cp.cuda.PinnedMemoryPool()
    first = pool.malloc(1000)
    address = first.ptr
    del first
    assert pool.n_free_blocks() == 1 and pool.malloc(1000).ptr == address
    pool.free_all_blocks()
    assert pool.n_free_blocks() == 0 and pool.malloc(0).ptr == 0


# ---- streams and events ---------------------------------------------------------------------------


def test_a_program_without_streams_pays_nothing_for_them(cp):
    from rgpu.client import pool
    from rgpu.client.stream import CommandStream

    cp.arange(3).get()
    cp.cuda.Stream.null.synchronize()
    with cp.cuda.Stream.null:
        cp.arange(3).get()
    assert type(pool.current_stream()) is CommandStream


def test_work_on_streams(cp):
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(3)]
    results = []
    for number, stream in enumerate(streams):
        with stream:
            x = cp.arange(1000, dtype=np.float64) + number
            results.append((x * x).sum())
    for stream in streams:
        stream.synchronize()
        assert stream.done
    expected = [float(((np.arange(1000.0) + i) ** 2).sum()) for i in range(3)]
    assert [float(r) for r in results] == expected


def test_which_stream_is_current(two):
    cp = two
    current = cp.cuda.get_current_stream
    first, second = cp.cuda.Stream(), cp.cuda.Stream()
    assert current() == cp.cuda.Stream.null
    with first:
        with second:
            assert current() is second
            with cp.cuda.Device(1):
                assert current() == cp.cuda.Stream.null and current(0) is second
        assert current() is first
        seen = []
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
        assert seen == [cp.cuda.Stream.null]
    assert current() == cp.cuda.Stream.null
    first.use()
    assert current() is first
    cp.cuda.Stream.null.use()
    with cp.cuda.Device(1), pytest.raises(RuntimeError, match="does not match with the current device"):
        first.use()


def test_threads_on_streams_of_their_own(cp):
    wrong = []

    def work(number):
        with cp.cuda.Stream(non_blocking=True) as stream:
            for _ in range(30):
                x = cp.full(50, number, np.float64)
                for _ in range(5):
                    x = x + 1
                if (x.get() != number + 5).any():
                    wrong.append(number)
            stream.synchronize()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_new_connection_begins_on_the_default_stream(cp, servers):
    stream = cp.cuda.Stream().use()
    assert cp.cuda.get_current_stream() is stream
    cp.connect(*[server.address for server in servers])
    assert cp.cuda.get_current_stream() is cp.cuda.Stream.null
    assert cp.arange(3).get().tolist() == [0, 1, 2]
    cp.cuda.get_current_stream().synchronize()


def test_streams_compare_by_their_pointer(cp):
    stream = cp.cuda.Stream(priority=-1)
    assert stream == stream and stream != cp.cuda.Stream() and stream != 5
    assert cp.cuda.Stream(null=True) == cp.cuda.Stream.null and hash(stream) == stream.ptr
    assert stream.priority == -1 and not stream.is_non_blocking
    assert stream.__cuda_stream__() == (0, stream.ptr)
    other = cp.cuda.Stream.from_external(stream)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        external = cp.cuda.ExternalStream(stream.ptr)
    assert other == stream == external
    del stream, other
    with external:  # it keeps the stream alive
        assert cp.arange(3).get().tolist() == [0, 1, 2]


def test_a_stream_that_is_gone_is_cudas_error_and_harmless(cp):
    runtime = cp.cuda.runtime
    pointer = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
    assert runtime.streamQuery(pointer) == 0
    runtime.streamSynchronize(pointer)
    runtime.streamDestroy(pointer)
    for use in (runtime.streamSynchronize, runtime.streamDestroy, runtime.streamQuery):
        with pytest.raises(runtime.CUDARuntimeError) as caught:
            use(pointer)
        assert caught.value.status == 400
    assert cp.arange(3).get().tolist() == [0, 1, 2]


def test_events_measure_and_order(cp):
    start, end = cp.cuda.Event(), cp.cuda.Event(block=True)
    stream = cp.cuda.Stream()
    start.record()
    with stream:
        stream.wait_event(start)
        x = cp.ones((400, 400)) @ cp.ones((400, 400))
        end.record()
    end.synchronize()
    assert end.done and float(x[0, 0]) == 400
    assert 0 < cp.cuda.get_elapsed_time(start, end) < 60_000
    assert stream.record().done in (True, False)
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError):
        cp.cuda.get_elapsed_time(start, cp.cuda.Event())
    with pytest.raises(ValueError):
        cp.cuda.Event(interprocess=True)


def test_events_of_another_device(two):
    cp = two
    event = cp.cuda.Event()
    x = cp.arange(10)
    event.record()
    with cp.cuda.Device(1):
        stream = cp.cuda.Stream()
        stream.wait_event(event)
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError):
            event.record(stream)
        with stream:
            assert cp.asarray(x).get().tolist() == list(range(10))


def test_host_functions_run_in_order_after_the_work(cp):
    stream, out = cp.cuda.Stream(), []
    with stream:
        for i in range(30):
            x = cp.full(4, i)
            host = x.get()
            stream.add_callback(lambda s, status, data: out.append((s is stream, status, int(data[0]))), host)
            stream.launch_host_func(lambda data: out.append(data), i)
    stream.synchronize()
    assert out == [item for i in range(30) for item in ((True, 0, i), i)]


def test_a_copy_waits_for_the_host_function_that_fills_its_source(cp):
    host, stream = np.zeros(4), cp.cuda.Stream()
    memory = cp.cuda.alloc(32)
    filled = threading.Event()

    def fill(_):
        filled.wait(10)
        host[...] = 5

    stream.launch_host_func(fill, None)
    assert not stream.done
    filled.set()
    memory.copy_from_host_async(host.ctypes.data, 32, stream)
    assert cp.ndarray((4,), float, memptr=memory).get().tolist() == [5] * 4


def test_an_error_of_an_earlier_command_is_raised_by_synchronize(cp):
    cp.arange(10).get()
    pool = cp.cuda.MemoryPool()
    pool.set_limit(size=512)
    with cp.cuda.using_allocator(pool.malloc):
        lost = cp.zeros(1000)
        with pytest.raises(cp.cuda.memory.OutOfMemoryError):
            cp.cuda.get_current_stream().synchronize()
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        lost.get()


# ---- names ----------------------------------------------------------------------------------------


def test_what_is_not_there_says_so(cp):
    with pytest.raises(NotImplementedError, match="cublas.create"):
        cp.cuda.cublas.create()
    with pytest.raises(AttributeError):
        cp.cuda.runtime.noSuchFunction  # noqa: B018
    assert cp.cuda.runtime.memcpyDefault == 4
    assert isinstance(cp.cuda.nvrtc.NVRTCError(6), RuntimeError)
    cp.cuda.nvtx.RangePush("x")
    assert cp.cuda.nvtx.RangePop() == 0
    with pytest.warns(UserWarning, match="deprecated"), cp.cuda.profile():
        pass


def test_errors_are_picklable(cp):
    for error in (
        cp.cuda.runtime.CUDARuntimeError(1),
        cp.cuda.driver.CUDADriverError(1),
        cp.cuda.cublas.CUBLASError(3, "CUBLAS_STATUS_ALLOC_FAILED"),
        cp.cuda.compiler.CompileException("no", "source", "name", ("-O3",)),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
    assert str(cp.cuda.runtime.CUDARuntimeError(700)) == (
        "cudaErrorIllegalAddress: an illegal memory access was encountered"
    )
    assert str(cp.cuda.driver.CUDADriverError(1)) == "CUDA_ERROR_INVALID_VALUE: invalid argument"


def test_conversions_are_made_on_the_current_device(two):
    with two.cuda.Device(1):
        x = two.arange(3.0)
    for dtype in ("f", "d", "f"):
        with two.cuda.Device(0):
            assert x.astype(dtype).device.id == 0 and x.astype("d", copy=False) is x
        with two.cuda.Device(1):
            assert x.astype(dtype).device.id == 1
    assert x.astype("i4").get().tolist() == [0, 1, 2]
