"""The ledger of CuPy's tests: what it expects, what it refuses, and what the table makes of it."""

import json

import pytest

LEDGER = """
[[excluded]]
reason = "elsewhere"
tests = ["cupy_tests/x.py*"]

[[expected]]
reason = "one"
tests = ["cupy_tests/a.py::T_param_*::test", "cupy_tests/a.py::test_known"]

[[expected]]
reason = "by chance"
sometimes = true
tests = ["cupy_tests/a.py::test_random"]
"""


@pytest.fixture
def modules(monkeypatch):
    from pathlib import Path

    monkeypatch.syspath_prepend(str(Path(__file__).parent / "upstream"))
    import ledger
    import report

    return ledger, report


def judged(modules, tmp_path, outcomes):
    ledger, report = modules
    (tmp_path / "ledger.toml").write_text(LEDGER)
    lines = [{"node": f"tests/cupy_tests/{node}", "outcome": o, "message": ""} for node, o in outcomes.items()]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, lines)))
    results = report.Results().read(tmp_path / "lines")
    return results, report.Judged(results, ledger.load(tmp_path / "ledger.toml"))


def test_an_unexpected_failure_fails_the_run(modules, tmp_path, capsys):
    results, found = judged(modules, tmp_path, {"a.py::test": "failed", "a.py::other": "passed"})
    assert [line["node"] for line in found.unexpected] == ["tests/cupy_tests/a.py::test"]
    assert modules[1].show(results, found, 5, strict=False) == 1
    assert "a.py::test" in capsys.readouterr().out


def test_an_expected_failure_does_not_but_counts_in_the_rate(modules, tmp_path, capsys):
    outcomes = {"a.py::T_param_3_{x=1}::test": "failed", "a.py::test_known": "error", "a.py::b": "passed"}
    results, found = judged(modules, tmp_path, outcomes)
    assert not found.unexpected and not found.stale
    assert found.total == {"expected": 2, "passed": 1}
    assert modules[1].show(results, found, 5, strict=True) == 0
    assert "33.33%" in capsys.readouterr().out


def test_an_expected_failure_that_passes_is_reported_and_fails_a_strict_run(modules, tmp_path, capsys):
    results, found = judged(modules, tmp_path, {"a.py::test_known": "passed", "a.py::test_random": "passed"})
    assert found.stale == ["tests/cupy_tests/a.py::test_known"]
    assert modules[1].show(results, found, 5, strict=False) == 0
    assert modules[1].show(results, found, 5, strict=True) == 1
    assert "remove it" in capsys.readouterr().out


def test_what_is_excluded_is_counted_apart(modules, tmp_path):
    _, found = judged(modules, tmp_path, {"x.py::test[1]": "excluded", "a.py::b": "passed"})
    assert found.total == {"excluded": 1, "passed": 1}


def test_runs_are_joined_and_the_later_outcome_counts(modules, tmp_path):
    _, report = modules
    for number, outcome in enumerate(("failed", "passed")):
        results = report.Results()
        results.lines = {"n": {"node": "n", "outcome": outcome, "message": ""}}
        results.stats = {"commands": 2}
        results.save(tmp_path / f"{number}.json")
    joined = report.Results().merge(tmp_path / "0.json").merge(tmp_path / "1.json")
    assert joined.lines["n"]["outcome"] == "passed" and joined.stats == {"commands": 4}


def test_commands_that_the_servers_did_not_execute_fail_the_run(modules, tmp_path, capsys):
    results, found = judged(modules, tmp_path, {"a.py::b": "passed"})
    results.stats = {"commands": 7, "issued": 7, "executed": 6}
    assert modules[1].show(results, found, 5, strict=False) == 1
    assert "did not execute" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        '[[expected]]\ntests = ["a"]',
        '[[expected]]\nreason = "x"\ntests = []',
        '[[expected]]\nreason = "x"\ntests = ["a", "a"]',
        '[[wrong]]\nreason = "x"\ntests = ["a"]',
    ],
)
def test_a_ledger_without_reasons_or_with_doubles_is_refused(modules, tmp_path, text):
    (tmp_path / "ledger.toml").write_text(text)
    with pytest.raises(ValueError):
        modules[0].load(tmp_path / "ledger.toml")


def test_cases_that_are_chosen_one_and_all_fold_into_one_pattern(modules):
    ledger, _ = modules
    cases = ["f.py::T_param_0_{a=1}::t", "f.py::T_param_1_{a=2}::t", "f.py::u[x]", "f.py::u[y]", "f.py::v"]
    assert ledger.folded(cases[:3], cases) == ["f.py::T_param_*::t", "f.py::u[x]"]
    assert ledger.Patterns(["f.py::T_param_*::t"]).find("tests/f.py::T_param_0_{a=1}::t")


def test_the_ledger_of_this_repository_can_be_read(modules):
    known = modules[0].load()
    assert known.excludes("tests/cupyx_tests/test_cutensor.py::TestX::test_y")
