"""``a.flags``: contiguity and ownership, by attribute or by key. Read-only, as CuPy's."""

from __future__ import annotations


class Flags:
    _names = {"C_CONTIGUOUS": "c_contiguous", "F_CONTIGUOUS": "f_contiguous", "OWNDATA": "owndata"}

    def __init__(self, c_contiguous: bool, f_contiguous: bool, owndata: bool) -> None:
        self._flags = (c_contiguous, f_contiguous, owndata)

    c_contiguous = property(lambda self: self._flags[0])
    f_contiguous = property(lambda self: self._flags[1])
    owndata = property(lambda self: self._flags[2])
    fnc = property(lambda self: self._flags[1] and not self._flags[0])
    forc = property(lambda self: self._flags[1] or self._flags[0])

    def __getitem__(self, name: str) -> bool:
        if name not in self._names:
            raise KeyError(f"{name} is not defined for cupy.ndarray.flags")
        return getattr(self, self._names[name])

    def __repr__(self) -> str:
        return "\n".join(f"  {name} : {self[name]}" for name in self._names)
