"""Collectors of traces: OTLP over HTTP and over gRPC, with OpenTelemetry's own messages."""

import gzip
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from running import wait_until


class Received:
    """A span, with what is said about its process."""

    def __init__(self, span: Span, resource, scope):
        self.span = span
        self.name = span.name
        self.trace, self.id, self.parent = (
            part.hex() for part in (span.trace_id, span.span_id, span.parent_span_id)
        )
        self.attributes = {a.key: value_of(a.value) for a in span.attributes}
        self.resource = {a.key: value_of(a.value) for a in resource.attributes}
        self.scope = scope.name
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]

    def __repr__(self):
        return f"{self.name} {self.trace}/{self.id} of {self.parent} {self.attributes}"


def value_of(value):
    return getattr(value, value.WhichOneof("value"))


class Collector:
    """Keeps the spans that it gets."""

    def __init__(self):
        self.spans = []
        self.lock = threading.Lock()
        self.closed = threading.Event()
        # The headers of the last export.
        self.headers = {}
        # What exports are answered with.
        self.status = 200
        self.delay = 0.0

    def take(self, request):
        self.closed.wait(self.delay)
        if self.status != 200:
            return
        with self.lock:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self.spans.append(Received(span, resource.resource, scope.scope))

    def wait_for(self, condition, what, seconds=300):
        """Waits until the spans fulfil a condition, and returns its value."""

        def spans():
            with self.lock:
                return list(self.spans)

        def told():
            names = Counter(span.name for span in spans())
            return f"{what} in {dict(names)}; the last are {spans()[-20:]}"

        return wait_until(lambda: condition(spans()), told, seconds)

    def trace(self, trace_id, names):
        """The spans of a trace by name, once all of these are there."""

        def found(spans):
            mine = {span.name: span for span in spans if span.trace == trace_id}
            return mine if set(names) <= set(mine) else None

        return self.wait_for(found, f"{names} in trace {trace_id}")


class HttpCollector(Collector):
    """A collector that speaks HTTP."""

    def __init__(self):
        super().__init__()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.headers = dict(self.headers) | {"path": self.path}
                collector.take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(collector.status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()


class GrpcCollector(Collector):
    """A collector that speaks gRPC."""

    def __init__(self):
        super().__init__()
        collector = self

        class Servicer(TraceServiceServicer):
            def Export(self, request, context):  # noqa: N802
                collector.headers = dict(context.invocation_metadata())
                collector.take(request)
                return ExportTraceServiceResponse()

        self.server = grpc.server(ThreadPoolExecutor(4))
        add_TraceServiceServicer_to_server(Servicer(), self.server)
        self.url = f"http://127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def close(self):
        self.closed.set()
        self.server.stop(None)
