"""Every named function a worker can run, one word each, grouped by what its result depends on.

Names are CuPy's dotted paths below ``cupy`` (``linalg.solve``) or full paths for ``cupyx``. The
position in the table is the identifier on the wire, and the table is part of the protocol
fingerprint, so two peers that disagree about it refuse each other by name.
"""

from __future__ import annotations

from typing import NamedTuple

from rgpu.wire import classes

_TABLE = {
    # NumPy ufuncs of one and two operands: shape by broadcasting, dtype by NumPy's own resolution.
    "unary": """
        absolute abs negative positive sign sqrt cbrt square reciprocal exp exp2 expm1 log log2 log10 log1p
        sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh degrees radians deg2rad rad2deg
        asin acos atan asinh acosh atanh bitwise_invert bitwise_count
        floor ceil trunc rint fabs conjugate conj isfinite isinf isnan signbit logical_not invert bitwise_not
        i0 sinc fix""",
    "binary": """
        add subtract multiply divide true_divide floor_divide remainder mod fmod power pow float_power
        arctan2 atan2 hypot maximum minimum fmax fmin copysign nextafter ldexp logaddexp logaddexp2 heaviside
        bitwise_and bitwise_or bitwise_xor left_shift right_shift bitwise_left_shift bitwise_right_shift
        logical_and logical_or logical_xor equal not_equal less less_equal greater greater_equal gcd lcm""",
    "ufunc": "modf frexp divmod",
    # Reductions over axis=, with keepdims= where CuPy has it.
    "reduce": """
        sum prod mean std var max min amax amin any all ptp argmax argmin median average
        nansum nanprod nanmean nanstd nanvar nanmax nanmin nanargmax nanargmin nanmedian count_nonzero
        linalg.norm""",
    "scan": "cumsum cumprod nancumsum nancumprod",
    # The result has no extents but those of its arguments: NumPy on small stand-ins tells its layout.
    "like": """
        matmul linalg.matmul dot einsum trace trapezoid cross linalg.cross gradient interp unwrap angle
        nan_to_num round around isreal iscomplex isposinf isneginf msort sort_complex select choose
        take_along_axis corrcoef cov polyval isclose digitize searchsorted
        linalg.det linalg.slogdet linalg.inv linalg.pinv linalg.solve linalg.cholesky linalg.qr linalg.svd
        linalg.eigh linalg.eigvalsh linalg.matrix_power linalg.matrix_rank linalg.cond
        polynomial.polynomial.polyval polynomial.polynomial.polyvalfromroots""",
    # Shape and dtype follow from the arguments' layouts and static values, by a rule or as learned.
    "pure": """
        clip ediff1d diff convolve correlate vdot inner outer tensordot kron
        concatenate concat stack vstack hstack dstack column_stack tile roll pad append repeat
        sort argsort partition argpartition lexsort take where
        percentile quantile histogram histogram2d histogramdd
        array_equal array_equiv allclose isin in1d packbits unpackbits tril triu vander diag diagflat tri
        ravel_multi_index unravel_index indices diag_indices diag_indices_from
        tril_indices triu_indices tril_indices_from triu_indices_from
        arange linspace logspace eye identity meshgrid bartlett blackman hamming hanning kaiser
        polyadd polysub poly cumulative_sum cumulative_prod linalg.tensorsolve linalg.tensorinv linalg.eig linalg.eigvals
        fft.fft fft.ifft fft.fft2 fft.ifft2 fft.fftn fft.ifftn fft.rfft fft.irfft fft.rfft2 fft.irfft2 fft.rfftn
        fft.irfftn fft.fftshift fft.ifftshift fft.fftfreq fft.rfftfreq""",
    # The shape of the result depends on the data: the client waits, as CuPy itself synchronizes here.
    "wait": """
        nonzero flatnonzero argwhere unique unique_values unique_counts unique_inverse unique_all extract compress
        delete bincount intersect1d union1d setdiff1d setxor1d roots polymul polyfit
        real_if_close linalg.lstsq""",
    # Change an argument and return nothing.
    "mutate": "copyto place put putmask put_along_axis fill_diagonal ndarray.sort ndarray.partition",
    # What the client's classes need besides CuPy's functions (DESIGN 4: declared, never a getattr).
    "internal": """
        zeros ones full ndarray.fill
        ndarray.getitem ndarray.setitem ndarray.astype ndarray.copy ndarray.byteswap
        ufunc.call ufunc.reduce ufunc.accumulate ufunc.reduceat ufunc.outer ufunc.at
        device.memory device.info stream.create stream.synchronize stream.wait_event stream.query
        graph.begin graph.join graph.end graph.cancel graph.launch graph.upload graph.dot graph.make
        event.create event.record event.synchronize event.query event.elapsed
        memory.create_pool memory.use_pool memory.figures memory.free_all memory.set_limit
        peer.room peer.listen peer.connect peer.forget peer.measure session.entries session.templates session.graphs session.poison random.state random.restore
        nccl.meet nccl.join nccl.group nccl.split nccl.abort nccl.close nccl.state stream.join
        cupyx.scatter_add cupyx.scatter_max cupyx.scatter_min cupyx.rsqrt linalg.strict""",
    # Custom kernels: constructors make handles and compile nothing; launches name their results' layouts.
    "kernel": """
        kernel.elementwise kernel.elementwise.launch kernel.reduction kernel.reduction.launch
        kernel.module kernel.module.load kernel.module.function kernel.module.symbol kernel.launch""",
    # Handles of a declared class: the first argument of a method is the handle.
    "object": """
        cupyx.object.kind cupyx.object.call cupyx.object.make cupyx.object.get cupyx.object.set
        cupyx.object.construct cupyx.object.function
        random.RandomState random.XORWOW random.MRG32k3a random.Philox4x3210 random.Generator
        random.RandomState.seed random.RandomState.random_sample random.RandomState.randint random.RandomState.tomaxint
        random.RandomState.normal random.RandomState.standard_normal random.RandomState.uniform
        random.RandomState.choice random.RandomState.permutation random.RandomState.shuffle
        random.RandomState.multivariate_normal random.RandomState.beta random.RandomState.binomial
        random.RandomState.chisquare random.RandomState.dirichlet random.RandomState.exponential
        random.RandomState.f random.RandomState.gamma random.RandomState.geometric random.RandomState.gumbel
        random.RandomState.hypergeometric random.RandomState.laplace random.RandomState.logistic
        random.RandomState.lognormal random.RandomState.logseries random.RandomState.negative_binomial
        random.RandomState.noncentral_chisquare random.RandomState.noncentral_f random.RandomState.pareto
        random.RandomState.poisson random.RandomState.power random.RandomState.rayleigh
        random.RandomState.standard_cauchy random.RandomState.standard_exponential
        random.RandomState.standard_gamma random.RandomState.standard_t random.RandomState.triangular
        random.RandomState.vonmises random.RandomState.wald random.RandomState.weibull random.RandomState.zipf
        random.BitGenerator.random_raw random.Generator.random random.Generator.integers
        random.Generator.uniform random.Generator.standard_normal random.Generator.exponential
        random.Generator.standard_exponential random.Generator.poisson random.Generator.gamma
        random.Generator.standard_gamma random.Generator.beta random.Generator.binomial random.Generator.chisquare
        random.Generator.dirichlet random.Generator.f random.Generator.geometric random.Generator.hypergeometric
        random.Generator.logseries random.Generator.power""",
}


