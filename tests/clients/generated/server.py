"""A server of the built binary with its own authority, for tests."""

import datetime
import ipaddress
import json
import os
import ssl
import subprocess
import tempfile
import urllib.parse
import urllib.request

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
BINARY = os.environ.get("TENSORSERVE_BINARY", os.path.join(ROOT, "target/debug/tensorserve"))


def environment(**more):
    """Ours without settings of whoever runs the tests, and plain enough for any tool."""
    kept = {
        name: value for name, value in os.environ.items()
        if not name.startswith("TENSORSERVE_") and not name.lower().endswith("_proxy")
    }
    return {**kept, **more}


class Authority:
    """Signs the certificate of a server. `ca`, `certificate` and `key` are its files."""

    def __init__(self, folder):
        # RSA, for Mono knows no other keys.
        ca_key, key = (rsa.generate_private_key(65537, 2048) for _ in range(2))
        ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an authority")])
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False,
            encipher_only=False, decipher_only=False)
        ca = self.builder(ca_name, ca_name, ca_key).add_extension(constraints, critical=True)
        ca = ca.add_extension(usage, critical=True).sign(ca_key, hashes.SHA256())
        alternatives = x509.SubjectAlternativeName([
            x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        for_servers = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        certificate = self.builder(name, ca_name, key).add_extension(alternatives, critical=False)
        certificate = certificate.add_extension(for_servers, critical=False)
        certificate = certificate.add_extension(issuer, critical=False)
        certificate = certificate.sign(ca_key, hashes.SHA256())
        pem = serialization.Encoding.PEM
        self.ca = write(folder, "ca.pem", ca.public_bytes(pem))
        self.certificate = write(folder, "server.pem", certificate.public_bytes(pem))
        self.key = write(folder, "server.key", key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))

    @staticmethod
    def builder(name, issuer, key):
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return builder.add_extension(identifier, critical=False)


def write(folder, name, content):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(content)
    return path


class Server:
    """Serves models, given as {name: folder}, until closed."""

    def __init__(self, models, secure=False):
        self.folder = tempfile.TemporaryDirectory()
        lines = []
        if secure:
            self.authority = Authority(self.folder.name)
            lines += [
                f"http_tls_certificate = {quoted(self.authority.certificate)}",
                f"http_tls_key = {quoted(self.authority.key)}",
            ]
        else:
            self.authority = None
        for name, path in models.items():
            path = os.path.join(ROOT, path)
            # A string of JSON is one of TOML, too.
            lines += ["[[models]]", f"name = {quoted(name)}", f"path = {quoted(path)}"]
            lines += ['version_policy = "all"']
        config = write(self.folder.name, "tensorserve.toml", "\n".join(lines).encode())
        command = [BINARY, "serve", "--config", config, "--http-port", "0", "--grpc-port", "0"]
        libraries = {
            name: value for name, value in os.environ.items()
            if name in ("TENSORSERVE_LIB_DIR", "TENSORSERVE_LIBTENSORFLOW")
        }
        self.process = subprocess.Popen(
            command + ["--log-level", "warn"], stdout=subprocess.PIPE, text=True,
            env=environment(**libraries))
        for line in self.process.stdout:
            if line.startswith("listening on http"):
                self.url = line.strip().removeprefix("listening on ")
            if line.startswith("ready after"):
                return
            if line.startswith("not ready"):
                raise RuntimeError(line)
        raise RuntimeError("the server ended")

    def source(self, model, **query):
        """The source of a client for `model`."""
        return self.get(f"/v1/models/{urllib.parse.quote(model, safe='')}/gen_client", **query)

    def get(self, path, **query):
        query = urllib.parse.urlencode(query)
        request = urllib.request.Request(f"{self.url}{path}?{query}")
        context = self.authority and ssl.create_default_context(cafile=self.authority.ca)
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.read().decode()

    def environment(self):
        """What a client finds in its own."""
        if not self.authority:
            return environment()
        return environment(
            TENSORSERVE_CA=self.authority.ca, NODE_EXTRA_CA_CERTS=self.authority.ca)

    def close(self):
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0
        self.process.stdout.close()
        self.folder.cleanup()


def quoted(text):
    return json.dumps(text, ensure_ascii=False)
