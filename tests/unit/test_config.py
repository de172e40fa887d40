"""Settings: where they come from, what counts, and what is refused by name."""

import os
from pathlib import Path

import pytest

from rgpu import config
from rgpu.config import Address, ClientConfig, DeviceSpec, ServerConfig
from rgpu.errors import ConfigError


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_order_of_sources(tmp_path):
    near = write(tmp_path / "near.toml", '[server]\nport = 1001\nname = "near"\ngrace = 3\n')
    far = write(tmp_path / "far.toml", '[server]\nport = 1002\nname = "far"\ngrace = 4\nprestart = 7\n')
    settings, origins = config.load(
        ServerConfig,
        {"port": "1000"},
        environ={"RGPU_PORT": "1003", "RGPU_NAME": "env"},
        files=[near, far],
    )
    assert (settings.port, settings.name, settings.grace, settings.prestart) == (1000, "env", 3.0, 7)
    assert origins["port"] == "argument --port"
    assert origins["name"] == "RGPU_NAME"
    assert "near.toml" in origins["grace"]
    assert origins["bind"] == "default"


def test_files_are_looked_for_in_the_documented_order():
    files = config.config_files({"XDG_CONFIG_HOME": "/home/u/.config"})
    assert files == [
        Path("rgpu.toml"),
        Path("/home/u/.config/rgpu/config.toml"),
        Path("/etc/rgpu/config.toml"),
    ]


def test_an_empty_variable_is_an_unset_one():
    assert config.load_client(environ={"RGPU_SERVERS": ""}, files=[]).servers == ()


def test_but_visible_devices_that_are_empty_are_none_as_with_cuda():
    """`visible` shows none of ("",): tests/integration/test_leases.py."""
    assert config.load_client(environ={}, files=[]).visible_devices is None
    assert config.load_client(environ={"RGPU_VISIBLE_DEVICES": ""}, files=[]).visible_devices == ("",)


def test_settings_and_addresses_do_not_change():
    settings, address = config.load_client(environ={}, files=[]), config.parse_address("gpu1")
    with pytest.raises(AttributeError):
        settings.gpus = 2
    with pytest.raises(AttributeError):
        address.port = 1
    with pytest.raises(TypeError, match="no gpu"):
        ClientConfig(gpu=2)
    assert address.but(own=True) == address != address.but(port=1) and address.but(own=True).own
    assert {address: 1}[config.parse_address("gpu1:47800")] == 1
    assert repr(config.parse_devices("cuda:1")) == "DeviceSpec(kind='cuda', count=0, indices=(1,))"
    for wrong in ((), ("gpu1",), ("gpu1", 1, False, 2)):
        with pytest.raises(TypeError, match="made of host, port, own"):
            config.Address(*wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 1\n", "unknown key 'prot' in [server]; did you mean 'port'?"),
        (
            "[sever]\nport = 1\n",
            "unknown key 'sever'; sections are [server], [client]; did you mean 'server'?",
        ),
        ("port = 1\n", "unknown key 'port'"),
        ("[server\n", "is not valid TOML"),
        ("[server]\nport = 70000\n", "a port is between 0 and 65535"),
        ("[client]\nservers = ['a', 'a']\n", "listed twice"),
    ],
)
def test_nonsense_in_a_file_names_the_file(tmp_path, text, message):
    path = write(tmp_path / "rgpu.toml", text)
    kind = ClientConfig if "client" in text else ServerConfig
    with pytest.raises(ConfigError) as caught:
        config.load(kind, environ={}, files=[path])
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_nonsense_in_the_environment_names_the_variable():
    with pytest.raises(ConfigError, match="RGPU_GRACE: 'soon' has no meaning"):
        config.load_server(environ={"RGPU_GRACE": "soon"}, files=[])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4G", 4 << 30),
        ("512 MiB", 512 << 20),
        ("1.5gb", 3 << 29),
        ("7k", 7168),
        (12, 12),
        ("2TiB", 2 << 40),
    ],
)
def test_bytes(text, size):
    assert config.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "4X", "1e3", None, -5, True, 1.5])
