"""Tensors in system shared memory, as Triton's clients register and use it."""

import os
import unittest
import uuid

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from google.protobuf.json_format import MessageToDict
from tritonclient.utils import (
    InferenceServerException,
    serialize_byte_tensor,
    serialized_byte_size,
    shared_memory,
)

from inference import (
    DIFFERENCE,
    FIRST,
    MODELS,
    OPTIONS,
    SECOND,
    SUM,
    VALUES,
    Running,
    environment,
    grpc_address,
    http_address,
    pair,
    same,
    text,
)

SIZE = FIRST.nbytes


class SharedMemory:
    """The tests of both; `module` is the client."""

    def setUp(self):
        self.client = self.connect()
        self.addCleanup(self.client.close)
        self.client.unregister_system_shared_memory()
        self.addCleanup(self.client.unregister_system_shared_memory)

    def region(self, name, size, *arrays, register=True):
        """A region that holds the arrays, one behind the other."""
        key = f"/test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        handle = shared_memory.create_shared_memory_region(name, key, size, create_only=True)
        self.addCleanup(shared_memory.destroy_shared_memory_region, handle)
        offset = 0
        for array in arrays:
            shared_memory.set_shared_memory_region(handle, [array], offset=offset)
            offset += array.nbytes
        if register:
            self.client.register_system_shared_memory(name, key, size)
        handle.key = key
        return handle

    def inputs(self, region):
        inputs = [self.module.InferInput(f"INPUT{n}", [1, 16], "INT32") for n in range(2)]
        for n, one in enumerate(inputs):
            one.set_shared_memory(region, SIZE, offset=n * SIZE)
        return inputs

    def outputs(self, region, size=SIZE):
        outputs = [self.module.InferRequestedOutput(f"OUTPUT{n}") for n in range(2)]
        for n, one in enumerate(outputs):
            one.set_shared_memory(region, size, offset=n * SIZE)
        return outputs

    def status(self, name=""):
        answer = self.client.get_system_shared_memory_status(name)
        if not isinstance(answer, list):
            options = {"preserving_proto_field_name": True}
            answer = list(MessageToDict(answer, **options).get("regions", {}).values())
        fields = ("name", "key", "byte_size", "offset")
        regions = [{field: region.get(field, 0) for field in fields} for region in answer]
        return {
            region["name"]: (region["key"], int(region["byte_size"]), int(region["offset"]))
            for region in regions
        }

    def refused(self, words, call, *arguments, **options):
        with self.assertRaises(InferenceServerException) as caught:
            call(*arguments, **options)
        for word in words:
            self.assertIn(word, caught.exception.message())

    def test_inputs_and_outputs(self):
        self.region("given", 2 * SIZE, FIRST, SECOND)
        results = self.region("results", 2 * SIZE)
        result = self.client.infer(
            "simple", self.inputs("given"), outputs=self.outputs("results"), request_id="1"
        )
        for n, expected in enumerate([SUM, DIFFERENCE]):
            got = shared_memory.get_contents_as_numpy(results, np.int32, [1, 16], n * SIZE)
            self.assertTrue(same(got, expected))
        output = result.get_output("OUTPUT0")
        if isinstance(output, dict):
            self.assertEqual((output["datatype"], output["shape"]), ("INT32", [1, 16]))
            self.assertNotIn("data", output)
        else:
            self.assertEqual((output.datatype, list(output.shape)), ("INT32", [1, 16]))

    def test_shared_memory_beside_other_tensors(self):
        self.region("given", SIZE, FIRST)
        results = self.region("results", SIZE)
        first = self.module.InferInput("INPUT0", [1, 16], "INT32")
        first.set_shared_memory("given", SIZE)
        outputs = [self.module.InferRequestedOutput(f"OUTPUT{n}") for n in range(2)]
        outputs[1].set_shared_memory("results", SIZE)
        result = self.client.infer("simple", [first, pair(self.module)[1]], outputs=outputs)
        self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM))
        got = shared_memory.get_contents_as_numpy(results, np.int32, [1, 16])
        self.assertTrue(same(got, DIFFERENCE))

    def test_a_region_holds_new_values_for_each_request(self):
        handle = self.region("given", 2 * SIZE, FIRST, SECOND)
        for n in range(5):
            shared_memory.set_shared_memory_region(handle, [FIRST + n])
            result = self.client.infer("simple", self.inputs("given"))
            self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM + n))

    def test_the_same_inputs_with_and_without_shared_memory(self):
        self.region("given", 2 * SIZE, FIRST, SECOND)
        inputs = self.inputs("given")
        for values in (None, SECOND, None):
            if values is None:
                inputs[0].set_shared_memory("given", SIZE)
            else:
                inputs[0].set_data_from_numpy(values)
            expected = SUM if values is None else SECOND + SECOND
            result = self.client.infer("simple", inputs)
            self.assertTrue(same(result.as_numpy("OUTPUT0"), expected))

    def test_text(self):
        given = [serialize_byte_tensor(text(numbers)) for numbers in (FIRST, SECOND)]
        sizes = [serialized_byte_size(array) for array in given]
        handle = self.region("text", sum(sizes))
        shared_memory.set_shared_memory_region(handle, given[:1])
        shared_memory.set_shared_memory_region(handle, given[1:], offset=sizes[0])
        results = self.region("results", 512)
        inputs = [self.module.InferInput(f"INPUT{n}", [1, 16], "BYTES") for n in range(2)]
        inputs[0].set_shared_memory("text", sizes[0])
        inputs[1].set_shared_memory("text", sizes[1], offset=sizes[0])
        output = self.module.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("results", 512)
        self.client.infer("simple_string", inputs, outputs=[output])
        got = shared_memory.get_contents_as_numpy(results, np.object_, [1, 16])
        self.assertEqual(got.tolist(), text(SUM).tolist())

    def test_every_datatype_of_a_fixed_size(self):
        for datatype, values in VALUES.items():
            if datatype == "BYTES":
                continue
            with self.subTest(datatype=datatype):
                model = datatype.lower()
                self.region(f"{model} in", values.nbytes, values)
                results = self.region(f"{model} out", values.nbytes)
                given = self.module.InferInput(f"in_{model}", list(values.shape), datatype)
                given.set_shared_memory(f"{model} in", values.nbytes)
                output = self.module.InferRequestedOutput(f"out_{model}")
                output.set_shared_memory(f"{model} out", values.nbytes)
                self.client.infer(model, [given], outputs=[output])
                got = shared_memory.get_contents_as_numpy(results, values.dtype, values.shape)
                self.assertTrue(same(got, values))

    def test_registrations(self):
        self.assertEqual(self.status(), {})
        first = self.region("first", SIZE)
        second = self.region("second", 2 * SIZE, register=False)
        self.client.register_system_shared_memory("second", second.key, SIZE, offset=SIZE)
        expected = {"first": (first.key, SIZE, 0), "second": (second.key, SIZE, SIZE)}
        self.assertEqual(self.status(), expected)
        self.assertEqual(self.status("second"), {"second": expected["second"]})
        self.client.unregister_system_shared_memory("first")
        self.assertEqual(list(self.status()), ["second"])
        # Nothing is registered by this name.
        self.client.unregister_system_shared_memory("first")
        self.client.unregister_system_shared_memory()
        self.assertEqual(self.status(), {})

    def test_offsets_of_regions(self):
        """The offset of a tensor is counted from the start of its region."""
        handle = self.region("whole", 3 * SIZE, SECOND, FIRST, SECOND, register=False)
        self.client.register_system_shared_memory("part", handle.key, 2 * SIZE, offset=SIZE)
        result = self.client.infer("simple", self.inputs("part"))
        self.assertTrue(same(result.as_numpy("OUTPUT0"), SUM))

    def test_registrations_that_fail(self):
        handle = self.region("once", SIZE)
        register = self.client.register_system_shared_memory
        self.refused(["'once'", "already"], register, "once", handle.key, SIZE)
        self.refused(["/no-such-region"], register, "other", "/no-such-region", SIZE)
        self.refused(["'other'"], register, "other", handle.key, 1 << 20)
        self.refused(["'other'"], register, "other", handle.key, SIZE, offset=1 << 20)
        self.refused([], register, "other", "../../etc/passwd", 16)
        self.refused(["'other'"], self.status, "other")
        self.assertEqual(list(self.status()), ["once"])

    def test_tensors_outside_of_regions(self):
        self.region("given", 2 * SIZE, FIRST, SECOND)
        infer = self.client.infer
        self.refused(["'missing'"], infer, "simple", self.inputs("missing"))
        for size, offset in [(SIZE, 2 * SIZE), (SIZE, SIZE + 1), (4 * SIZE, 0), (SIZE // 2, 0)]:
            with self.subTest(size=size, offset=offset):
                inputs = self.inputs("given")
                inputs[0].set_shared_memory("given", size, offset=offset)
                self.refused([], infer, "simple", inputs)
        for region, size in [("missing", SIZE), ("given", SIZE // 2)]:
            with self.subTest(region=region, size=size):
                outputs = self.outputs(region, size)
                self.refused([], infer, "simple", pair(self.module), outputs=outputs)
        self.client.unregister_system_shared_memory("given")
        self.refused(["'given'"], infer, "simple", self.inputs("given"))
        self.assertTrue(self.client.is_server_ready())

    def test_the_shared_memory_of_gpus_can_be_unregistered_where_there_is_none(self):
        """Scripts begin with this, whether they use a GPU or not."""
        self.client.unregister_cuda_shared_memory()
        status = self.client.get_cuda_shared_memory_status()
        self.assertFalse(status if isinstance(status, list) else status.regions)

    def test_the_server_names_the_extension(self):
        server = self.client.get_server_metadata()
        extensions = server["extensions"] if isinstance(server, dict) else server.extensions
        self.assertIn("system_shared_memory", extensions)


class Http(SharedMemory, unittest.TestCase):
    module = http_client

    def connect(self):
        return http_client.InferenceServerClient(http_address())


class Grpc(SharedMemory, unittest.TestCase):
    module = grpc_client

    def connect(self):
        return grpc_client.InferenceServerClient(grpc_address())

    def test_in_a_stream(self):
        self.region("given", 2 * SIZE, FIRST, SECOND)
        results = []
        self.client.start_stream(lambda result, error: results.append(result or error))
        self.client.async_stream_infer("simple", self.inputs("given"))
        self.client.stop_stream()
        self.assertTrue(same(results[0].as_numpy("OUTPUT0"), SUM))


class Disabled(unittest.TestCase):
    """A server without the option --shared-memory."""

    def test_nothing_can_be_registered(self):
        running = Running(["serve", os.path.join(MODELS, "simple"), *OPTIONS], environment())
        self.addCleanup(running.stop)
        address = running.url.removeprefix("http://")
        handle = shared_memory.create_shared_memory_region("a", f"/test-{os.getpid()}", SIZE)
        self.addCleanup(shared_memory.destroy_shared_memory_region, handle)
        for client in (
            http_client.InferenceServerClient(address),
            grpc_client.InferenceServerClient(running.grpc),
        ):
            with client:
                with self.assertRaises(InferenceServerException) as caught:
                    client.register_system_shared_memory("a", f"/test-{os.getpid()}", SIZE)
                self.assertIn("shared_memory", caught.exception.message())
                self.assertTrue(client.is_server_ready())


if __name__ == "__main__":
    unittest.main()
