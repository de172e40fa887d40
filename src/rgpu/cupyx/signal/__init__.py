"""``cupyx.signal``: signal processing beyond SciPy.

Each function is a few array operations, which go to the device like any program's: nothing here waits, and
nothing is known to the server. Names that are not there say so when used.
"""

from rgpu import surface
from rgpu.cupyx.signal._cepstrum import complex_cepstrum as complex_cepstrum
from rgpu.cupyx.signal._cepstrum import inverse_complex_cepstrum as inverse_complex_cepstrum
from rgpu.cupyx.signal._cepstrum import minimum_phase as minimum_phase
from rgpu.cupyx.signal._cepstrum import real_cepstrum as real_cepstrum
from rgpu.cupyx.signal._filtering import channelize_poly as channelize_poly
from rgpu.cupyx.signal._filtering import convolve1d2o as convolve1d2o
from rgpu.cupyx.signal._filtering import convolve1d3o as convolve1d3o
from rgpu.cupyx.signal._filtering import firfilter as firfilter
from rgpu.cupyx.signal._filtering import firfilter2 as firfilter2
from rgpu.cupyx.signal._filtering import firfilter_zi as firfilter_zi
from rgpu.cupyx.signal._filtering import freq_shift as freq_shift
from rgpu.cupyx.signal._radar import ca_cfar as ca_cfar
from rgpu.cupyx.signal._radar import cfar_alpha as cfar_alpha
from rgpu.cupyx.signal._radar import mvdr as mvdr
from rgpu.cupyx.signal._radar import pulse_compression as pulse_compression
from rgpu.cupyx.signal._radar import pulse_doppler as pulse_doppler

__getattr__, __dir__ = surface.face(__name__)
