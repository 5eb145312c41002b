"""Calls a server over HTTP."""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from tensorserve import errors, tables
from tensorserve.errors import InvalidRequestError, UnreachableError

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np

_MESSAGE = "application/x-protobuf"
_JSON = "application/json"
# Bodies of fewer bytes are sent together with the head of their request.
_SMALL = 1 << 16
# What a connection that the server has closed in the meantime answers.
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model."""

    name: str
    #: The type as TensorFlow names it, such as ``DT_FLOAT``.
    dtype: str
    #: The declared sizes; -1 is open. ``None`` if even the number of dimensions is.
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Signature:
    """A function of a model."""

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]


class Client:
    """A client of a tensorserve server, for use from any number of threads.

    ::

        client = tensorserve.Client("http://127.0.0.1:8500")
        client.predict("half_plus_two", [1.0, 2.0, 5.0])                   # [2.5, 3.0, 4.5]
        client.predict("half_plus_two", numpy.array([1.0, 2.0, 5.0]))      # array([2.5, 3. , 4.5])
        client.predict("titanic", pandas.read_csv("titanic.csv"))          # a table

    :param url: the server's base URL.
    :param timeout: seconds to wait for a connection, and for each part of a response.
    :param key: an API key; by default that of the variable ``TENSORSERVE_KEY``.
    :param user: a user and ``password``; by default ``TENSORSERVE_USER`` and
        ``TENSORSERVE_PASSWORD``, if there is no key.
    :param ca: a PEM file of CA certificates to verify the server's against, in addition to the
        system's; by default ``TENSORSERVE_CA``.
    :param ssl_context: how to verify the server's certificate, in place of ``ca``.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 60.0,
        key: str | None = None,
        user: str | None = None,
        password: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of a server, such as http://127.0.0.1:8500")
        #: The server's base URL.
        self.url = url.rstrip("/")
        self._base = parts.path.rstrip("/")
        self._authorization = _authorization(key, user, password)
        self._pool = _Pool(
            parts.hostname, parts.port, timeout, _context(parts.scheme, ca, ssl_context)
        )
        self._signatures: dict[str, dict[str, Signature]] = {}

    def predict(
        self,
        model: str,
        inputs: Any,
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "serving_default",
    ) -> Any:
        """Runs a model.

        ``inputs`` is the value of the only input, or a mapping from the names of inputs to values;
        each value has a row for each example in its 0-th dimension. The result is the value of the
        only output, or a dictionary of outputs.

        A model of a table takes the table: a data frame of pandas or polars, a table of pyarrow, a
        list of dictionaries with a row each, or a dictionary of lists with a column each. ``None``,
        NaN, ``pandas.NA`` and, in a list of dictionaries, what a row does not have are missing
        values. Results are lists, in the order of the rows.

        If a value is a NumPy array, all results are NumPy arrays. They are transferred as they are,
        in binary form: all dtypes are exact, and nothing is converted to text. An array is first
        cast to the type of the model's input where NumPy does that within a kind (float64 to
        float32, int64 to int32). Strings are arrays of ``bytes``, ``str`` or objects; as results,
        they are arrays of ``bytes`` objects. Arrays of numbers in the result are read-only.

        Otherwise, values are numbers, strings, ``bytes``, booleans, and lists of these. They are
        transferred as JSON, which any server with TensorFlow Serving's REST API understands, and
        the server converts them to the types of the inputs.

        Raises a subclass of :class:`RequestError` with the server's message, or
        :class:`UnreachableError`.
        """
        path = _model_path(model, version, label)
        if _has_array(inputs):
            return self._predict_arrays(path, inputs, signature)
        columns = inputs if isinstance(inputs, Mapping) else tables.columns_of(inputs)
        if columns is not None:
            inputs = tables.without_markers(columns, self._text_inputs(path, signature))
        body = json.dumps(
            {"signature_name": signature, "inputs": inputs}, default=_json_value
        ).encode()
        response = json.loads(self._request("POST", f"{path}:predict", [body], _JSON))
        return _from_json(response["outputs"])

    def signatures(
        self, model: str, *, version: int | None = None, label: str | None = None
    ) -> dict[str, Signature]:
        """Returns the functions of a model, with the names, types and shapes of their tensors."""
        return self._fetch_signatures(_model_path(model, version, label))

    def models(self) -> list[str]:
        """Returns the names of the models that the server has."""
        return list(json.loads(self._request("GET", "/v1/models"))["models"])

    def is_ready(self) -> bool:
        """Returns whether every model of the server has a ready version.

        A server that does not respond is not ready.
        """
        try:
            self._request("GET", "/readyz")
        except (UnreachableError, errors.UnavailableError):
            return False
        return True

    def close(self) -> None:
        """Closes the connections. The client can still be used, and then opens new ones."""
        self._pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tensorserve.Client {self.url}>"

    def _predict_arrays(self, path: str, inputs: Any, signature: str) -> Any:
        from tensorserve import messages

        spec = self._known_signature(path, signature)
        arrays = _arrays(spec, inputs)
        parts = messages.predict_request(signature, arrays)
        try:
            body = self._request("POST", f"{path}:predict", parts, _MESSAGE)
        except errors.RequestError:
            # Another version may be served by now, with other types.
            self._signatures.pop(path, None)
            raise
        outputs = messages.predict_response(body)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def _fetch_signatures(self, path: str) -> dict[str, Signature]:
        metadata = json.loads(self._request("GET", f"{path}/metadata"))["metadata"]
        found = metadata["signature_def"]["signature_def"]
        # Others are internal, such as __saved_model_init_op.
        names = [name for name in found if not name.startswith("__")]
        return {name: _signature(name, found[name]) for name in names}

    def _text_inputs(self, path: str, signature: str) -> Callable[[str], bool]:
        """Tells of an input whether it takes texts. The server is asked when it has to be."""

        def takes_texts(name: str) -> bool:
            spec = self._known_signature(path, signature).inputs.get(name)
            return spec is not None and spec.dtype == "DT_STRING"

        return takes_texts

    def _known_signature(self, path: str, signature: str) -> Signature:
        known = self._signatures.get(path)
        if known is None:
            known = self._signatures[path] = self._fetch_signatures(path)
        if signature not in known:
            self._signatures.pop(path, None)
            names = ", ".join(known)
            raise InvalidRequestError(
                f"there is no signature {signature!r}; there are {names}", 400
            )
        return known[signature]

    def _request(
        self, method: str, path: str, body: Sequence[Any] = (), media_type: str = _JSON
    ) -> bytes:
        headers = {"Accept": media_type if body else "*/*"}
        if body:
            headers["Content-Type"] = media_type
            headers["Content-Length"] = str(sum(map(_length, body)))
        if self._authorization:
            headers["Authorization"] = self._authorization
        try:
            response, content = self._pool.exchange(method, self._base + path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise UnreachableError(f"no response from {self.url}: {why}") from error
        if response.status == 200:
            return content
        after = response.getheader("Retry-After", "")
        retry_after = float(after) if after.isdigit() else None
        raise errors.of_response(response.status, _message(response, content), retry_after)


class _Pool:
    """Connections that are kept open, one for each call at a time."""

    def __init__(
        self, host: str, port: int | None, timeout: float, context: ssl.SSLContext | None
    ) -> None:
        self._host, self._port = host, port
        self._timeout, self._context = timeout, context
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._owner = os.getpid()

    def exchange(
        self, method: str, path: str, body: Sequence[Any], headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Sends a request, and returns the response with its body."""
        connection = self._take()
        is_new = connection.sock is None
        try:
            return self._exchange(connection, method, path, body, headers)
        except _STALE:
            if is_new:
                raise
        # The server has closed an idle connection: none of its others is older.
        self.close()
        return self._exchange(self._open(), method, path, body, headers)

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Sequence[Any],
        headers: Mapping[str, str],
    ) -> tuple[http.client.HTTPResponse, bytes]:
        try:
            connection.request(method, path, body=_written(body), headers=dict(headers))
            response = connection.getresponse()
            content = response.read()
        except BaseException:
            connection.close()
            raise
        if not response.will_close:
            with self._lock:
                self._idle.append(connection)
        return response, content

    def _open(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout, context=self._context
        )

    def _take(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._owner != os.getpid():
                # In a fork: these are the connections of the process that was forked.
                self._idle, self._owner = [], os.getpid()
            return self._idle.pop() if self._idle else self._open()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections that no call uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _written(body: Sequence[Any]) -> Any:
    """A body as `http.client` sends it best: small ones in one packet, large ones without a copy."""
    if sum(map(_length, body)) < _SMALL:
        return b"".join(body) or None
    return iter(body)


def _length(part: Any) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)


def _context(
    scheme: str, ca: str | os.PathLike[str] | None, given: ssl.SSLContext | None
) -> ssl.SSLContext | None:
    if scheme == "http" or given is not None:
        return given if scheme == "https" else None
    context = ssl.create_default_context()
    ca = ca or os.environ.get("TENSORSERVE_CA")
    if ca:
        context.load_verify_locations(ca)
    return context


def _authorization(key: str | None, user: str | None, password: str | None) -> str | None:
    if key is None and user is None:
        key = os.environ.get("TENSORSERVE_KEY")
        user = os.environ.get("TENSORSERVE_USER")
        password = os.environ.get("TENSORSERVE_PASSWORD")
    if key:
        return f"Bearer {key}"
    if user:
        return "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()
    return None


def _model_path(model: str, version: int | None, label: str | None) -> str:
    path = f"/v1/models/{quote(model, safe='')}"
    if version is not None and label is not None:
        raise ValueError("version and label exclude each other")
    if version is not None:
        return f"{path}/versions/{version}"
    return path if label is None else f"{path}/labels/{quote(label, safe='')}"


def _signature(name: str, written: Mapping[str, Any]) -> Signature:
    def specs(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
        return {alias: _spec(alias, tensor) for alias, tensor in tensors.items()}

    return Signature(name, specs(written["inputs"]), specs(written["outputs"]))


def _spec(name: str, tensor: Mapping[str, Any]) -> TensorSpec:
    shape = tensor["tensor_shape"]
    if shape["unknown_rank"]:
        return TensorSpec(name, tensor["dtype"], None)
    return TensorSpec(name, tensor["dtype"], tuple(int(dim["size"]) for dim in shape["dim"]))


def _message(response: http.client.HTTPResponse, content: bytes) -> str:
    """The server's message in the body of an error."""
    text = content.decode("utf-8", "replace").strip()
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict) and isinstance(parsed.get("error"), str):
        return parsed["error"]
    return text or f"{response.status} {response.reason}"


# --- values ------------------------------------------------------------------------------------


def _has_array(inputs: Any) -> bool:
    # NumPy is not imported for those who do not use it.
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    values = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    return any(isinstance(value, (numpy.ndarray, numpy.generic)) for value in values)


def _arrays(signature: Signature, inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs as arrays of the model's types."""
    if not isinstance(inputs, Mapping):
        if len(signature.inputs) != 1:
            names = ", ".join(signature.inputs)
            raise InvalidRequestError(
                f"the model has the inputs {names}: pass a mapping from names to arrays", 400
            )
        inputs = {next(iter(signature.inputs)): inputs}
    return {name: _array(signature.inputs.get(name), value) for name, value in inputs.items()}


def _array(spec: TensorSpec | None, value: Any) -> np.ndarray[Any, Any]:
    import numpy as np

    from tensorserve import messages

    wanted = messages.numpy_dtype(spec.dtype) if spec else None
    is_string = wanted is not None and wanted.kind == "O"
    if not isinstance(value, (np.ndarray, np.generic)) and wanted is not None:
        return np.asarray(value, wanted)
    array = np.asarray(value)
    # What does not fit is sent as it is: the server's error names the input and both types.
    if wanted is None or is_string or array.dtype == wanted:
        return array
    return array.astype(wanted) if np.can_cast(array.dtype, wanted, "same_kind") else array


def _json_value(value: Any) -> Any:
    """A value that `json` cannot write."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"b64": base64.b64encode(value).decode()}
    if hasattr(value, "tolist"):
        # An array inside a list.
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be sent to a model")


def _from_json(value: Any) -> Any:
    """A value of a response, with its encoded bytes decoded."""
    if isinstance(value, list):
        is_plain = not value or not isinstance(value[0], (list, dict))
        return value if is_plain else [_from_json(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {"b64"}:
            return base64.b64decode(value["b64"])
        return {name: _from_json(item) for name, item in value.items()}
    return value
