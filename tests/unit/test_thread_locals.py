"""How kernels' binaries reach thread-local variables: the fast way only where the C library keeps registers in it."""

import platform

import pytest

from rgpu.server.kernels_cpu import build


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only there are two ways")
@pytest.mark.parametrize(("version", "fast"), [("glibc 2.36", False), ("glibc 2.40", True), ("", False)])
def test_descriptors_want_a_glibc_that_keeps_registers(monkeypatch, version, fast):
    monkeypatch.setattr(build.os, "confstr", lambda name: version)
    monkeypatch.setattr(build, "compiler", lambda: ("g++", "g++ 12"))
    assert build._thread_locals("g++") == (("-mtls-dialect=gnu2",) if fast else ())
