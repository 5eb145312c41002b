"""The errors of this package."""

from __future__ import annotations


class Error(Exception):
    """Any error of this package."""


class StartError(Error):
    """The server could not be started, or did not become ready.

    The message ends with the last lines of its log; ``log`` has all that is kept of it.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class UnreachableError(Error, ConnectionError):
    """No response was received: the server does not listen, or the connection was lost."""


class RequestError(Error):
    """The server responded with an error. Its message is the server's own."""

    def __init__(self, message: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        #: The HTTP status.
        self.status = status
        #: The number of seconds after which the server expects a retry to succeed.
        self.retry_after = retry_after


class InvalidRequestError(RequestError, ValueError):
    """The request is wrong (400), too large (413), or of a type that is not supported (415)."""


class AccessError(RequestError, PermissionError):
    """The credentials are missing or wrong (401), or do not allow this (403)."""


class NotFoundError(RequestError, LookupError):
    """There is no such model, version or label (404)."""


class UnavailableError(RequestError):
    """The server is overloaded or stopping (429, 503): the request can be sent again."""


class DeadlineError(RequestError, TimeoutError):
    """The time limit of the request has passed (408, 504)."""


class ModelError(RequestError):
    """The model failed, or an internal error occurred (500)."""


_CLASSES = {
    400: InvalidRequestError,
    401: AccessError,
    403: AccessError,
    404: NotFoundError,
    408: DeadlineError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    429: UnavailableError,
    500: ModelError,
    503: UnavailableError,
    504: DeadlineError,
}


def of_response(status: int, message: str, retry_after: float | None) -> RequestError:
    """The error for a response with this status."""
    return _CLASSES.get(status, RequestError)(message, status, retry_after)
