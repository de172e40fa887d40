"""Classes of SciPy's (and cupyx's) whose objects stay on a worker, and what a client may do with one.

One line a class: methods that give arrays or numbers | methods that make another object | attributes that may be read
| those that may be assigned | class methods that make one | class methods that give arrays. ``<`` names the bases.
Nothing that is not here can be reached: there is no getattr by a name from the wire.
"""

from __future__ import annotations

from typing import NamedTuple

_POLYNOMIAL = "c x axis extrapolate"
_LTI = "bode freqresp impulse step output"
_CONVERT = "to_tf to_zpk to_ss"
_NDPOINTS = "points values is_complex"

_TABLE = {
    "interpolate.PPoly": f"__call__ integrate solve roots extend | derivative antiderivative | {_POLYNOMIAL} | "
    f"{_POLYNOMIAL} | construct_fast from_spline from_bernstein_basis",
    "interpolate.BPoly": f"__call__ integrate extend | derivative antiderivative | {_POLYNOMIAL} | "
    f"{_POLYNOMIAL} | construct_fast from_derivatives from_power_basis",
    "interpolate.NdPPoly": "__call__ integrate | integrate_1d derivative antiderivative | c x extrapolate | | "
    "construct_fast",
    "interpolate.CubicHermiteSpline<interpolate.PPoly": "",
    "interpolate.PchipInterpolator<interpolate.CubicHermiteSpline": "",
    "interpolate.Akima1DInterpolator<interpolate.CubicHermiteSpline": "",
    "interpolate.CubicSpline<interpolate.CubicHermiteSpline": "",
    "interpolate.BSpline": "__call__ integrate | derivative antiderivative insert_knot | "
    "t c k tck axis extrapolate | t c k axis extrapolate | construct_fast basis_element | design_matrix",
    "interpolate.NdBSpline": "__call__ | | t c k extrapolate | | | design_matrix",
    "interpolate.BarycentricInterpolator": "__call__ set_yi add_xi derivative derivatives | | xi yi wi n dtype",
    "interpolate.KroghInterpolator": "__call__ derivative derivatives | | xi yi c n dtype",
    "interpolate.RBFInterpolator": "__call__ | | y d smoothing kernel epsilon neighbors",
    "interpolate.RegularGridInterpolator": "__call__ | | grid values method bounds_error fill_value | "
    "bounds_error fill_value method values",
    "interpolate.interp1d": "__call__ | | x y axis bounds_error fill_value copy | bounds_error fill_value",
    "interpolate.LinearNDInterpolator": f"__call__ | | {_NDPOINTS}",
    "interpolate.NearestNDInterpolator": f"__call__ | | {_NDPOINTS}",
    "interpolate.CloughTocher2DInterpolator": f"__call__ | | {_NDPOINTS}",
    "interpolate.UnivariateSpline": "__call__ get_knots get_coeffs get_residual integral derivatives roots "
    "set_smoothing_factor | derivative antiderivative",
    "interpolate.InterpolatedUnivariateSpline<interpolate.UnivariateSpline": "",
    "interpolate.LSQUnivariateSpline<interpolate.UnivariateSpline": "",
    "spatial.KDTree": "query query_ball_point query_ball_tree query_pairs count_neighbors sparse_distance_matrix | | "
    "data leafsize m n maxes mins size boxsize",
    "spatial.Delaunay": "find_simplex | | points simplices neighbors equations coplanar vertex_neighbor_vertices "
    "vertex_to_simplex transform ndim npoints nsimplex min_bound max_bound paraboloid_scale paraboloid_shift",
    "signal.CZT": "__call__ points | | n m w a",
    "signal.ZoomFFT<signal.CZT": "| | fn fs endpoint",
    "signal.lti": f"{_LTI} | to_discrete {_CONVERT} | inputs outputs dt zeros poles | zeros poles",
    "signal.dlti": f"{_LTI} | {_CONVERT} | inputs outputs dt zeros poles | dt zeros poles",
    "signal.StateSpace": f"| {_CONVERT} | A B C D | A B C D",
    "signal.TransferFunction": f"| {_CONVERT} | num den | num den",
    "signal.ZerosPolesGain": f"| {_CONVERT} | gain | gain",
    "signal.TransferFunctionContinuous<signal.TransferFunction signal.lti": "",
    "signal.TransferFunctionDiscrete<signal.TransferFunction signal.dlti": "",
    "signal.ZerosPolesGainContinuous<signal.ZerosPolesGain signal.lti": "",
    "signal.ZerosPolesGainDiscrete<signal.ZerosPolesGain signal.dlti": "",
    "signal.StateSpaceContinuous<signal.StateSpace signal.lti": "",
    "signal.StateSpaceDiscrete<signal.StateSpace signal.dlti": "",
    "sparse.linalg.SuperLU": "solve | | shape nnz perm_r perm_c L U",
}

#: functions that make such an object
MAKERS = """
    interpolate.make_interp_spline interpolate.make_lsq_spline
    sparse.linalg.splu sparse.linalg.spilu""".split()

PREFIX = "cupyx.scipy."


class Class(NamedTuple):
    """What may be done with objects of one class; ``bases`` are names of other declared classes."""

    name: str
    bases: tuple[str, ...]
    methods: tuple[str, ...]
    makers: tuple[str, ...]
    attributes: tuple[str, ...]
    settable: tuple[str, ...]
    constructors: tuple[str, ...]
    functions: tuple[str, ...]


def _declared(head: str, text: str) -> Class:
    name, _, bases = head.partition("<")
    columns = [tuple(column.split()) for column in text.split("|")]
    methods, makers, attributes, settable, constructors, functions = [*columns, *[()] * 6][:6]
    return Class(name, tuple(bases.split()), methods, makers, attributes, settable, constructors, functions)


CLASSES: dict[str, Class] = {made.name: made for made in (_declared(*line) for line in _TABLE.items())}
#: the classes that a program may name; the others are what their objects turn out to be
PUBLIC = tuple(name for name in CLASSES if not name.endswith(("Continuous", "Discrete")))


def lineage(name: str) -> list[Class]:
    """A class and what it is derived from, nearest first."""
    found = [CLASSES[name]]
    for base in CLASSES[name].bases:
        found += lineage(base)
    return found


def may(name: str, kind: str, what: str) -> bool:
    """Whether ``what`` is declared for a class: 'methods', 'makers', 'attributes', 'settable', 'constructors' ..."""
    return name in CLASSES and any(what in getattr(cls, kind) for cls in lineage(name))
