"""``python -m rgpu.smi`` is ``rgpu-smi``."""

import sys

from rgpu.smi.main import main

sys.exit(main())
