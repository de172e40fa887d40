"""Hypothesis strategies out of the declarations: for every Kind what fits it, so for every message.

``commands()`` gives well-formed messages of any command, with handles that may exist and values that may
decode; ``mutated`` breaks exactly one place of one, as an attacker or a bug would.
"""

import copy

from hypothesis import strategies as st

from rgpu.wire import declare, ops, values

SMALL = 8  # extents, counts: what is built must cost next to nothing
EDGES = [0, 1, 2, 3, 255, 2**16 - 1, 2**31, 2**32 + 1, 2**62, 2**63 - 1, 2**64 - 1, -1, -(2**31), -(2**63)]

handles = st.integers(1, 12) | st.sampled_from([2**40, 2**63, 2**64 - 1])
dtype_texts = st.sampled_from(["<f8", "<f4", "<i4", "|b1", "<c16", "|u1", "|V8", "|V0", "|S0", "<U3", "<f2"])
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from(EDGES)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=16),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def dtypes(draw, depth=2):
    form = draw(st.integers(0, 5))
    if not depth or form < 4:
        return draw(dtype_texts)
    if form == 4:
        return [1, draw(dtypes(depth=depth - 1)), draw(st.lists(st.integers(0, 3), max_size=2))]
    fields = [[f"f{i}", draw(dtypes(depth=depth - 1)), 16 * i] for i in range(draw(st.integers(0, 3)))]
    return [0, fields, draw(st.integers(0, 64)), draw(st.booleans())]


small_ints = st.integers(-SMALL, SMALL)
plain = st.none() | st.booleans() | small_ints | st.floats() | st.text(max_size=6) | st.binary(max_size=16)


def tagged(inner):
    """Every tag of ``wire.values``, mostly well-formed."""
    listed = st.lists(inner, max_size=4)
    return st.one_of(
        listed.map(lambda x: [values.LIST, *x]),
        listed.map(lambda x: [values.TUPLE, *x]),
        handles.map(lambda x: [values.HANDLE, x]),
        dtypes().map(lambda x: [values.DTYPE, x]),
        st.tuples(inner, inner, inner).map(lambda x: [values.SLICE, *x]),
        st.tuples(st.floats(), st.floats()).map(lambda x: [values.COMPLEX, *x]),
        st.tuples(dtypes(), st.binary(max_size=16)).map(lambda x: [values.SCALAR, *x]),
        st.just([values.ELLIPSIS]),
        st.tuples(dtypes(), st.lists(st.integers(-1, 4), max_size=3), st.binary(max_size=64)).map(
            lambda x: [values.ARRAY, *x]
        ),
        st.text("0123456789-", max_size=20).map(lambda x: [values.BIGINT, x]),
        listed.map(lambda x: [values.DICT, *x]),
        small_ints.map(lambda x: [values.INT, x]),
        st.tuples(handles, dtype_texts, st.just([2])).map(lambda x: [values.RESULT, *x]),
    )


wire_values = st.recursive(plain, tagged, max_leaves=6) | tagged(plain)


def of_kind(kind):
    """What ``kind.check`` accepts (or, for values, mostly does)."""
    if kind is declare.HANDLE:
        return handles
    if kind in (values.VALUE, values.OPERAND):
        return wire_values if kind is values.VALUE else handles | wire_values
    if kind is values.DTYPE_KIND:
        return dtypes()
    if isinstance(kind, declare.Optional):
        return st.none() | of_kind(kind.inner)
    if isinstance(kind, declare.ListOf):
        return st.lists(of_kind(kind.inner), max_size=min(4, kind.limit))
    if isinstance(kind, declare.MapOf):
        return st.dictionaries(st.text(max_size=8), of_kind(kind.inner), max_size=2)
    if isinstance(kind, declare.Text):
        return st.text(max_size=min(20, kind.limit))
    if isinstance(kind, declare.Blob):
        return st.binary(max_size=min(64, kind.limit))
    if isinstance(kind, declare._Int):
        low, high = kind.bounds
        edges = [x for x in EDGES if low <= x <= high]
        return st.integers(max(low, -SMALL), min(high, 300)) | st.sampled_from(edges)
    if kind is declare.BOOL:
        return st.booleans()
    if kind is declare.SCALAR:
        return plain.filter(lambda x: not isinstance(x, (list, dict)))
    if kind is declare.NUMBER:
        return small_ints | st.floats()
    raise TypeError(f"no strategy for {kind!r}: a new kind needs one here")


def command(declared):
    return st.tuples(*[of_kind(kind) for _, kind in declared.fields]).map(lambda x: [declared.tag, *x])


def commands(without=("Bye",)):
    return st.one_of(*[command(d) for d in ops.Command.registry.values() if d.__name__ not in without])


@st.composite
def mutated(draw, source):
    """A message with one place replaced, removed or doubled."""
    message = copy.deepcopy(draw(source))  # the strategies' constants are shared
    place, how = message, draw(st.integers(0, 2))
    while place and draw(st.booleans()):
        inner = [x for x in place if isinstance(x, list) and x]
        if not inner:
            break
        place = draw(st.sampled_from(inner))
    index = draw(st.integers(0, len(place) - 1)) if place else 0
    if not place or how == 2:
        place.insert(index, draw(junk))
    elif how == 1:
        del place[index]
    else:
        place[index] = draw(junk)
    return message
