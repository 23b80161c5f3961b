"""`python -m ringdp`: the same as the command `ringdp`."""

import sys

from ringdp.cli.main import main

sys.exit(main())
