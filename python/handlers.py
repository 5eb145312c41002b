"""The handlers of an inference.py, as the SageMaker TensorFlow Serving container calls them:
`handler(data, context)`, or `input_handler(data, context)` and `output_handler(response, context)`.
"""

import collections
import importlib.util
import io
import json
import os
import sys
import traceback

# Numbers of functions, as in src/worker/handlers.rs.
HANDLER, INPUT, OUTPUT = 1, 2, 3


class Context(
    collections.namedtuple(
        "Context",
        "model_name model_version method rest_uri grpc_port channel custom_attributes "
        "request_content_type accept_header content_length timeout",
    )
):
    """What a handler is told about a request."""

    __slots__ = ()

    @property
    def channel(self):
        """A gRPC channel to this server, made when it is first used; None without grpcio."""
        return self[5] or channel_to(self.rest_uri, self.grpc_port)


channels = {}


def channel_to(rest_uri, port):
    if port and port not in channels:
        try:
            import grpc
        except ImportError:
            return None
        host = rest_uri.split("//", 1)[1].split("/", 1)[0].rsplit(":", 1)[0]
        channels[port] = grpc.insecure_channel(f"{host}:{port}")
    return channels.get(port)


def forget_channels():
    # They do not work in a forked process.
    channels.clear()


os.register_at_fork(after_in_child=forget_channels)


def context_of(fields):
    """The context, and the fields behind it."""
    name, version, method, uri, port, is_int, attributes, kind, accept, length, timeout = fields[
        :11
    ]
    # Whoever unpacks the tuple has the channel only if grpcio is in use already.
    channel = channel_to(uri, port) if "grpc" in sys.modules else None
    return Context(
        name,
        version,
        method,
        uri,
        int(port) if is_int and port else port,
        channel,
        attributes,
        kind,
        accept,
        int(length) if length is not None else None,
        int(timeout),
    )


class HTTPError(OSError):
    """What raise_for_status() raises where there is no `requests`."""

    def __init__(self, message, response):
        super().__init__(message)
        self.response = response


class Headers(dict):
    """Headers by their names in any case."""

    def __init__(self, items):
        super().__init__((name.lower(), value) for name, value in items)

    def __getitem__(self, name):
        return super().__getitem__(name.lower())

    def __contains__(self, name):
        return super().__contains__(name.lower())

    def get(self, name, default=None):
        return super().get(name.lower(), default)


class Response:
    """The model's answer, with the face of requests.Response."""

    encoding = apparent_encoding = "utf-8"
    history = ()
    links = {}
    cookies = {}
    request = next = None
    is_redirect = is_permanent_redirect = False

    def __init__(self, status, kind, content, url):
        self.status_code = status
        self.content = content
        self.url = url
        self.kind = kind

    @property
    def headers(self):
        length = str(len(self.content))
        return Headers([("Content-Type", self.kind), ("Content-Length", length)])

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
        # What a script catches that has imported it.
        requests = sys.modules.get("requests")
        kind = requests.HTTPError if requests else HTTPError
        raise kind(message, response=self)

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


def bytes_of(value, what):
    """The value as bytes."""
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
    raise TypeError(f"{what} must be str, bytes or None, not {type(value).__name__}")


def answer_of(result, who):
    """The fields and the body of an answer: `(body, content_type)`."""
    if not isinstance(result, (tuple, list)):
        kind = type(result).__name__
        raise ValueError(
            f"too many values to unpack (expected 2): {who} returned {kind} and not "
            "(body, content_type)"
        )
    if len(result) > 2:
        raise ValueError("too many values to unpack (expected 2)")
    if len(result) < 2:
        raise ValueError(f"not enough values to unpack (expected 2, got {len(result)})")
    body, kind = result
    if kind is not None and not isinstance(kind, str):
        name = type(kind).__name__
        raise TypeError(f"the content type that {who} returned must be str, not {name}")
    return (kind,), bytes_of(body, f"the body that {who} returned")


def request_of(result):
    """The body of a request to the model."""
    if isinstance(result, (dict, list)):
        result = json.dumps(result)
    elif hasattr(result, "read"):
        result = result.read()
    return bytes_of(result, "what input_handler returns")


def set_up(settings):
    """Imports the script. Returns its functions by their numbers, and which it has."""
    code = settings["code"]
    file = os.path.join(code, "inference.py")
    # The last one goes first: the libraries, then the code itself, then what is installed.
    for folder in (code, os.path.join(code, "lib")):
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location("inference", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["inference"] = module
    spec.loader.exec_module(module)
    single = getattr(module, "handler", None)
    before = getattr(module, "input_handler", None)
    behind = getattr(module, "output_handler", None)
    if single is None and (before is None or behind is None):
        raise NotImplementedError("Handlers are not implemented correctly in user script.")

    def call_handler(fields, body):
        return answer_of(single(io.BytesIO(body), context_of(fields)), "handler")

    def call_input(fields, body):
        return (), request_of(before(io.BytesIO(body), context_of(fields)))

    def call_output(fields, body):
        context = context_of(fields)
        response = Response(int(fields[11]), fields[12], body, context.rest_uri)
        return answer_of(behind(response, context), "output_handler")

    functions = {HANDLER: call_handler, INPUT: call_input, OUTPUT: call_output}
    return functions, ["single" if single is not None else "pair"]


def status_of(error):
    """The HTTP status that an exception carries, as those of web frameworks do."""
    # Not those of a handler's own calls to others, which are failures of ours.
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
    """What the server is told of an exception: status, text, title and description."""
    status = status_of(error)
    if status is None or status >= 500:
        traceback.print_exception(type(error), error, error.__traceback__)
    title = description = None
    # falcon's.
    if status is not None and hasattr(error, "title") and hasattr(error, "description"):
        title = text_or_none(error.title)
        description = text_or_none(error.description)
    detail = getattr(error, "detail", None) if status is not None else None
    try:
        text = str(error) if detail is None else str(detail)
    except Exception:
        text = ""
    return [str(status or 500), text or type(error).__name__, title, description]
