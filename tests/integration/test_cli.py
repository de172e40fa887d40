"""The rgpu command as a user runs it: real child processes, their exit codes, signals and environment."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rgpu
from rgpu.client.embedded import EmbeddedDaemon
from rgpu.config import DeviceSpec
from tests.support.servers import environment

pytestmark = pytest.mark.timeout(120)
PACKAGE_PARENT = str(Path(next(iter(rgpu.__path__))).parent)
# What a program sees when it imports cupy; the alias alone is looked at, so that no device is needed.
FIND = "import importlib.util as u; print(u.find_spec('cupy').origin == u.find_spec('rgpu').origin)"


@pytest.fixture
def environ(tmp_path):
    """The caller's environment without a developer's settings of rgpu, with a PATH that has this very python."""
    env = environment()
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    python = bin_dir / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return env | {"PATH": f"{bin_dir}:{env['PATH']}", "PYTHONPATH": PACKAGE_PARENT}


@pytest.fixture
def run(environ, tmp_path):
    def run(*args, start=("-m", "rgpu.cli"), **extra):
        return subprocess.run(
            [sys.executable, *start, *args],
            env=environ | extra,
            cwd=tmp_path,
            timeout=60,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_python_program_with_arguments(run, tmp_path):
    program = tmp_path / "prog.py"
    program.write_text(f"import sys\n{FIND}\nprint(sys.argv[1:], __name__)\n")
    done = run("run", "--", "python", "prog.py", "-n", "7", "--", "x")
    assert done.stdout.splitlines() == ["True", "['-n', '7', '--', 'x'] __main__"], done.stderr


def test_script_with_a_shebang(run, tmp_path):
    script = tmp_path / "script"
    script.write_text(f"#!/usr/bin/env python\n{FIND}\n")
    script.chmod(0o755)
    assert run("run", "./script").stdout == "True\n"


def test_child_pythons_have_the_alias_too(run, tmp_path):
    (tmp_path / "outer.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, 'inner.py'])\n"
    )
    (tmp_path / "inner.py").write_text(FIND)
    assert run("run", "--", "sh", "-c", "python outer.py").stdout == "True\n"


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_exit_code(run, code):
    assert run("run", "--", "sh", "-c", f"exit {code}").returncode == code


def test_command_not_found(run, tmp_path):
    done = run("run", "--", "a-command-nobody-has", "x")
    assert done.returncode == 127 and done.stderr == "rgpu: a-command-nobody-has: not found\n"
    (tmp_path / "plain.txt").write_text("x")
    done = run("run", "--", "./plain.txt")
    assert done.returncode == 126 and "not executable" in done.stderr


def test_a_script_without_a_first_line(run, tmp_path):
    script = tmp_path / "script"
    script.write_text("print(1)\n")
    script.chmod(0o755)
    done = run("run", "--", "./script")
    assert done.returncode == 126 and "#!/usr/bin/env python3" in done.stderr


def test_python_that_is_not_on_the_path(run, tmp_path):
    assert run("run", "--", "python", "-c", FIND, PATH=str(tmp_path / "empty")).stdout == "True\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_program(environ, tmp_path, number):
    code = textwrap.dedent("""
        import signal, sys
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda n, frame: sys.exit(n + 40))
        print("ready", flush=True)
        signal.pause()
    """)
    with subprocess.Popen(
        [sys.executable, "-m", "rgpu.cli", "run", "--", "python", "-c", code],
        env=environ,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            child.send_signal(number)
            assert child.wait(30) == number + 40
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("arguments", "already", "expected"),
    [
        (("-n", "2"), None, "2 None"),
        (("--devices", "1"), "3,5", "1 3,5"),
        (("-n", "1"), "", "1 "),
        ((), None, "None None"),
    ],
)
def test_number_of_devices(run, arguments, already, expected):
    """With no servers the program's own local daemon is asked."""
    code = "import os; print(os.environ.get('RGPU_GPUS'), os.environ.get('RGPU_VISIBLE_DEVICES'))"
    extra = {"RGPU_VISIBLE_DEVICES": already} if already is not None else {}
    assert run("run", *arguments, "--", "python", "-c", code, **extra).stdout.rstrip("\n") == expected


@pytest.mark.parametrize(
    "arguments",
    [("run", "-n", "0", "--", "true"), ("run", "-n", "x", "--", "true"), ("run",), (), ("nonsense",)],
)
def test_wrong_arguments(run, arguments):
    done = run(*arguments)
    assert done.returncode == 2 and "usage: rgpu" in done.stderr


@pytest.mark.parametrize("command", ["run", "list", "version"])
def test_help(run, command):
    done = run(command, "--help")
    assert done.returncode == 0 and f"usage: rgpu {command}" in done.stdout


