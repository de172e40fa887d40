"""The soak of scripts/soak, small: every book agrees with its holders, nothing is lent twice, who waits is woken."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.etcds import needs_etcd

SOAK = Path(__file__).parents[2] / "scripts" / "soak"


@needs_etcd
def test_a_small_soak():
    command = [sys.executable, str(SOAK), "--servers", "40", "--leases", "200", "--alone", "40", "--clients", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is lent twice" in done.stdout
    latencies = re.findall(r"p50 ([\d.]+) ms, p99 ([\d.]+) ms", done.stdout)
    assert len(latencies) == 4 and all(0 < float(p50) <= float(p99) for p50, p99 in latencies)