#: SciPy functions of cupyx.scipy by module: element-wise, learned by signature, decided by the data
_SCIPY = {
    ("sparse", "sparse"): """
        from_dense convert toarray matmul rmatmul add subtract multiply divide compare fact getitem setitem sum
        mean max min argmax argmin diagonal getnnz count_nonzero nonzero maximum minimum transpose reshape setdiag
        sum_duplicates sort_indices eliminate_zeros incomplete_lu eye diags bmat vstack hstack block_diag kron kronsum tril triu
        find eye_array diags_array block_array csgraph.connected_components linalg.lobpcg linalg.norm linalg.spsolve linalg.spsolve_triangular linalg.cg linalg.gmres linalg.cgs
        linalg.bicgstab linalg.minres linalg.lsqr linalg.lsmr linalg.eigsh linalg.svds linalg.matrix_power""",
    ("special", "special"): """
        bdtr bdtrc bdtri beta betainc betaincinv betaln binom boxcox boxcox1p btdtr btdtri cbrt chdtr
        chdtrc chdtri cosdg cosm1 cotdg digamma ellipeinc ellipj ellipk ellipkinc ellipkm1 entr erf erfc
        erfcinv erfcx erfinv exp1 exp10 exp2 expi expit expm1 expn exprel fdtr fdtrc fdtri gamma gammainc
        gammaincc gammainccinv gammaincinv gammaln gammasgn gdtr gdtrc huber i0 i0e i1 i1e inv_boxcox
        inv_boxcox1p j0 j1 k0 k0e k1 k1e kl_div log1p log_expit log_ndtr loggamma logit lpmv
        nbdtr nbdtrc nbdtri ndtr ndtri pdtr pdtrc pdtri poch polygamma pseudo_huber psi radian rel_entr
        rgamma round shichi sici sinc sindg spherical_yn tandg wright_bessel xlog1py xlogy y0 y1 yn zeta
        zetac""",
    ("scipy", "special"): """
        lambertw log_softmax logsumexp softmax sph_harm sph_harm_y""",
    ("scipy", "ndimage"): """
        affine_transform binary_closing binary_dilation binary_erosion binary_fill_holes
        binary_hit_or_miss binary_opening binary_propagation black_tophat convolve convolve1d correlate
        correlate1d fourier_ellipsoid fourier_gaussian fourier_shift
        fourier_uniform gaussian_filter gaussian_filter1d gaussian_gradient_magnitude gaussian_laplace
        grey_closing grey_dilation grey_erosion grey_opening
        laplace map_coordinates maximum maximum_filter maximum_filter1d mean median median_filter minimum
        minimum_filter minimum_filter1d morphological_gradient morphological_laplace percentile_filter
        prewitt rank_filter shift sobel spline_filter spline_filter1d standard_deviation sum sum_labels
        uniform_filter uniform_filter1d variance white_tophat""",
    ("scipy_wait", "special"): "multigammaln",
    ("scipy_wait", "ndimage"): """
        center_of_mass extrema find_objects histogram label maximum_position minimum_position zoom rotate
        distance_transform_edt generate_binary_structure iterate_structure""",
    ("scipy", "signal"): """
        abcd_normalize bilinear_zpk bode buttap butter cheb1ap cheb1ord cheb2ap cheb2ord cheby1
        cheby2 check_COLA check_NOLA chirp choose_conv_method coherence cont2discrete convolve convolve2d
        correlate correlate2d correlation_lags csd cspline1d cspline1d_eval cspline2d czt czt_points dbode
        dfreqresp ellip ellipap ellipord fftconvolve filtfilt firls firwin firwin2 freqresp freqs
        freqs_zpk freqz freqz_sos freqz_zpk gauss_spline gausspulse get_window group_delay hilbert
        hilbert2 iirfilter iirnotch iirpeak impulse istft kaiser_atten kaiser_beta kaiserord lfilter
        lfilter_zi lfiltic lp2bp_zpk lp2bs_zpk lp2hp_zpk lp2lp_zpk lsim max_len_seq medfilt medfilt2d
        minimum_phase oaconvolve order_filter periodogram qspline1d qspline1d_eval qspline2d resample
        savgol_coeffs savgol_filter sawtooth sepfir2d sosfilt sosfilt_zi sosfiltfilt
        sosfreqz spectrogram spline_filter square ss2tf step stft sweep_poly symiirorder1 symiirorder2
        upfirdn welch wiener zoom_fft zpk2tf band_stop_obj morlet morlet2 qmf ricker""",
    ("scipy_wait", "signal"): """
        argrelextrema argrelmax argrelmin decimate deconvolve detrend find_peaks iirdesign invres invresz
        lombscargle peak_prominences peak_widths resample_poly residue residuez unique_roots vectorstrength
        zpk2sos iircomb gammatone sos2tf unit_impulse dlsim dstep dimpulse place_poles findfreqs""",
    ("scipy_warns", "signal"): """
        bilinear buttord lp2bp lp2bs lp2hp lp2lp normalize sos2zpk ss2zpk tf2sos tf2ss tf2zpk zpk2ss""",
    ("scipy", "signal.windows"): """
        barthann bartlett blackman blackmanharris bohman boxcar chebwin cosine exponential flattop
        gaussian general_cosine general_gaussian general_hamming get_window hamming hann kaiser
        kaiser_bessel_derived lanczos nuttall parzen taylor triang tukey""",
    ("scipy", "fft"): """
        dct dctn dst dstn fft fft2 fftfreq fftn fftshift fht idct idctn idst idstn ifft ifft2 ifftn ifftshift ifht
        irfft irfft2 irfftn rfft rfft2 rfftfreq rfftn""",
    ("scipy", "fftpack"): """
        fft fft2 fftn ifft ifft2 ifftn irfft rfft""",
    ("scipy", "linalg"): """
        bandwidth block_diag circulant companion convolution_matrix dft expm fiedler fiedler_companion
        hadamard hankel helmert hilbert khatri_rao leslie lu lu_factor lu_solve solve_triangular toeplitz""",
    ("scipy", "stats"): """
        boxcox_llf entropy trim_mean zmap zscore""",
    ("scipy", "spatial"): """
        distance_matrix""",
    ("scipy", "spatial.distance"): """
        canberra cdist chebyshev cityblock correlation cosine euclidean hamming jensenshannon minkowski
        pdist russellrao sqeuclidean""",
    ("scipy", "interpolate"): """
        barycentric_interpolate interpn krogh_interpolate pchip_interpolate splantider splder""",
}


