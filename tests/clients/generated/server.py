"""A server of the built binary with its own certificate authority, for tests."""

import base64
import datetime
import ipaddress
import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import BINARY, ROOT, Running

# Characters that a client must quote in shells and strings.
USER, PASSWORD = "ana", 'it\'s "s3cret" $HOME: \\ 100%'


def environment(**more):
    """The environment without the settings of the user who runs the tests, and without proxies."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TENSORSERVE_") and not name.lower().endswith("_proxy")
    }
    return {**kept, **more}


class Authority:
    """Signs the certificate of a server. `ca`, `certificate` and `key` are its files."""

    def __init__(self, folder):
        # RSA, because Mono supports no other keys.
        ca_key, key = (rsa.generate_private_key(65537, 2048) for _ in range(2))
        ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an authority")])
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        ca = self.builder(ca_name, ca_name, ca_key).add_extension(constraints, critical=True)
        ca = ca.add_extension(usage, critical=True).sign(ca_key, hashes.SHA256())
        alternatives = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        for_servers = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        certificate = self.builder(name, ca_name, key).add_extension(alternatives, critical=False)
        certificate = certificate.add_extension(for_servers, critical=False)
        certificate = certificate.add_extension(issuer, critical=False)
        certificate = certificate.sign(ca_key, hashes.SHA256())
        pem = serialization.Encoding.PEM
        self.ca = write(folder, "ca.pem", ca.public_bytes(pem))
        self.certificate = write(folder, "server.pem", certificate.public_bytes(pem))
        self.key = write(
            folder,
            "server.key",
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        )

    @staticmethod
    def builder(name, issuer, key):
        now = datetime.datetime.now(datetime.UTC)
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
        self.key, lines = None, []
        if secure:
            self.authority = Authority(self.folder.name)
            lines += self.security()
        else:
            self.authority = None
        for name, path in models.items():
            # A JSON string is a TOML string, too.
            lines += ["[[models]]", f"name = {quoted(name)}"]
            lines += [f"path = {quoted(os.path.join(ROOT, path))}"]
            lines += ['version_policy = "all"']
        config = write(self.folder.name, "tensorserve.toml", "\n".join(lines).encode())
        command = ["serve", "--config", config, "--http-port", "0", "--grpc-port", "0"]
        libraries = {
            name: value
            for name, value in os.environ.items()
            if name in ("TENSORSERVE_LIB_DIR", "TENSORSERVE_LIBTENSORFLOW")
        }
        self.running = Running([*command, "--log-level", "warn"], environment(**libraries))
        self.url = self.running.url

    def security(self):
        auth_file = os.path.join(self.folder.name, "auth.toml")
        file = ["--role", "infer", "--file", auth_file]
        self.auth("add-user", USER, *file, text=f"{PASSWORD}\n")
        self.key = self.auth("add-key", "clients", *file).strip()
        settings = {
            "auth_file": auth_file,
            "tls_certificate": self.authority.certificate,
            "tls_key": self.authority.key,
        }
        return [f"{name} = {quoted(value)}" for name, value in settings.items()]

    @staticmethod
    def auth(*arguments, text=""):
        return subprocess.run(
            [BINARY, "auth", *arguments],
            input=text,
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
        ).stdout

    def source(self, model, with_key=False, **query):
        """The source of a client for `model`, requested with the user's password or with a key."""
        path = f"/v1/models/{urllib.parse.quote(model, safe='')}/gen_client"
        return self.get(path, with_key, **query)

    def get(self, path, with_key=False, **query):
        query = urllib.parse.urlencode(query)
        request = urllib.request.Request(f"{self.url}{path}?{query}")
        if self.authority:
            user = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            shown = f"Bearer {self.key}" if with_key else f"Basic {user}"
            request.add_header("Authorization", shown)
        context = self.authority and ssl.create_default_context(cafile=self.authority.ca)
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.read().decode()

    def environment(self):
        """The environment of a client."""
        if not self.authority:
            return environment()
        return environment(
            TENSORSERVE_USER=USER,
            TENSORSERVE_PASSWORD=PASSWORD,
            TENSORSERVE_KEY=self.key,
            TENSORSERVE_CA=self.authority.ca,
            NODE_EXTRA_CA_CERTS=self.authority.ca,
        )

    def close(self):
        self.running.stop()
        self.folder.cleanup()


def quoted(text):
    return json.dumps(text, ensure_ascii=False)
