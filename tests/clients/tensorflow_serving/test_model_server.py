"""The binary as tensorflow_model_server: its files, TLS, and its list of models over gRPC."""

import datetime
import ipaddress
import os
import unittest

import grpc
import tensorflow as tf
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from serving import DATA, ModelServer

UPSTREAM = os.path.join(DATA, "upstream/testdata")
TWO = os.path.join(UPSTREAM, "saved_model_half_plus_two_cpu")
THREE = os.path.join(UPSTREAM, "saved_model_half_plus_three")


def ask(channel, value=2.0, model="default"):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([[value]]))
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    return stub.Predict(request, timeout=30).outputs["y"]


def pem(key):
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def certificate(name, issuer=None):
    """A key and a certificate, signed by the issuer's key or self-signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer_key, issuer_name = (issuer[0], issuer[1].subject) if issuer else (key, subject)
    now = datetime.datetime.now(datetime.UTC)
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(addresses), False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
    )
    return key, builder.sign(issuer_key, hashes.SHA256())


def text(made):
    return made[1].public_bytes(serialization.Encoding.PEM)


class Encryption(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = certificate("root")
        cls.server_side = certificate("localhost", cls.root)
        cls.client_side = certificate("client", cls.root)

    def serve(self, verify):
        def field(name, pem_text):
            lines = [f'"{line}\\n"' for line in pem_text.decode().splitlines()]
            return f"{name}: " + "\n".join(lines) + "\n"

        config = field("server_key", pem(self.server_side[0]))
        config += field("server_cert", text(self.server_side))
        config += field("custom_ca", text(self.root))
        config += f"client_verify: {str(verify).lower()}\n"
        server = ModelServer(f"--model_base_path={TWO}", files={"ssl_config_file": config})
        self.addCleanup(server.close)
        return server

    def channel(self, server, *own):
        credentials = grpc.ssl_channel_credentials(text(self.root), *own)
        channel = grpc.secure_channel(f"localhost:{server.port}", credentials)
        self.addCleanup(channel.close)
        return channel

    def test_tls(self):
        server = self.serve(verify=False)
        self.assertEqual(tf.make_ndarray(ask(self.channel(server))), [[3.0]])
        with (
            grpc.insecure_channel(server.address) as channel,
            self.assertRaises(grpc.RpcError) as caught,
        ):
            ask(channel)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)

    def test_mutual_tls(self):
        server = self.serve(verify=True)
        own = pem(self.client_side[0]), text(self.client_side)
        self.assertEqual(tf.make_ndarray(ask(self.channel(server, *own))), [[3.0]])
        with self.assertRaises(grpc.RpcError) as caught:
            ask(self.channel(server))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)
        stranger = certificate("stranger")
        with self.assertRaises(grpc.RpcError):
            ask(self.channel(server, pem(stranger[0]), text(stranger)))


class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = ModelServer(f"--model_base_path={TWO}")
        cls.channel = grpc.insecure_channel(cls.server.address)
        cls.models = model_service_pb2_grpc.ModelServiceStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.close()

    def reload(self, **paths):
        request = model_management_pb2.ReloadConfigRequest()
        for name, path in paths.items():
            request.config.model_config_list.config.add(
                name=name, base_path=path, model_platform="tensorflow"
            )
        return self.models.HandleReloadConfigRequest(request, timeout=60)

    def test_values_are_lists_as_there(self):
        self.reload(default=TWO)
        output = ask(self.channel)
        self.assertEqual(list(output.float_val), [3.0])
        self.assertEqual(output.tensor_content, b"")

    def test_reload(self):
        self.reload(default=TWO)
        self.assertEqual(tf.make_ndarray(ask(self.channel)), [[3.0]])
        self.assertEqual(self.reload(default=TWO, other=THREE).status.error_code, 0)
        self.assertEqual(tf.make_ndarray(ask(self.channel, model="other")), [[4.0]])
        self.reload(other=THREE)
        with self.assertRaises(grpc.RpcError) as caught:
            ask(self.channel)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        self.reload(default=TWO)

    def test_reload_mistakes_change_nothing(self):
        self.reload(default=TWO)
        request = model_management_pb2.ReloadConfigRequest()
        self.refused("Only ModelConfigList is currently supported", request)
        for _ in range(2):
            request.config.model_config_list.config.add(
                name="twice", base_path=TWO, model_platform="tensorflow"
            )
        self.refused("Illegal to list model twice multiple times in config list", request)
        request = model_management_pb2.ReloadConfigRequest()
        request.config.model_config_list.config.add(
            name="m", base_path="relative/path", model_platform="tensorflow"
        )
        self.refused("absolute path", request)
        self.assertEqual(tf.make_ndarray(ask(self.channel)), [[3.0]])

    def refused(self, part, request):
        with self.assertRaises(grpc.RpcError) as caught:
            self.models.HandleReloadConfigRequest(request, timeout=60)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn(part, caught.exception.details())

    def test_status_of_a_version(self):
        self.reload(default=TWO)
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = "default"
        request.model_spec.version.value = 123
        [status] = self.models.GetModelStatus(request).model_version_status
        self.assertEqual(status.version, 123)


if __name__ == "__main__":
    unittest.main()
