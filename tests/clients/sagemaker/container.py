"""The built binary as SageMaker's container, for tests."""

import os
import sys
import tarfile
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import BINARY, ROOT, Running, free_port, wait_until  # noqa: F401

DATA = os.path.join(ROOT, "tests/data/sagemaker")

HALF_PLUS_THREE = os.path.join(DATA, "models/half_plus_three")
HALF_PLUS_TWO = os.path.join(DATA, "mme/half_plus_two")
WIDE_MLP = os.path.join(ROOT, "models/wide_mlp")

# The settings that AWS's clients require.
AWS = {
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-west-2",
    # No request to the metadata service.
    "AWS_EC2_METADATA_DISABLED": "true",
    "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
}


def environment(**more):
    """The environment without the settings of the user who runs the tests, except library paths."""
    foreign = ("SAGEMAKER_", "AWS_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(foreign)
        and (not name.startswith("TENSORSERVE_") or name.startswith("TENSORSERVE_LIB"))
    }
    return {**kept, **more}


def use_aws(url=None):
    """Sets the environment of a SageMaker user, with the server's address."""
    for name in list(os.environ):
        # The last is not a setting of the server, and docker-shim would reject it.
        if name.startswith(("AWS_", "SAGEMAKER_")) or name == "TENSORSERVE_BINARY":
            del os.environ[name]
    os.environ.update(AWS)
    if url:
        os.environ["AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME"] = url


def pack(folder, *models):
    """Writes a model.tar.gz with these directories into `folder`."""
    path = os.path.join(folder, "model.tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for model in models:
            archive.add(model, arcname=os.path.basename(model))
    return path


class Container:
    """Serves models, packed into a model.tar.gz, until closed."""

    def __init__(self, *models, **variables):
        self.folder = tempfile.TemporaryDirectory()
        archive = pack(self.folder.name, *models)
        variables.setdefault("SAGEMAKER_BIND_TO_PORT", "0")
        variables.setdefault("TENSORSERVE_GRPC_PORT", "0")
        command = ["serve", "--sagemaker", "--model-dir", archive, "--log-level", "warn"]
        self.running = Running(command, environment(**variables))
        self.url = self.running.url

    @property
    def port(self):
        return int(self.url.rsplit(":", 1)[1])

    def close(self):
        self.running.stop()
        self.folder.cleanup()
