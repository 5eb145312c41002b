"""Traces of requests: spans with the right parents, at collectors of both kinds."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from functools import partial

import numpy as np
import requests
import tritonclient.grpc as triton
from opentelemetry import trace
from opentelemetry.instrumentation.grpc import GrpcInstrumentorClient
from opentelemetry.instrumentation.requests import RequestsInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from collector import GrpcCollector, HttpCollector

from running import BINARY, ROOT, Running, environment, wait_until

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STEPS = ["decode", "queue", "run", "encode"]
MODEL = os.path.join(ROOT, "models/half_plus_two")
PREDICT = "/v1/models/half_plus_two:predict"
BODY = {"instances": [1.0, 2.0, 5.0]}

# A script of SageMaker that says which span is the current one.
SCRIPT = """
import json
from opentelemetry import trace
seen = []
def look():
    seen.append(trace.get_current_span().get_span_context())
def input_handler(data, context):
    seen.clear()
    look()
    return data.read().decode()
def output_handler(response, context):
    look()
    spans = [f"{context.span_id:016x}" for context in seen]
    return json.dumps({"trace": f"{seen[0].trace_id:032x}", "spans": spans}), "application/json"
"""

# Of the clients in this process.
exported = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exported))
trace.set_tracer_provider(provider)
RequestsInstrumentor().instrument()
GrpcInstrumentorClient().instrument()


def exporting():
    """The environment of a server that exports soon. On a busy machine, no export takes too long for it."""
    return environment() | {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TIMEOUT": "600000"}


def start(collector, *options, variables=(), model=MODEL, **more):
    env = exporting() | dict(variables)
    where = [] if collector is None else [f"--otlp-endpoint={collector.url}"]
    ports = ["--http-port=0", "--grpc-port=0", "--log-level=warn"]
    return Running(["serve", model, *ports, *where, *options], env, **more)


def post(running, path=PREDICT, body=None, headers=None):
    content = json.dumps(BODY if body is None else body).encode()
    request = urllib.request.Request(running.url + path, data=content, headers=headers or {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def metric(running, name):
    with urllib.request.urlopen(running.url + "/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(name):
                return float(line.split()[-1])
    return None


class Traces(unittest.TestCase):
    def serve(self, kind, *options, **more):
        collector = kind()
        self.addCleanup(collector.close)
        running = start(collector, *options, **more)
        self.addCleanup(running.stop)
        return collector, running

    def check_steps(self, spans, server):
        for name in STEPS:
            self.assertEqual(spans[name].parent, server.id, name)
            self.assertEqual(spans[name].trace, server.trace)
            self.assertGreaterEqual(
                spans[name].span.start_time_unix_nano, server.span.start_time_unix_nano
            )
            self.assertLessEqual(
                spans[name].span.end_time_unix_nano, server.span.end_time_unix_nano
            )
        starts = [spans[name].span.start_time_unix_nano for name in STEPS]
        self.assertEqual(starts, sorted(starts))

    def test_a_http_client_is_the_parent(self):
        collector, running = self.serve(HttpCollector)
        with trace.get_tracer("test").start_as_current_span("caller"):
            answer = requests.post(running.url + PREDICT, json=BODY, timeout=30)
        self.assertEqual(answer.json(), {"predictions": [2.5, 3.0, 4.5]})
        client = next(s for s in exported.get_finished_spans() if s.name == "POST")
        trace_id = f"{client.context.trace_id:032x}"
        spans = collector.trace(trace_id, [*STEPS, "receive"])
        server = next(s for s in spans.values() if s.parent == f"{client.context.span_id:016x}")
        self.assertTrue(server.name.startswith("POST /v1/models/"), server.name)
        self.check_steps(spans, server)
        expected = {
            "http.request.method": "POST",
            "url.path": PREDICT,
            "url.scheme": "http",
            "http.response.status_code": 200,
            "server.address": "127.0.0.1",
            "client.address": "127.0.0.1",
            "network.protocol.version": "1.1",
            "tensorserve.model.name": "half_plus_two",
            "tensorserve.model.version": 1,
            "tensorserve.signature.name": "serving_default",
        }
        self.assertEqual({k: server.attributes.get(k) for k in expected}, expected)
        self.assertEqual(server.attributes["server.port"], int(running.url.rsplit(":", 1)[1]))
        self.assertIn("python-requests", server.attributes["user_agent.original"])
        self.assertEqual(server.resource["service.name"], "tensorserve")
        self.assertEqual(server.scope, "tensorserve")
        self.assertEqual(server.span.kind, 2)
        self.assertEqual(collector.headers["path"], "/v1/traces")

    def test_a_grpc_client_is_the_parent(self):
        for kind, options in [(HttpCollector, []), (GrpcCollector, ["--otlp-protocol=grpc"])]:
            with self.subTest(kind.__name__):
                collector, running = self.serve(kind, *options)
                exported.clear()
                client = triton.InferenceServerClient(running.grpc)
                tensor = triton.InferInput("x", [3], "FP32")
                tensor.set_data_from_numpy(np.array([1, 2, 5], np.float32))
                with trace.get_tracer("test").start_as_current_span("caller"):
                    answer = client.infer("half_plus_two", [tensor])
                self.assertEqual(answer.as_numpy("y").tolist(), [2.5, 3.0, 4.5])
                client.close()
                method = "inference.GRPCInferenceService/ModelInfer"
                of_client = next(s for s in exported.get_finished_spans() if "ModelInfer" in s.name)
                spans = collector.trace(f"{of_client.context.trace_id:032x}", [method, *STEPS])
                server = spans[method]
                self.assertEqual(server.parent, f"{of_client.context.span_id:016x}")
                self.check_steps(spans, server)
                expected = {
                    "rpc.system.name": "grpc",
                    "rpc.method": method,
                    "rpc.response.status_code": "OK",
                    "tensorserve.model.name": "half_plus_two",
                }
                self.assertEqual({k: server.attributes.get(k) for k in expected}, expected)

    def test_errors(self):
        collector, running = self.serve(HttpCollector)
        with self.assertRaises(urllib.error.HTTPError):
            post(running, body={"instances": "x"}, headers={"traceparent": CALLER})
        spans = collector.trace(CALLER[3:35], ["decode"])
        server = next(s for s in spans.values() if s.span.kind == 2)
        self.assertEqual(server.parent, CALLER[36:52])
        # A client's error is none of the server span.
        self.assertEqual(server.attributes["http.response.status_code"], 400)
        self.assertEqual((server.span.status.code, spans["decode"].span.status.code), (0, 2))

    def test_requests_of_a_batch_are_linked_to_it(self):
        text = f"path = {json.dumps(MODEL)}\nbatching = 'on'\nmax_batch_size = 8\n"
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            # Runs of the batch threads, of which there is one: the others wait for it together.
            file.write(
                "num_batch_threads = 1\ninline_budget_micros = 0\nbatch_timeout_micros = 500000\n"
                f"[[models]]\nname = 'half_plus_two'\n{text}"
            )
            file.flush()
            collector = HttpCollector()
            self.addCleanup(collector.close)
            ports = ["--http-port=0", "--grpc-port=off", "--log-level=warn"]
            env = exporting()
            arguments = ["serve", f"--config={file.name}", f"--otlp-endpoint={collector.url}"]
            running = Running([*arguments, *ports], env)
            self.addCleanup(running.stop)
            for _ in range(20):
                threads = [threading.Thread(target=post, args=(running,)) for _ in range(16)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

        def together(spans):
            batches = [s for s in spans if s.name == "batch"]
            # A batch can be exported before the requests that it links to, and before its runs.
            known = {(span.trace, span.id) for span in spans}
            linked = {link for span in spans if span.name == "run" for link in span.links}
            has_all = all(known.issuperset(batch.links) for batch in batches)
            has_all = has_all and linked.issuperset((batch.trace, batch.id) for batch in batches)
            return batches if len(spans) > 320 * 5 and batches and has_all else None

        batches = collector.wait_for(together, "batch")
        with collector.lock:
            by_id = {span.id: span for span in collector.spans}
        runs = [span for span in by_id.values() if span.name == "run" and span.links]
        linked = {link for run in runs for link in run.links}
        for batch in batches:
            self.assertEqual(batch.parent, "")
            self.assertIn((batch.trace, batch.id), linked)
            self.assertGreater(len(batch.links), 1)
            self.assertEqual(len(batch.links), batch.attributes["tensorserve.batch.requests"])
            for trace_id, span_id in batch.links:
                server = by_id[span_id]
                self.assertEqual((server.trace, server.span.kind), (trace_id, 2))

    def test_scripts_continue_the_trace(self):
        with tempfile.TemporaryDirectory() as code:
            with open(os.path.join(code, "inference.py"), "w", encoding="utf-8") as file:
                file.write(SCRIPT)
            options = ["--sagemaker-default-model=half_plus_two", f"--code={code}"]
            collector, running = self.serve(HttpCollector, *options, f"--python={sys.executable}")
            for sampled in (True, False):
                caller = CALLER if sampled else CALLER[:-1] + "0"
                answer = json.loads(post(running, "/invocations", headers={"traceparent": caller}))
                self.assertEqual(answer["trace"], CALLER[3:35])
                if not sampled:
                    # The request is no span; its caller's is the parent.
                    self.assertEqual(answer["spans"], [CALLER[36:52]] * 2)
                    continue
                names = ["POST /invocations", "input_handler", "output_handler", *STEPS]
                spans = collector.trace(CALLER[3:35], names)
                called = [spans[name] for name in ("input_handler", "output_handler")]
                self.assertEqual(answer["spans"], [span.id for span in called])
                self.assertEqual({span.parent for span in called}, {spans[names[0]].id})

    def test_hostile_headers_begin_new_traces(self):
        collector, running = self.serve(HttpCollector)
        hostile = [
            "x" * 4000,
            CALLER.upper(),
            CALLER[:-3],
            "ff" + CALLER[2:],
            CALLER.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
            CALLER + "-more",
        ]
        for value in hostile:
            post(running, headers={"traceparent": value, "tracestate": "a=b"})
        state = 'vendor=1,other=\\"2, ,=,'
        post(running, headers={"traceparent": CALLER, "tracestate": state})

        def all_there(spans):
            servers = [s for s in spans if s.span.kind == 2]
            return servers if len(servers) == len(hostile) + 1 else None

        servers = collector.wait_for(all_there, "seven server spans")
        self.assertEqual(sum(s.parent == CALLER[36:52] for s in servers), 1)
        self.assertEqual(sum(s.parent == "" for s in servers), len(hostile))

    def test_sampling_follows_the_caller(self):
        collector, running = self.serve(HttpCollector, "--trace-sampling=0")
        for _ in range(5):
            post(running)
        post(running, headers={"traceparent": CALLER[:-1] + "0"})
        post(running, headers={"traceparent": CALLER})
        collector.trace(CALLER[3:35], STEPS)
        time.sleep(0.3)
        self.assertEqual({span.trace for span in collector.spans}, {CALLER[3:35]})

    def test_variables_of_opentelemetry(self):
        collector = HttpCollector()
        self.addCleanup(collector.close)
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-team=vision",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_SERVICE_NAME": "photos",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        }
        running = start(None, variables=variables)
        self.addCleanup(running.stop)
        post(running, headers={"traceparent": CALLER})
        spans = collector.trace(CALLER[3:35], STEPS)
        resource = spans["run"].resource
        self.assertEqual(resource["service.name"], "photos")
        self.assertEqual(resource["deployment.environment.name"], "test")
        headers = {name.lower(): value for name, value in collector.headers.items()}
        self.assertEqual((headers["x-team"], headers["content-encoding"]), ("vision", "gzip"))

    def test_spans_are_sent_before_the_end(self):
        collector = HttpCollector()
        self.addCleanup(collector.close)
        running = start(collector, variables={"OTEL_BSP_SCHEDULE_DELAY": "60000"})
        post(running, headers={"traceparent": CALLER})
        self.assertEqual(collector.spans, [])
        running.stop()
        self.assertEqual(len([s for s in collector.spans if s.name == "run"]), 1)

    def test_requests_do_not_wait_for_a_collector(self):
        """One that is away, and one that takes seconds for each export."""
        collector = HttpCollector()
        self.addCleanup(collector.close)
        variables = {"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50"}
        running = start(collector, variables=variables)
        self.addCleanup(running.stop)
        collector.delay = 3.0
        self.measure(running)
        dropped = 'tensorserve_trace_spans_total{result="dropped"}'
        wait_until(lambda: metric(running, dropped), "spans are dropped")
        collector.delay, collector.status = 0.0, 400
        self.measure(running)
        failed = 'tensorserve_trace_spans_total{result="failed"}'
        wait_until(lambda: metric(running, failed), "an export fails")
        collector.status = 200
        # What waited is gone with the failed exports; then spans arrive again.
        wait_until(
            lambda: post(running, headers={"traceparent": CALLER}) and collector.spans,
            "spans arrive",
            pause=0.1,
        )

    def test_exports_have_a_time_limit(self):
        for kind, protocol in [(HttpCollector, "http/protobuf"), (GrpcCollector, "grpc")]:
            with self.subTest(protocol):
                variables = {"OTEL_EXPORTER_OTLP_TIMEOUT": "100"}
                collector, running = self.serve(
                    kind, f"--otlp-protocol={protocol}", variables=variables
                )
                collector.delay = 600.0
                post(running)
                failed = 'tensorserve_trace_spans_total{result="failed"}'
                wait_until(partial(metric, running, failed), "an export fails")

    def measure(self, running):
        began = time.monotonic()
        for _ in range(100):
            post(running)
        # A hundred exports would take minutes.
        self.assertLess(time.monotonic() - began, 15)

    def test_an_unreachable_collector(self):
        class Away:
            url = "http://127.0.0.1:9"

        for protocol in ["http/protobuf", "grpc"]:
            with self.subTest(protocol), tempfile.TemporaryFile("w+") as log:
                running = start(Away, f"--otlp-protocol={protocol}", stderr=log)
                self.measure(running)
                failed = 'tensorserve_trace_spans_total{result="failed"}'
                wait_until(partial(metric, running, failed), "an export fails")
                began = time.monotonic()
                running.stop()
                self.assertLess(time.monotonic() - began, 20)
                log.seek(0)
                said = log.read()
                self.assertEqual(said.count("spans cannot be sent to the collector"), 1, said)

    def test_mistakes(self):
        for options, part in [
            (["--otlp-endpoint=collector:4318"], "is not a URL"),
            (["--otlp-protocol=udp"], "is not http/protobuf or grpc"),
            (["--trace-sampling=2"], "is not from 0 to 1"),
        ]:
            command = [BINARY, "serve", MODEL, *options]
            ended = subprocess.run(
                command, env=environment(), check=False, capture_output=True, text=True, timeout=300
            )
            self.assertEqual(ended.returncode, 1, ended.stderr)
            self.assertIn(part, ended.stderr)


if __name__ == "__main__":
    unittest.main()
