"""What ``rgpu.stats()`` counts, where the bytes leave."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Of one device's stream. ``replayed``: commands that left as repetitions. ``round_trips``: times the client
    waited for an answer. ``direct_bytes`` left the device for another one by themselves, ``relayed_bytes`` had to pass
    through the client. ``recalled`` uploads and their bytes were not sent: the worker had them already."""

    commands: int = 0
    replayed: int = 0
    round_trips: int = 0
    batches: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    direct_bytes: int = 0
    relayed_bytes: int = 0
    recalled: int = 0
    recalled_bytes: int = 0

    def add(self, other: Counters) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
