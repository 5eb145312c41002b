"""``python -m tensorserve.ray``: what the script ``tensorserve-ray`` runs."""

from __future__ import annotations

import signal
import sys

from tensorserve.errors import Error
from tensorserve.ray.options import CANNOT_GO_ON, INTERRUPTED, Options, parse
from tensorserve.transform import TransformError


def main(arguments: list[str] | None = None) -> int:
    """Runs a job, and returns the exit status: that of ``tensorserve transform``."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    # As Ctrl-C: actors end after the batches that they run.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(options)
    except TransformError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status if error.status > 0 else CANNOT_GO_ON
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return CANNOT_GO_ON
    except KeyboardInterrupt:
        print("interrupted: the same command goes on with the rest", file=sys.stderr)
        return INTERRUPTED


def _run(options: Options) -> int:
    try:
        import ray  # noqa: F401
    except ImportError:
        raise Error("Ray is not installed: pip install 'tensorserve[ray]'") from None
    from tensorserve.ray.driver import run

    return run(options)


if __name__ == "__main__":
    sys.exit(main())
