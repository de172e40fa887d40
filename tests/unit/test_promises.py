"""Holders of grants that this server has yet to see: how many may wait, and for how long."""

from types import SimpleNamespace

import pytest

from rgpu.errors import ServerBusy
from rgpu.server.keys import Person
from rgpu.server.promises import MOST_EARLY, Promises


def test_one_persons_crowd_is_bounded():
    """Any revision may be claimed, and each claim is kept for seconds."""
    promises = Promises(SimpleNamespace(), [], SimpleNamespace(), SimpleNamespace())
    claim = SimpleNamespace(revision=1 << 60)
    greedy, other = Person("key of greedy", "greedy"), Person("key of other", "other")
    for number in range(MOST_EARLY):
        assert promises.behind(number, claim, greedy)
    with pytest.raises(ServerBusy, match="wait already"):
        promises.behind(MOST_EARLY, claim, greedy)
    assert promises.behind(0, claim, greedy)  # asked again by who waits
    assert promises.behind("another", claim, other)
    assert not promises.due()
