"""`python -m minigraph`: the command line."""

import sys

from minigraph.cli import main

sys.exit(main())
