"""``python -m tensorserve ARGUMENTS``: runs the program in place of the interpreter."""

import os
import sys

from tensorserve.binary import find_binary
from tensorserve.errors import Error


def main() -> None:
    """Replaces this process by the program, so that signals and the exit status are its own."""
    try:
        binary = find_binary()
        os.execv(binary, [binary, *sys.argv[1:]])
    except (Error, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
