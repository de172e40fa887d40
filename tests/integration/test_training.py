"""The examples for many devices, as a user starts them: under ``rgpu run`` on all devices of two servers."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.servers import Server, program

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = "import sys; from rgpu.cli import main; sys.exit(main())"


@pytest.fixture(scope="module")
def servers():
    with Server("cpu:2", "hostA") as first, Server("cpu:2", "hostB") as second:
        yield first, second


def run(servers, script, *arguments):
    command = "run", "-n", "4", "--", sys.executable, str(EXAMPLES / script), *arguments
    return program(RUN, *servers, arguments=command, timeout=110).stdout


def test_data_parallel_trains_what_one_device_trains(servers):
    said = run(servers, "data_parallel.py", "--epochs", "1", "--check")
    assert "4 devices" in said and "one device: the same losses" in said
    used = [float(line.split()[2]) for line in said.splitlines() if line.startswith("device ")]
    assert len(used) == 4 and max(used) < 1.2 * min(used)  # not all of it on device 0


def test_parameter_server(servers):
    said = run(servers, "parameter_server.py", "--epochs", "1", "--check")
    assert "4 devices" in said and "one device: the same losses" in said


def test_hyper_parameter_search(servers):
    said = run(servers, "hyperparameter_search.py", "--epochs", "1", "--processes", "2")
    assert "6 settings in 2 processes" in said


def test_dask_over_all_devices(servers):
    pytest.importorskip("dask.array", reason="dask is not installed (pip install 'dask[array]')")
    said = run(servers, "dask_array.py", "--rows", "600", "--columns", "40")
    assert "chunks on devices [0, 1, 2, 3]" in said and "NumPy's within" in said


def test_cifar_10_files(tmp_path):
    spec = importlib.util.spec_from_file_location("datasets", EXAMPLES / "datasets.py")
    datasets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(datasets)
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (7, datasets.CIFAR10_RECORD), np.uint8)
    records[:, 0] = np.arange(7)
    for names in datasets.CIFAR10_FILES:
        for name in names:
            records.tofile(tmp_path / name)
    train_x, train_y, test_x, test_y = datasets.cifar10(tmp_path)
    assert train_x.shape == (35, 3072) and test_x.shape == (7, 3072) and train_x.dtype == np.float32
    assert list(test_y) == list(range(7)) and list(train_y[:7]) == list(range(7))
    np.testing.assert_allclose(test_x, records[:, 1:] / 255 - 0.5, rtol=0, atol=1e-6)
    (tmp_path / "test_batch.bin").write_bytes(b"123")
    with pytest.raises(SystemExit, match="records"):
        datasets.cifar10(tmp_path)
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(SystemExit, match="lacks test_batch.bin"):
        datasets.cifar10(tmp_path)
