"""rgpu doctor and RGPU_PROFILE: every wait of a program is told with its line, its cause and what to write instead."""

import json
import sys

import pytest

from rgpu.client import report
from tests.support.servers import program

SOURCE = """\
import sys
import cupy as cp
import numpy as np

x = cp.arange(12.0)
host = np.ones(1000, np.float32)
for i in range(5):
    y = (x + 1) * 2
    if y.sum() < 0: print("never")
    kept = y[y > 3]
    z = cp.asarray(host)
    total = float(y[0])
    cp.cuda.Device().synchronize()
print(total, kept.size, y.get()[1])
sys.exit(7)
"""


def line_number(text):
    return 1 + next(i for i, line in enumerate(SOURCE.splitlines()) if text in line)


@pytest.fixture(scope="module")
def doctored(servers, tmp_path_factory):
    """The finished `rgpu doctor` of SOURCE, and what it wrote as JSON."""
    folder = tmp_path_factory.mktemp("doctor")
    file = folder / "slow.py"
    file.write_text(SOURCE)
    arguments = ("rgpu.cli", "doctor", "--json", str(folder / "out.json"), str(file))
    done = program("-m", *servers, launcher=(), arguments=arguments, check=False)
    return done, json.loads((folder / "out.json").read_text())["profiles"]


def test_the_program_is_what_it_was(doctored):
    done, _ = doctored
    assert (done.returncode, done.stdout) == (7, "2.0 11 4.0\n"), done.stderr


def test_each_line_with_its_operations_bytes_and_waits(doctored):
    (profile,) = doctored[1]
    lines = {line["line"]: line for line in profile["lines"]}

    def waits(text):
        return [(w["call"], w["for"], w["count"]) for w in lines[line_number(text)]["waits"]]

    assert lines[line_number("y = (x + 1)")]["operations"] == {"add": 5, "multiply": 5}
    assert waits("y = (x + 1)") == []
    assert waits("if y.sum()") == [("__bool__", "values", 5)]
    assert waits("total = float") == [("__float__", "values", 5)]
    assert lines[line_number("total = float")]["received"] == 5 * 8
    assert waits("synchronize") == [("synchronize", "completion", 5)]
    assert [w[2] for w in waits("kept = ")] == [5]
    assert lines[line_number("z = cp.asarray")]["sent"] == 5 * 4000
    assert lines[line_number("print(total")]["received"] == 12 * 8


def test_the_report_names_line_cause_and_remedy(doctored):
    said = doctored[0].stderr
    for text in ("if y.sum() < 0", "total = float(y[0])", "kept = y[y > 3]", "cp.cuda.Device().synchronize()"):
        assert said.count(text) >= 2, said  # in the table, and in what could be written otherwise
    assert "waits for values: 5 times" in said and "cp.where(mask" in said and "cp.stack(losses)" in said
    assert "y = (x + 1) * 2" in said.split("otherwise")[0] and "y = (x + 1) * 2" not in said.split("otherwise")[1]


def test_a_report_by_the_variable_alone_and_none_without(servers):
    source = "import rgpu as cp\nfor i in range(4): float(cp.ones(3).sum())\n"
    assert "__float__() waits for values: 4 times" in program(source, *servers, RGPU_PROFILE="1").stderr
    assert program(source, *servers, RGPU_PROFILE="0").stderr == ""
    refused = program(source, *servers, RGPU_PROFILE="/nowhere/at/all.json")
    assert "/nowhere/at/all.json cannot be written" in refused.stderr


def test_the_profile_changes_no_answer_and_no_round_trip(servers):
    source = (
        "import rgpu as cp\nx = cp.arange(50.0)\nfor i in range(30): x = cp.sqrt(x * x + i)\n"
        "print(x.sum().item().hex(), cp.stats()['round_trips'], cp.stats()['commands'])\n"
    )
    plain, profiled = (program(source, *servers, RGPU_PROFILE=value) for value in ("", "1"))
    assert plain.stdout == profiled.stdout


def test_no_program_is_an_error_with_the_usage():
    done = program("-m", launcher=(), arguments=("rgpu.cli", "doctor"), check=False)
    assert done.returncode == 2 and "rgpu doctor train.py" in done.stderr


@pytest.mark.parametrize(
    ("call", "waited_for", "words"),
    [
        ("item", "values", "read it every N steps"),
        ("get", "values", "keep it on the device"),
        ("unique", "unique", "how large the result is"),
        ("getitem", "ndarray.getitem", "how large the result is"),
        ("synchronize", "stream.synchronize", "run in order by themselves"),
        ("percentile", "percentile", "layout of the result was asked for"),
        ("mem_info", "device.memory", "keep the answer"),
        ("asarray", "room", "netperf"),
    ],
)
def test_advice(call, waited_for, words):
    assert words in report.advice(call, waited_for)


def test_a_report_of_many_lines_is_short():
    line = {"file": __file__, "operations": {"add": 1}, "sent": 0, "received": 0, "waits": []}
    lines = [{**line, "line": number} for number in range(1, 500)]
    text = report.text({"program": sys.argv[:1], "pid": 1, "seconds": 0.0, "lines": lines})
    assert len(text.splitlines()) < report.SHOWN + 10 and "and 479 more lines" in text
