"""Calls the handlers of an inference.py as the SageMaker TensorFlow Serving container does:
`handler(data, context)`, or `input_handler(data, context)` and `output_handler(response, context)`.
"""

import collections
import contextlib
import importlib.util
import io
import json
import os
import sys

# The numbers of the functions, as in crates/workers/src/handlers.rs.
HANDLER, INPUT_HANDLER, OUTPUT_HANDLER = 1, 2, 3

# The number of fields of a call: those of a context, and of its trace.
CONTEXT_FIELDS, CALL_FIELDS = 11, 13


class Context(
    collections.namedtuple(
        "Context",
        "model_name model_version method rest_uri grpc_port channel custom_attributes "
        "request_content_type accept_header content_length timeout",
    )
):
    """The context of a request, which handlers receive."""

    __slots__ = ()

    @property
    def channel(self):
        """A gRPC channel to this server, created on first use; None without grpcio."""
        return self[5] or grpc_channel(self.rest_uri, self.grpc_port)


# The gRPC channels by port.
channels = {}


def grpc_channel(rest_uri, port):
    """The gRPC channel to `port` on the host of `rest_uri`."""
    if port and port not in channels:
        try:
            import grpc
        except ImportError:
            return None
        host = rest_uri.split("//", 1)[1].split("/", 1)[0].rsplit(":", 1)[0]
        channels[port] = grpc.insecure_channel(f"{host}:{port}")
    return channels.get(port)


# Channels do not work in a forked process.
os.register_at_fork(after_in_child=channels.clear)


def context_of(fields):
    """The context of a call with these fields."""
    (
        model_name,
        model_version,
        method,
        rest_uri,
        grpc_port,
        is_port_int,
        custom_attributes,
        request_content_type,
        accept_header,
        content_length,
        timeout,
    ) = fields[:CONTEXT_FIELDS]
    # A script that unpacks the tuple gets the channel only if it has imported grpc. Everyone else
    # is spared the import, and gets it from the property.
    channel = grpc_channel(rest_uri, grpc_port) if "grpc" in sys.modules else None
    return Context(
        model_name,
        model_version,
        method,
        rest_uri,
        int(grpc_port) if is_port_int and grpc_port else grpc_port,
        channel,
        custom_attributes,
        request_content_type,
        accept_header,
        int(content_length) if content_length is not None else None,
        int(timeout),
    )


@contextlib.contextmanager
def trace_of(fields):
    """Makes the call the parent of spans, for a script that has imported OpenTelemetry."""
    parent, state = fields[CONTEXT_FIELDS:CALL_FIELDS]
    if parent is None or "opentelemetry.context" not in sys.modules:
        yield
        return
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {"traceparent": parent, "tracestate": state or ""}
    token = context.attach(TraceContextTextMapPropagator().extract(carrier))
    try:
        yield
    finally:
        context.detach(token)


class HTTPError(OSError):
    """Raised by raise_for_status() if `requests` is not installed."""

    def __init__(self, message, response):
        super().__init__(message)
        self.response = response


class Headers(dict):
    """Headers with case-insensitive names."""

    def __init__(self, items):
        super().__init__((name.lower(), value) for name, value in items)

    def __getitem__(self, name):
        return super().__getitem__(name.lower())

    def __contains__(self, name):
        return super().__contains__(name.lower())

    def get(self, name, default=None):
        return super().get(name.lower(), default)


class Response:
    """The model's response, with the interface of requests.Response."""

    encoding = apparent_encoding = "utf-8"
    history = ()
    links = {}
    cookies = {}
    request = next = None
    is_redirect = is_permanent_redirect = False

    def __init__(self, status_code, content_type, content, url):
        self.status_code = status_code
        self.content_type = content_type
        self.content = content
        self.url = url

    @property
    def headers(self):
        length = str(len(self.content))
        return Headers([("Content-Type", self.content_type), ("Content-Length", length)])

    @property
    def reason(self):
        import http.client

        return http.client.responses.get(self.status_code, "")

    @property
    def ok(self):
        return self.status_code < 400

    @property
    def text(self):
        return self.content.decode("utf-8", "replace")

    @property
    def raw(self):
        return io.BytesIO(self.content)

    @property
    def elapsed(self):
        import datetime

        return datetime.timedelta(0)

    def json(self, **options):
        return json.loads(self.content, **options)

    def raise_for_status(self):
        if self.ok:
            return
        side = "Client" if self.status_code < 500 else "Server"
        message = f"{self.status_code} {side} Error: {self.reason} for url: {self.url}"
        # A script that has imported requests catches its exception.
        requests = sys.modules.get("requests")
        error = requests.HTTPError if requests else HTTPError
        raise error(message, response=self)

    def iter_content(self, chunk_size=1, decode_unicode=False):
        data = self.text if decode_unicode else self.content
        step = chunk_size or max(len(data), 1)
        return (data[at : at + step] for at in range(0, len(data), step))

    # The arguments are those of requests.
    def iter_lines(self, chunk_size=512, decode_unicode=False, delimiter=None):  # noqa: ARG002
        data = self.text if decode_unicode else self.content
        return iter(data.split(delimiter) if delimiter else data.splitlines())

    def close(self):
        pass

    def __bool__(self):
        return self.ok

    __nonzero__ = __bool__

    def __iter__(self):
        return self.iter_content(128)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __repr__(self):
        return f"<Response [{self.status_code}]>"


