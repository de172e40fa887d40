"""The recipes under deploy/: well-formed, consistent with the program, and fenced as docs/deploy.md promises."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rgpu import cli, config
from rgpu._version import __version__
from rgpu.server.main import build_parser

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SERVER_VARIABLES = {setting.variable for setting in config.ServerConfig.settings.values()}
CLIENT_VARIABLES = {setting.variable for setting in config.ClientConfig.settings.values()}


def objects():
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def of_kind(kind):
    (found,) = [one for one in objects() if one["kind"] == kind]
    return found


def container():
    (one,) = of_kind("DaemonSet")["spec"]["template"]["spec"]["containers"]
    return one


# Kubernetes


def test_every_object_has_a_kind_a_name_and_its_place():
    kinds = {one["kind"]: one["apiVersion"] for one in objects()}
    assert kinds == {"Namespace": "v1", "Secret": "v1", "Service": "v1", "DaemonSet": "apps/v1"}
    for one in objects():
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", one["metadata"]["name"])
        assert one["kind"] == "Namespace" or one["metadata"]["namespace"] == of_kind("Namespace")["metadata"]["name"]


def test_no_anchors_that_kubectl_would_not_follow():
    text = (DEPLOY / "kubernetes.yaml").read_text()
    assert "<<:" not in text and not re.search(r": [&*]\w", text)


def test_selectors_ports_and_volumes_belong_together():
    spec = of_kind("DaemonSet")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    service = of_kind("Service")["spec"]
    assert service["clusterIP"] == "None" and service["selector"].items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert [ports[port["targetPort"]] for port in service["ports"]] == [config.DEFAULT_PORT]
    pod = spec["template"]["spec"]
    assert {mount["name"] for mount in container()["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert secrets == [of_kind("Secret")["metadata"]["name"]]


def test_the_pod_has_no_rights_it_does_not_need():
    pod, one = of_kind("DaemonSet")["spec"]["template"]["spec"], container()
    assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
    assert not any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
    fence = one["securityContext"]
    assert fence["allowPrivilegeEscalation"] is False and fence["readOnlyRootFilesystem"] is True
    assert fence["capabilities"]["drop"] == ["ALL"] and "privileged" not in fence
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert one["resources"]["limits"]["memory"] and one["resources"]["requests"]


def test_the_pod_says_what_the_server_understands():
    one = container()
    build_parser().parse_args([argument.replace("$(NODE_NAME)", "node") for argument in one["args"]])
    names = {entry["name"] for entry in one["env"]}
    assert {name for name in names if name.startswith("RGPU_")} <= SERVER_VARIABLES | {"RGPU_KEYS"}
    assert one["image"] == f"rgpu-server:{__version__}"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        python, flag, code = one[probe]["exec"]["command"]
        assert (python, flag) == ("python", "-c") and "/healthz" in code
        ast.parse(code)
    data = of_kind("Secret")
    assert set(data["stringData"].values()) == {""}  # nobody runs with keys that everybody knows


# Docker


def stages(name):
    """The instructions of each stage, continued lines joined."""
    text = re.sub(r"\\\n", " ", (DEPLOY / f"{name}.Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = []
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest.strip()))
    return found


@pytest.mark.parametrize("name", ["server", "client"])
def test_a_dockerfile(name):
    known = "FROM RUN COPY WORKDIR ARG ENV USER VOLUME EXPOSE HEALTHCHECK STOPSIGNAL ENTRYPOINT CMD".split()
    for stage in stages(name):
        assert {word for word, _ in stage} <= set(known)
        assert re.match(r"python:3\.\d+-slim-\w+", dict(stage)["FROM"])  # a tag that does not move far
        for word, rest in stage:
            if word == "RUN" and "apt-get install" in rest:
                assert "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists" in rest
            if word == "RUN" and "pip " in rest:
                assert "--no-cache-dir" in rest
            if word == "COPY":
                assert all((ROOT / source).exists() for source in rest.split()[:-1])
            if word in ("ENTRYPOINT", "CMD"):
                assert isinstance(ast.literal_eval(rest), list)  # the process itself gets the signals
    last = stages(name)[-1]
    assert dict(last)["USER"] not in ("root", "0")
    assert [word for word, _ in last].index("USER") > max(i for i, (word, _) in enumerate(last) if word == "RUN")


def test_the_images_settings_are_settings():
    variables = set(re.findall(r"\b(RGPU_\w+)=", dict(stages("server")[-1])["ENV"]))
    assert variables and variables <= SERVER_VARIABLES | {"RGPU_KEYS"}
    notes = (DEPLOY / "client.Dockerfile").read_text()
    assert set(re.findall(r"\b(RGPU_\w+)=", notes)) <= CLIENT_VARIABLES


# systemd and shell


def test_the_unit_starts_what_there_is():
    text = (DEPLOY / "rgpu-server.service").read_text()
    command = re.search(r"^ExecStart=(.+)$", text, re.MULTILINE)[1].split()
    assert command[0].endswith("/rgpu-server")
    build_parser().parse_args(command[1:])
    fences = "NoNewPrivileges=yes ProtectSystem=strict DevicePolicy=closed CapabilityBoundingSet= User=rgpu"
    assert set(fences.split()) <= set(text.splitlines())


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_accepts_the_unit(tmp_path):
    text = (DEPLOY / "rgpu-server.service").read_text()
    unit = tmp_path / "rgpu-server.service"
    unit.write_text(re.sub(r"/opt/rgpu/bin/rgpu-server", "/bin/true", text))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    ours = [line for line in done.stderr.splitlines() if "rgpu-server" in line]
    assert not ours, ours


_ACROSS_FILES = "--exclude=SC2034,SC2154"  # variables that one script sets for another
SHELLCHECK = shutil.which("shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
SCRIPTS = [
    path
    for folder in (ROOT / "scripts", ROOT / "deploy", ROOT / ".ci")
    for path in sorted(folder.rglob("*"))
    if path.is_file() and (path.suffix == ".sh" or path.read_bytes().startswith(b"#!/usr/bin/env bash"))
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_shell_script(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    if SHELLCHECK:
        command = [SHELLCHECK, "--shell=bash", "--severity=warning", _ACROSS_FILES, script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout


def test_the_slurm_job_says_what_the_programs_understand():
    text = (DEPLOY / "slurm" / "rgpu.sbatch").read_text()
    text = re.sub(r"\$\(printf .*?\) ", "--endpoint n1:1 --endpoint n2:1 ", text).replace("\\\n", " ")
    commands = [shlex.split(line) for line in re.findall(r"^\s*((?:rgpu|srun) .*?)(?: &)?$", text, re.MULTILINE)]
    token = next(words for words in commands if words[:3] == ["rgpu", "token", "create"])
    options = cli._parser("token").parse_args(token[1:])
    assert options.endpoint == ["n1:1", "n2:1"]
    served = next(words for words in commands if words[0] == "srun")
    arguments = served[served.index("rgpu-server") + 1 :]
    assert build_parser().parse_args(arguments).keys == "$work/keys"
    assert ["rgpu", "run", "--", "$@"] in commands


def test_the_documented_files_are_there():
    text = (ROOT / "docs" / "deploy.md").read_text()
    for name in set(re.findall(r"deploy/[\w./-]+\w", text)):
        assert (ROOT / name).exists(), name