def test_an_existing_sitecustomize_still_runs(run, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys; sys.theirs = __file__\n")
    code = f"import sys; {FIND}; print(sys.theirs, any(p.endswith('_site') for p in sys.path))"
    done = run("run", "--", "python", "-c", code, PYTHONPATH=f"{site}:{PACKAGE_PARENT}")
    assert done.stdout.splitlines() == ["True", f"{site / 'sitecustomize.py'} False"], done.stderr


def test_starting_an_aliased_python_imports_nothing_of_rgpu(run):
    code = (
        "import sys; print([m for m in sys.modules if m.split('.')[0] in ('rgpu', 'numpy', 'zmq', 'json')])"
    )
    assert run("run", "--", "python", "-c", code).stdout.strip() == "['rgpu.alias']"


def test_import_keeps_identity_and_the_one_finder(run):
    code = (
        "import cupy, rgpu, sys; from rgpu.alias import install; install(); import cupy.cuda;"
        "print(cupy is rgpu, sys.modules['cupy'] is rgpu, cupy.cuda is rgpu.cuda,"
        "sum(type(f).__name__ == 'AliasFinder' for f in sys.meta_path))"
    )
    done = run("run", "--", "python", "-c", code)
    assert done.stdout.strip() == "True True True 1", done.stderr


def test_a_python_without_rgpu_says_so(run, tmp_path):
    done = run(
        "run",
        "--",
        "sh",
        "-c",
        "PYTHONPATH=${PYTHONPATH%%:*} python -S -c 'import site; site.execsitecustomize();import cupy'",
    )
    assert done.returncode == 1 and "does not have rgpu: install it there" in done.stderr


def test_inside_a_server_cupy_is_cupy_itself(run):
    code = "import rgpu.server, sys; print([f for f in sys.meta_path if type(f).__name__ == 'AliasFinder'])"
    assert run("run", "--", "python", "-c", code).stdout == "[]\n"


class TestModule:
    """python -m rgpu"""

    START = ("-m", "rgpu")

    def test_script(self, run, tmp_path):
        (tmp_path / "prog.py").write_text(f"import sys\n{FIND}\nprint(sys.argv, sys.path[0])\n")
        done = run("prog.py", "a", "-m", start=self.START)
        assert done.stdout.splitlines() == ["True", f"['prog.py', 'a', '-m'] {tmp_path}"], done.stderr

    def test_code_and_module(self, run, tmp_path):
        assert run("-c", FIND, start=self.START).stdout == "True\n"
        (tmp_path / "mod.py").write_text(f"import sys\n{FIND}\nprint(sys.argv[1:])\n")
        assert run("-m", "mod", "b", start=self.START).stdout.splitlines() == ["True", "['b']"]

    @pytest.mark.parametrize("start", [("-W", "error", "-m", "rgpu"), ("-W", "error", "-mrgpu")])
    def test_options_of_the_interpreter_are_kept(self, run, start):
        done = run("-c", "import sys; print(sys.warnoptions)", start=start)
        assert done.stdout == "['error']\n", done.stderr

    def test_exit_code_and_help(self, run):
        assert run("-c", "raise SystemExit(5)", start=self.START).returncode == 5
        assert "usage: python -m rgpu" in run("--help", start=self.START).stdout


def test_version(run):
    assert run("version").stdout.startswith("rgpu ")


class TestList:
    def test_no_servers(self, run):
        """A program would start a local daemon; so does the list, and it shows what the program would see."""
        done = run("list", "--json", RGPU_LOCAL_DEVICES="cpu:3")
        (server,) = json.loads(done.stdout)["servers"]
        assert done.returncode == 0 and [device["index"] for device in server["devices"]] == [0, 1, 2]

    def test_devices_of_a_server(self, run):
        daemon = EmbeddedDaemon(DeviceSpec("cpu", 2))
        try:
            servers = f"{daemon.address},127.0.0.1:1"
            done = run("list", "--json", RGPU_SERVERS=servers)
            alive, dead = json.loads(done.stdout)["servers"]
            assert [device["index"] for device in alive["devices"]] == [0, 1] and "error" in dead
            assert done.returncode == 1, "a server that does not answer is a failure"
            done = run("list", RGPU_SERVERS=str(daemon.address))
            assert done.returncode == 0, done.stderr
            assert [line.split()[:4] for line in done.stdout.splitlines()[1:]] == [
                [ordinal, str(daemon.address), ordinal, "cpu"] for ordinal in "01"
            ]
        finally:
            daemon.stop()

    def test_a_dead_server_is_an_error_that_names_it(self, run):
        done = run("list", RGPU_SERVERS="127.0.0.1:1")
        assert done.returncode == 1 and "127.0.0.1:1" in done.stderr and "Traceback" not in done.stderr

    def test_a_wrong_setting(self, run):
        done = run("list", RGPU_SERVERS="a b c")
        assert done.returncode == 2 and "RGPU_SERVERS" in done.stderr and "Traceback" not in done.stderr