def to_bytes(value, name):
    """Converts a str, a bytes-like object or None; `name` is for the error."""
    if type(value) is str:
        return value.encode()
    if type(value) is bytes:
        return value
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{name} must be str, bytes or None, not {type(value).__name__}")


def to_reply(result, handler_name):
    """Converts the result of a handler, `(body, content_type)`, to the fields and the body of a
    reply."""
    if not isinstance(result, (tuple, list)):
        raise ValueError(
            f"too many values to unpack (expected 2): {handler_name} returned {type(result).__name__} and not "
            "(body, content_type)"
        )
    if len(result) > 2:
        raise ValueError("too many values to unpack (expected 2)")
    if len(result) < 2:
        raise ValueError(f"not enough values to unpack (expected 2, got {len(result)})")
    body, content_type = result
    if content_type is not None and not isinstance(content_type, str):
        raise TypeError(
            f"the content type that {handler_name} returned must be str, not {type(content_type).__name__}"
        )
    return (content_type,), to_bytes(body, f"the body that {handler_name} returned")


def to_model_request(result):
    """Converts the result of input_handler to the body of a request to the model."""
    if isinstance(result, (dict, list)):
        result = json.dumps(result)
    elif hasattr(result, "read"):
        result = result.read()
    return to_bytes(result, "the result of input_handler")


def set_up(settings):
    """Imports the script. Returns its functions by number, and whether it has a single handler."""
    code = settings["code"]
    file = os.path.join(code, "inference.py")
    # The search order is lib, the code itself, then installed packages.
    for folder in (code, os.path.join(code, "lib")):
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location("inference", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["inference"] = module
    spec.loader.exec_module(module)
    handler = getattr(module, "handler", None)
    input_handler = getattr(module, "input_handler", None)
    output_handler = getattr(module, "output_handler", None)
    if handler is None and (input_handler is None or output_handler is None):
        raise NotImplementedError("Handlers are not implemented correctly in user script.")

    def call_handler(fields, body):
        with trace_of(fields):
            return to_reply(handler(io.BytesIO(body), context_of(fields)), "handler")

    def call_input_handler(fields, body):
        with trace_of(fields):
            return (), to_model_request(input_handler(io.BytesIO(body), context_of(fields)))

    def call_output_handler(fields, body):
        context = context_of(fields)
        status_code, content_type = fields[CALL_FIELDS:]
        response = Response(int(status_code), content_type, body, context.rest_uri)
        with trace_of(fields):
            return to_reply(output_handler(response, context), "output_handler")

    functions = {
        HANDLER: call_handler,
        INPUT_HANDLER: call_input_handler,
        OUTPUT_HANDLER: call_output_handler,
    }
    return functions, ["single" if handler is not None else "pair"]


def status_of(error):
    """The HTTP status of an exception, if it has one as those of web frameworks do."""
    # An error of a handler's own call to another server is a failure of this one.
    if isinstance(error, OSError):
        return None
    for name in ("status_code", "status", "code"):
        value = getattr(error, name, None)
        if isinstance(value, str) and value[:3].isdigit():
            value = int(value[:3])
        if isinstance(value, int) and 400 <= value <= 599:
            return int(value)
    return None


def text_or_none(value):
    return None if value is None else str(value)


def describe(error):
    """Describes an exception to the server: its status, text, title and description."""
    status = status_of(error)
    if status is None or status >= 500:
        sys.modules["tensorserve_worker"].report(error)
    title = description = None
    # The attributes of falcon's exceptions.
    if status is not None and hasattr(error, "title") and hasattr(error, "description"):
        title = text_or_none(error.title)
        description = text_or_none(error.description)
    detail = getattr(error, "detail", None) if status is not None else None
    try:
        text = str(error) if detail is None else str(detail)
    except Exception:
        text = ""
    return [str(status or 500), text or type(error).__name__, title, description]
