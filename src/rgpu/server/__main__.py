"""``python -m rgpu.server`` is ``rgpu-server``."""

import sys

from rgpu.server.main import main

sys.exit(main())
