"""A profile as a text: the costly lines of a program, where it waited without saying so, and what to write instead.

Works on the dictionaries that ``client.profile`` makes, of this process or read from a file. Touches no device.
"""

from __future__ import annotations

import linecache
import os
from typing import Any

SHOWN = 20  # lines of the table
_OFTEN = 3  # times that a line waits before it is worth a remark
_CHATTY = 2000  # operations of one line, with hardly any data in each, that look like a loop over elements
_UPLOADED = 16 << 20  # bytes that a line sends in several turns before it is worth a remark

_ONE_NUMBER = (
    "a number of Python is wanted, so the program stops until the device has it. Leave it an array (`total += loss` "
    "works without waiting), and read it every N steps or all at once at the end: cp.stack(losses).get()"
)
_ADVICE = {
    **dict.fromkeys(("__float__", "__int__", "__complex__", "__index__", "item"), _ONE_NUMBER),
    "__bool__": "`if` and `while` need the answer here. Choose on the device (cp.where, cp.maximum, cp.clip), or test "
    "only every N steps",
    "__repr__": "printing an array fetches what is printed: print every N steps",
    "__str__": "printing an array fetches what is printed: print every N steps",
    "__format__": "printing an array fetches what is printed: print every N steps",
    "tolist": _ONE_NUMBER,
    "__array_function__": "a function of NumPy got an array of the device: call cupy's",
}
_FOR = {
    "values": "the array is copied to this process: keep it on the device, or fetch several at once (cp.stack, "
    "cp.concatenate), or only the part that is needed: x[:10].get()",
    "completion": "commands run in order by themselves, and reading waits for what it reads: a synchronize is needed "
    "only where time is measured or another program looks",
    "room": "more was sent than the link or the device takes: the program is as fast as those; see `rgpu netperf`",
}
_SIZE_UNKNOWN = (
    "how large the result is depends on the values, which only the device has. A mask keeps the size: "
    "cp.where(mask, x, 0), (x * mask).sum(), and x[mask] = v does not wait either"
)
_LEARNED = (
    "the layout of the result was asked for; another call with the same shapes, dtypes and options does not wait. "
    "Shapes that change in each step are asked for each time"
)


def text(profile: dict[str, Any]) -> str:
    """The report of one process."""
    lines = sorted(profile["lines"], key=_weight, reverse=True)
    waits = [wait for line in lines for wait in line["waits"]]
    waited, seconds = sum(wait["seconds"] for wait in waits), profile["seconds"]
    operations = sum(sum(line["operations"].values()) for line in lines)
    said = [
        f"rgpu profile of {' '.join(profile['program']) or 'python'} (process {profile['pid']}): {seconds:.2f} s, "
        f"{operations:,} operations, {_size(sum(line['sent'] for line in lines))} sent, "
        f"{_size(sum(line['received'] for line in lines))} received",
        f"waited {waited:.2f} s ({_percent(waited, seconds)}) in {sum(wait['count'] for wait in waits):,} waits",
        "",
        f"{'waits':>8} {'waited':>9} {'operations':>11} {'sent':>9} {'received':>9}  line",
    ]
    said += [_row(line) for line in lines[:SHOWN]]
    if len(lines) > SHOWN:
        said.append(f"{'':>50}  and {len(lines) - SHOWN} more lines")
    remarks = [remark for line in lines for remark in _remarks(line)]
    nothing = "Nothing that waits or sends without need was found."
    said += ["", "What could be written otherwise:" if remarks else nothing]
    for remark in remarks:
        said += ["", *remark]
    return "\n".join(said)


def _weight(line: dict[str, Any]) -> tuple:
    return sum(w["seconds"] for w in line["waits"]), sum(line["operations"].values()), line["sent"]


def _row(line: dict[str, Any]) -> str:
    waits, waited = sum(w["count"] for w in line["waits"]), sum(w["seconds"] for w in line["waits"])
    operations = sum(line["operations"].values())
    return (
        f"{waits or '-':>8} {f'{waited:.3f} s' if waits else '-':>9} {operations or '-':>11} "
        f"{_size(line['sent']):>9} {_size(line['received']):>9}  {_where(line)}"
    )


def _where(line: dict[str, Any]) -> str:
    if not line["line"]:
        return "(no line of the program)"
    source = linecache.getline(line["file"], line["line"]).strip()
    return f"{_short(line['file'])}:{line['line']}" + (f"  {source[:80]}" if source else "")


def _short(path: str) -> str:
    try:
        relative = os.path.relpath(path)
    except (ValueError, OSError):  # another drive, or a folder that is gone
        return path
    return path if relative.startswith("..") else relative


def _remarks(line: dict[str, Any]) -> list[list[str]]:
    """Each a few lines of text: where, what happens, what to write instead."""
    found = []
    for wait in line["waits"]:
        if wait["count"] >= _OFTEN:
            called = f"{wait['call']}()" if wait["call"] else "it"
            found.append(
                [
                    _where(line),
                    f"    {called} waits for {wait['for']}: {wait['count']:,} times, {wait['seconds']:.3f} s",
                    f"    {advice(wait['call'], wait['for'])}",
                ]
            )
    uploads, operations = line["operations"].get("upload", 0), sum(line["operations"].values())
    if uploads >= _OFTEN and line["sent"] >= _UPLOADED:
        found.append(
            [
                _where(line),
                f"    sends {_size(line['sent'])} in {uploads:,} messages",
                "    Data that does not change is sent once, before the loop: x = cp.asarray(host)",
            ]
        )
    if operations >= _CHATTY and line["operations"].get("view", 0) * 2 >= operations:
        found.append(
            [
                _where(line),
                f"    takes {operations:,} single elements or slices",
                "    A loop over elements is one kernel each: work on whole arrays, or write a cp.ElementwiseKernel",
            ]
        )
    return found


def advice(call: str, waited_for: str) -> str:
    """What to write instead of a call that waits for values, completion, room or what a function returns."""
    if call in _ADVICE:
        return _ADVICE[call]
    if waited_for in _FOR:
        return _FOR[waited_for]
    from rgpu.wire.functions import BY_NAME

    function = BY_NAME.get(waited_for)
    if waited_for.endswith(".synchronize"):
        return _FOR["completion"]
    if waited_for == "ndarray.getitem" or function is not None and "wait" in function.kind:
        return _SIZE_UNKNOWN
    if function is not None and function.kind == "internal":
        return "the device is asked about itself: keep the answer, or ask less often"
    return _LEARNED


def _size(nbytes: int) -> str:
    if not nbytes:
        return "-"
    size, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"