def test_not_bytes(text):
    with pytest.raises(ValueError, match="memory"):
        config.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("8", 8.0), ("8s", 8.0), ("500ms", 0.5), (2, 2.0), ("0.5", 0.5)]
)
def test_seconds(text, seconds):
    assert config.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "x", None, True])
def test_not_seconds(text):
    with pytest.raises(ValueError, match="time"):
        config.parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("gpu1", Address("gpu1", 47800)),
        ("gpu1:5", Address("gpu1", 5)),
        ("tcp://10.0.0.7:5", Address("10.0.0.7", 5)),
        ("[::1]:5", Address("::1", 5)),
        ("[fe80::1%eth0]", Address("fe80::1%eth0", 47800)),
    ],
)
def test_address(text, address):
    assert config.parse_address(text) == address
    assert config.parse_address(str(address)) == address
    assert config.parse_address(address.uri) == address


@pytest.mark.parametrize("text", ["", ":5", "a:b", "a:99999", "a b", "::1", "a:1:2", "a,b", None, 5])
def test_not_an_address(text):
    with pytest.raises(ValueError, match="server looks like"):
        config.parse_address(text)


def test_servers():
    assert config.parse_servers(" a:1, local ,,b ") == (Address("a", 1), "local", Address("b", 47800))
    assert config.parse_servers(["a:1"]) == (Address("a", 1),)
    with pytest.raises(ValueError, match="listed twice"):
        config.parse_servers("a,a:47800")
    with pytest.raises(ValueError, match="servers look like"):
        config.parse_servers(5)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("cpu", DeviceSpec("cpu", 1)),
        ("cpu:4", DeviceSpec("cpu", 4)),
        ("cuda", DeviceSpec("cuda")),
        ("cuda:0,2", DeviceSpec("cuda", indices=(0, 2))),
        ("auto", DeviceSpec("auto")),
    ],
)
def test_devices(text, spec):
    assert config.parse_devices(text) == spec
    assert config.parse_devices(str(spec)) == spec


@pytest.mark.parametrize(
    "text", ["", "cpu:", "cpu:0", "cpu:x", "cuda:", "cuda:0,0", "gpu", "auto:1", "cpu:9999"]
)
def test_not_devices(text):
    with pytest.raises(ValueError, match="devices look like"):
        config.parse_devices(text)


def test_described_settings_can_be_read_again(tmp_path):
    for kind, environ in (
        (ServerConfig, {"RGPU_DEVICES": "cuda:0,1", "RGPU_PRESTART": "3", "RGPU_NAME": "n"}),
        (ServerConfig, {"RGPU_QUOTAS": "a:memory=1GiB,weight=2;*:devices=2", "RGPU_LABELS": "zone=a,team=ml"}),
        (ServerConfig, {"RGPU_OVERSUBSCRIBE": "2", "RGPU_SPILL_DIRECTORY": "/tmp", "RGPU_IDLE_TIMEOUT": "30m"}),
        (ClientConfig, {"RGPU_SERVERS": "a:1,[::1]:2", "RGPU_LAUNCH_BLOCKING": "1"}),
        (ClientConfig, {"RGPU_GPUS": "2", "RGPU_MEMORY": "50%", "RGPU_COMPUTE": "25%", "RGPU_WAIT_FOR": "10m"}),
        (ClientConfig, {"RGPU_VISIBLE_DEVICES": "1,GPU-3f", "RGPU_FILTERS": "name=*A100*,rdma=1"}),
    ):
        settings, origins = config.load(kind, environ=environ, files=[])
        path = write(tmp_path / "again.toml", config.describe(settings, origins))
        again = config.load(kind, environ={}, files=[path])[0]
        assert all(getattr(again, name) == getattr(settings, name) for name in kind.settings)


def test_runtime_directory_is_private(tmp_path):
    path = config.runtime_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert path.parent == tmp_path
    assert path.stat().st_mode & 0o777 == 0o700
    os.chmod(path, 0o755)
    with pytest.raises(ConfigError, match="0700"):
        config.runtime_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
