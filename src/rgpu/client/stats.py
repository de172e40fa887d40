"""What ``rgpu.stats()`` counts, where the bytes leave."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Of one device's stream. ``round_trips``: times the client waited for an answer."""

    commands: int = 0
    round_trips: int = 0
    batches: int = 0
