"""Says, before anything is installed, what this machine lacks and what mends it. Runs on any Python 3."""

import shutil
import sys


def main() -> int:
    problems = []
    if sys.version_info < (3, 11):
        problems.append(
            "Python %d.%d is too old; edgellm needs 3.11 or newer: make PYTHON=/path/to/python3.11"
            % sys.version_info[:2]
        )
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl")):
        problems.append("no C++ compiler; llama.cpp is compiled here: apt-get install g++, or xcode-select --install")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        problems.append("this Python has no venv: apt-get install python3-venv")
    for problem in problems:
        print("error: " + problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
