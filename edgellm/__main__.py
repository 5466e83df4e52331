"""`python -m edgellm`: the command, where it is not on the path."""

import sys

from edgellm.cli.start import main

if __name__ == "__main__":
    sys.exit(main())
