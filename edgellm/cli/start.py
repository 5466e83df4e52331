"""The first lines of the `edgellm` command, and its last: Ctrl+C never shows a traceback.

While Python reads the modules of a command there is nothing yet to clean up, and nobody to turn a KeyboardInterrupt
into an exit code; so the signal ends the process, as it ends any other program. The same holds after the command's end.
Python's own start, before the first line here, is out of reach.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` without the milliseconds that importing it takes
import sys

_INTERRUPTED = 130  # 128 + SIGINT


def main() -> int:
    """Run the command line and return its exit code."""
    heeded = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler  # else somebody wants it ignored
    if heeded:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from edgellm.cli.main import main as command

    if not heeded:
        return command()
    try:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        return command()
    except KeyboardInterrupt:  # just before the command began, or while it was ending
        return _INTERRUPTED
    finally:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