class Function(NamedTuple):
    """One entry: its number on the wire, CuPy's name, and the kind of its result."""

    id: int
    name: str
    kind: str


_WORDS = [(name, kind) for kind, names in _TABLE.items() for name in dict.fromkeys(names.split())]
_WORDS += [(f"{classes.PREFIX}{name}", "object") for name in (*classes.PUBLIC, *classes.MAKERS)]
_WORDS += [
    (f"cupyx.scipy.{module}.{name}", kind) for (kind, module), names in _SCIPY.items() for name in names.split()
]
TABLE: tuple[Function, ...] = tuple(Function(number, *word) for number, word in enumerate(_WORDS))
BY_NAME: dict[str, Function] = {function.name: function for function in TABLE}
if len(BY_NAME) != len(TABLE) or not all(part.isidentifier() for name in BY_NAME for part in name.split(".")):
    raise TypeError("a function is declared twice in wire/functions.py, or what stands there is no name")


# ---- results that two workers of one stream may have differently -------------------------------------------------

ROUNDING, ORDER = 1, 2
#: correctly rounded by IEEE 754, or no arithmetic at all
_EXACT = set(
    """absolute abs negative positive sign sqrt square reciprocal floor ceil trunc rint fix fabs conjugate conj isfinite
    isinf isnan signbit logical_not invert bitwise_not bitwise_invert bitwise_count add subtract multiply divide
    true_divide floor_divide remainder mod fmod maximum minimum fmax fmin copysign nextafter ldexp bitwise_and
    bitwise_or bitwise_xor left_shift right_shift bitwise_left_shift bitwise_right_shift logical_and logical_or
    logical_xor equal not_equal less less_equal greater greater_equal gcd lcm max min amax amin any all ptp argmax
    argmin nanmax nanmin nanargmax nanargmin count_nonzero around round nan_to_num isreal iscomplex isposinf isneginf
    msort sort_complex select choose take_along_axis digitize searchsorted modf frexp divmod""".split()
)
_ROUNDED_KINDS = "unary binary reduce scan like special scipy scipy_wait scipy_warns sparse object kernel".split()
_ROUNDED = set(
    """convolve correlate vdot inner outer tensordot kron percentile quantile polyadd polysub poly polymul polyfit roots
    cumulative_sum cumulative_prod linspace logspace bartlett blackman hamming hanning kaiser ufunc.call ufunc.reduce
    ufunc.accumulate ufunc.reduceat ufunc.outer cupyx.rsqrt""".split()
)
#: sums that a GPU makes in whatever order its threads come: equal bits cannot be expected of equal devices
_UNORDERED = set(
    """cupyx.scatter_add ufunc.at bincount histogram histogram2d histogramdd kernel.launch kernel.elementwise.launch
    kernel.reduction.launch""".split()
)


def _leeway(function: Function) -> int:
    if function.name in _UNORDERED:
        return ORDER
    if function.name in _ROUNDED or function.name.startswith(("linalg.", "fft.")):
        return ROUNDING
    return ROUNDING if function.kind in _ROUNDED_KINDS and function.name not in _EXACT else 0


#: function -> by what its results may differ between two workers; those that are not here give equal bits
LEEWAY: dict[int, int] = {function.id: level for function in TABLE if (level := _leeway(function))}
#: functions whose answer is about the worker itself: that of the first worker counts
OWN = frozenset(
    f.id
    for f in TABLE
    if f.name.startswith(("device.", "memory.", "peer.", "session.")) or f.name.endswith((".query", ".elapsed"))
)
#: functions by which workers of several devices meet; a pair of workers cannot
MEETING = frozenset(f.id for f in TABLE if f.name.startswith("nccl."))
