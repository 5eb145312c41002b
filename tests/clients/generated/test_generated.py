"""Runs every generated client whose language is installed, and checks the response that it prints."""

import concurrent.futures
import json
import os
import sys
import tempfile
import unittest

from languages import LANGUAGES, MAY_BE_MISSING
from server import PASSWORD, Server

HALF_PLUS_TWO = "models/half_plus_two"
# half_plus_two with hostile names of its signature and its input.
HOSTILE = "tests/data/clients/hostile_names"
HOSTILE_NAME = """it's "a" $HOME `id` #{x} %s <img onerror=alert(1)> é"""
HOSTILE_SIGNATURE = """it's "a" signature: \\u000a \n${HOME}#{x} </script>"""


class Generated(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.missing = {language.name: language.missing() for language in LANGUAGES}
        cls.ran = set()

    @classmethod
    def tearDownClass(cls):
        print("\ngenerated clients that ran:", ", ".join(sorted(cls.ran)))
        for name, programs in cls.missing.items():
            if programs:
                print(f"not run: {name}: not installed: {' '.join(programs)}")

    def test_every_language_that_should_be_here_is(self):
        """CI has every package of packages.sh; other machines may lack some."""
        if "CI" not in os.environ:
            self.skipTest("not in CI")
        wanted = [language for language in LANGUAGES if language.id not in MAY_BE_MISSING]
        missing = {one.name: self.missing[one.name] for one in wanted if self.missing[one.name]}
        self.assertEqual(missing, {})

    def test_every_client_of_the_server_is_tested(self):
        server = Server({"half_plus_two": HALF_PLUS_TWO})
        self.addCleanup(server.close)
        listed = set(files(server))
        tested = {(language.id, language.variant) for language in LANGUAGES}
        self.assertEqual(listed - {("json", "data")}, tested)

    def test_in_the_clear(self):
        self.check(secure=False, model="half_plus_two")

    def test_encrypted_with_user_and_password(self):
        self.check(secure=True, model="half_plus_two", version=1)

    def test_encrypted_with_a_key(self):
        self.check(secure=True, model="half_plus_two", with_key=True)

    def test_hostile_names(self):
        self.check(secure=False, model=HOSTILE_NAME)

    def test_hostile_names_encrypted(self):
        self.check(secure=True, model=HOSTILE_NAME, signature=HOSTILE_SIGNATURE)

    def test_an_error_is_printed_and_is_the_exit_code(self):
        """With a wrong key, and without the certificate authority."""
        server = Server({"half_plus_two": HALF_PLUS_TWO}, secure=True)
        self.addCleanup(server.close)
        names = files(server)
        for language in LANGUAGES:
            # The gRPC client takes seconds to start, boto3 fails as any Python program does, and a
            # page has no exit code.
            if self.missing[language.name] or language.variant in ("grpc", "boto3", "browser"):
                continue
            with self.subTest(language.name):
                key, server.key = server.key, "wrong"
                wrong_key = server.environment()
                server.key = key
                name = names[language.id, language.variant]
                code, out, *_ = ask(
                    server, language, name, "half_plus_two", True, {}, environment=wrong_key
                )
                self.assertNotEqual(code, 0, out)
                self.assertNotIn("2.5", out)
                stranger = server.environment()
                del stranger["TENSORSERVE_CA"], stranger["NODE_EXTRA_CA_CERTS"]
                code, out, *_ = ask(
                    server, language, name, "half_plus_two", True, {}, environment=stranger
                )
                self.assertNotEqual(code, 0, out)
                self.assertNotIn("2.5", out)

    def check(self, secure, model, with_key=False, **query):
        """Runs a client of `model` in every language, for two rows of half_plus_two."""
        models = {"half_plus_two": HALF_PLUS_TWO, HOSTILE_NAME: HOSTILE}
        server = Server(models, secure)
        self.addCleanup(server.close)
        names = files(server)
        here = [language for language in LANGUAGES if not self.missing[language.name]]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            calls = {
                language: pool.submit(
                    ask,
                    server,
                    language,
                    names[language.id, language.variant],
                    model,
                    with_key,
                    query,
                )
                for language in here
            }
        for language, call in calls.items():
            with self.subTest(language.name):
                code, out, errors, source = call.result()
                self.assertEqual(code, 0, f"{source}\n{out}\n{errors}")
                self.assertEqual(prediction(out), [2.5, 2.5], f"{out}\n{source}")
                self.assertNotIn(PASSWORD, source)
                self.assertNotIn(server.key or PASSWORD, source)
                self.ran.add(language.name)


def files(server):
    """The file names of the clients, by language and variant."""
    languages = json.loads(server.get("/api/v1/clients"))["languages"]
    return {
        (language["id"], variant["id"]): variant["file"]
        for language in languages
        for variant in language["variants"]
    }


def ask(server, language, file, model, with_key, query, environment=None):
    """Runs a client; returns its exit code, output, errors and source."""
    source = server.source(model, with_key, language=language.id, variant=language.variant, **query)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, file), "w", encoding="utf-8") as client:
            client.write(source)
        return *language.run(folder, file, environment or server.environment()), source


def prediction(text):
    """The list of numbers in a response: `{"y": […]}`, `{"outputs": […]}` or gRPC's `y […]`."""
    start, end = text.rindex("["), text.rindex("]")
    return json.loads(text[start : end + 1])


if __name__ == "__main__":
    sys.exit(unittest.main())
