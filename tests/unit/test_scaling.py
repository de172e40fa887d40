"""The model of scripts/scaling: what must hold whatever its numbers are, and the goal it was made for."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import numpy as np
import pytest

from rgpu.errors import ConfigError
from rgpu.link import shaped
from rgpu.server.backend_sim import Cost, SimBackend
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def scaling():
    loader = SourceFileLoader("scaling", str(Path(__file__).parents[2] / "scripts" / "scaling"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("scaling", loader))
    before = list(sys.path)
    sys.modules["scaling"] = module
    loader.exec_module(module)
    yield module
    del sys.modules["scaling"]
    sys.path[:] = before


def test_the_goal_googlenet_on_16_devices_over_fdr(scaling):
    assert scaling.efficiency(scaling.MODELS[0], 16, scaling.NETWORKS[0]) >= 0.9


def test_no_network_beats_the_ideal_and_faster_ones_are_never_slower(scaling):
    for model in scaling.MODELS:
        for n in scaling.COUNTS:
            slow, fast = scaling.NETWORKS[1], scaling.NETWORKS[3]
            for strong in (False, True):
                worse, better = (scaling.efficiency(model, n, network, strong=strong) for network in (slow, fast))
                assert 0 < worse <= better <= 1
        assert scaling.efficiency(model, 1, scaling.NETWORKS[1]) == 1


def test_a_step_without_overlap_is_compute_and_reduction(scaling):
    assert scaling.timeline(1.0, 100.0, 100.0, lambda nbytes: nbytes / 100) == pytest.approx(2.0)
    # Four buckets, each reduced while the next is computed: only the last one is seen.
    assert scaling.timeline(1.0, 100.0, 25.0, lambda nbytes: 0.1) == pytest.approx(1.1)
    assert scaling.timeline(1.0, 100.0, 25.0, lambda nbytes: 1.0) == pytest.approx(0.5 + 4.0)


def test_tables_and_plot(scaling, tmp_path):
    text = "\n".join(scaling.tables(4))
    assert "FDR" in text and "74, 73, 55, 53" in text
    scaling.plot(tmp_path / "scaling.svg", 4)
    assert (tmp_path / "scaling.svg").read_text().count("<polyline") == 24


# ---- sim devices and emulated links ------------------------------------------------------------------


def test_the_cost_of_a_product_is_its_operations(monkeypatch):
    monkeypatch.setenv("RGPU_SIM", "flops=1e9,bandwidth=1e12,launch=1e-5")
    backend = SimBackend()
    taken = []
    monkeypatch.setattr(backend, "_take", taken.append)
    result = backend.resolve("matmul")(np.ones((100, 50)), np.ones((50, 20)))
    assert result.shape == (100, 20) and taken == [pytest.approx(1e-5 + 2 * 100 * 50 * 20 / 1e9)]
    with pytest.raises(ValueError):
        backend.resolve("matmul")(np.ones((3, 4)), np.ones((3, 4)))
    np.testing.assert_array_equal(backend.resolve("add")(np.ones(3), 1), 2)  # what is cheap is right
    assert taken[1] == pytest.approx(1e-5 + 2 * 24 / 1e12)


@pytest.mark.parametrize("text", ["flops", "flops=x", "speed=1", "flops=0", "flops=-1"])
def test_a_wrong_setting_is_named(monkeypatch, text):
    monkeypatch.setenv("RGPU_SIM", text)
    with pytest.raises(ConfigError, match="RGPU_SIM"):
        Cost.from_environment()


def test_an_emulated_link_is_of_the_kind_of_what_is_behind_it(monkeypatch):
    from rgpu.link import connect, listen

    monkeypatch.setenv(shaped.SETTING, "20000us,10MB/s")
    listener = listen("tcp://127.0.0.1:0")
    there, inner = listener.accept(b"x" * 16), connect(listener.uri, b"x" * 16)
    here = shaped.wrap(inner)
    inner.kind, inner.chunk = "shm", 1 << 16  # as one that finds a better place becomes
    here.life = 3.0
    assert (here.kind, here.chunk, here.uri, inner.life) == ("shm", 1 << 16, inner.uri, 3.0)
    assert not here.holding
    here.close()
    there.close()


def test_an_emulated_link_delays(monkeypatch):
    import time

    from rgpu.link import connect, listen

    monkeypatch.setenv(shaped.SETTING, "20000us,10MB/s;near=1us,1000MB/s,/tmp/line")
    assert shaped.setting()["near"] == (1e-6, 1e9, "/tmp/line")
    listener = listen("inproc://shaped")
    there = listener.accept(b"x" * 16)
    here = shaped.wrap(connect("inproc://shaped", b"x" * 16))
    assert here.send([b"at once"])
    assert wait_until(there.recv) == [b"at once"]
    here.narrow("far")  # that is no other one
    began = time.monotonic()
    assert here.send([bytes(100_000)]) and here.send([b"behind"])
    assert len(wait_until(there.recv)[0]) == 100_000
    took = time.monotonic() - began
    assert took > 0.019  # 10 ms on the line, 10 ms of delay
    assert wait_until(there.recv) == [b"behind"]
    changing = bytearray(b"before")
    assert here.send([memoryview(changing)])
    changing[:] = b"after!"
    assert wait_until(there.recv) == [b"before"]
    here.close()
    there.close()
    monkeypatch.setenv(shaped.SETTING, "fast")
    with pytest.raises(ConfigError, match="100us"):
        shaped.setting()
