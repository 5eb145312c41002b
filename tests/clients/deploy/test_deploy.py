"""The files of deploy/ for batch transform: what AWS Batch says, and what each shard does."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import boto3
import yaml
from botocore.stub import Stubber

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import BINARY, ROOT, environment

DEPLOY = Path(ROOT) / "deploy"
# A model that needs no library.
MODEL = Path(ROOT) / "tests/data/platforms/xgboost/iris_softprob.json"
FILES, LARGE_FILES = 20, 10


class Deploy(unittest.TestCase):
    def test_aws_batch_accepts_the_files(self):
        client = boto3.client(
            "batch", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )
        definition, job = (
            json.loads((DEPLOY / "aws-batch" / name).read_text())
            for name in ("job-definition.json", "submit-job.json")
        )
        name = definition["jobDefinitionName"]
        answer = {"jobDefinitionName": name, "jobDefinitionArn": "arn", "revision": 1}
        with Stubber(client) as stub:
            stub.add_response("register_job_definition", answer)
            client.register_job_definition(**definition)
            stub.add_response("submit_job", {"jobName": job["jobName"], "jobId": "1"})
            client.submit_job(**job)
        self.assertEqual(job["jobDefinition"], name)
        shards = {each["name"]: each["value"] for each in job["containerOverrides"]["environment"]}
        self.assertEqual(shards["TENSORSERVE_SHARDS"], str(job["arrayProperties"]["size"]))

    def test_the_shards_of_kubernetes_are_the_whole(self):
        job = yaml.safe_load((DEPLOY / "kubernetes/transform-job.yaml").read_text())
        spec = job["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        self.assertEqual(container["command"][0], "/usr/local/bin/tensorserve")
        arguments = [*container["command"][1:], *container["args"]]
        variables = {each["name"]: each["value"] for each in container["env"]}
        self.assert_shards_are_the_whole(
            arguments, variables, "JOB_COMPLETION_INDEX", spec["completions"]
        )

    def test_the_shards_of_aws_batch_are_the_whole(self):
        definition, job = (
            json.loads((DEPLOY / "aws-batch" / name).read_text())
            for name in ("job-definition.json", "submit-job.json")
        )
        properties = definition["containerProperties"]
        given = properties["environment"] + job["containerOverrides"]["environment"]
        variables = {each["name"]: each["value"] for each in given}
        self.assert_shards_are_the_whole(
            properties["command"],
            variables,
            "AWS_BATCH_JOB_ARRAY_INDEX",
            job["arrayProperties"]["size"],
        )

    def assert_shards_are_the_whole(self, arguments, variables, index, count):
        """Runs a command for each index, on a directory in place of a store."""
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "in").mkdir()
            (place / "model").mkdir()
            shutil.copy(MODEL, place / "model")
            for number in range(FILES):
                # Two large files are more than the 4 MiB of a group, so each is an entry.
                rows = 20_000 if number < LARGE_FILES else 10
                row = f"5.1,3.5,1.4,0.{number:0100}\n"
                (place / f"in/{number:02}.csv").write_text(row * rows)
            local = {
                "s3://bucket/models/model": f"{place}/model",
                "--input=s3://bucket/in/": f"--input={place}/in/",
            }
            self.assertLess(set(local), set(arguments))
            arguments = [local.get(argument, argument) for argument in arguments]
            shards = self.with_output(arguments, place / "out")
            busy = 0
            for number in range(count):
                more = variables | {index: str(number), "TENSORSERVE_MODEL_CACHE_DIR": folder}
                busy += self.run_shard([*shards, "--progress=json"], more) > 0
            self.assertGreater(busy, 2, "only few shards had something to do")
            self.run_shard([*self.with_output(arguments, place / "whole"), "--progress=json"], {})
            self.assertEqual(outputs(place / "out"), outputs(place / "whole"))
            self.assertEqual(len(outputs(place / "out")), FILES)

    def with_output(self, arguments, output):
        self.assertIn("--output=s3://bucket/out/", arguments)
        arguments = [each for each in arguments if not each.startswith("--output=")]
        return [*arguments, f"--output={output}"]

    def run_shard(self, arguments, variables):
        """Runs a shard, and returns the number of its objects."""
        env = environment() | {"TF_CPP_MIN_LOG_LEVEL": "3"} | variables
        ended = subprocess.run(
            [BINARY, *arguments], env=env, check=False, capture_output=True, text=True
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return json.loads(ended.stdout.splitlines()[-1])["objects"]


def outputs(folder):
    """The contents of a directory without the state of the job."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    found = {str(file.relative_to(folder)): file.read_bytes() for file in files}
    return {key: content for key, content in found.items() if not key.startswith("_transform/")}


if __name__ == "__main__":
    unittest.main()
