"""The commands of README and docs, and that the program which runs them can fail."""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
PROGRAM = os.path.join(ROOT, "scripts/docs_test.py")

FENCE = "```"


class Pages(unittest.TestCase):
    def test_every_block_of_the_documentation_does_what_it_says(self):
        pages = os.environ.get("PAGES", "").split()
        done = subprocess.run([sys.executable, PROGRAM, *pages], cwd=ROOT, check=False)
        self.assertEqual(done.returncode, 0, "see above")


class Failures(unittest.TestCase):
    """What is wrong with a page is found, and named with its line."""

    def run_page(self, text):
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "page.md")
            with open(page, "w", encoding="utf-8") as file:
                file.write(text.replace("'''", FENCE))
            return subprocess.run(
                [sys.executable, PROGRAM, page],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )

    def passes(self, text):
        done = self.run_page(text)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def fails(self, text, line, *reasons):
        done = self.run_page(text)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn(f"page.md:{line}: ", done.stdout)
        for reason in reasons:
            self.assertIn(reason, done.stdout)

    def test_commands_in_their_order_with_their_state(self):
        self.passes(
            "'''sh\nmkdir a; cd a\nexport B='x y'\n'''\n\n"
            "'''sh\nbasename $PWD\necho \\\n  \"$B\"\n'''\n"
            "'''text output\na\nx…y\n'''\n"
        )

    def test_a_command_that_fails(self):
        self.fails("\n'''sh\ntrue\ntensorserve nothing\ntrue\n'''\n", 4, "unrecognized subcommand")

    def test_a_command_that_fails_in_a_pipe(self):
        self.fails("'''sh\nfalse | cat\n'''\n", 2, "ended with 1")

    def test_a_command_that_a_comment_hides(self):
        self.fails("<!-- docs-test: false -->\n", 1)
        self.fails("<!-- docs-test\ntrue\nfalse\n-->\n", 3)

    def test_another_output(self):
        page = "'''sh\nprintf 'one\\ntwo\\nthree\\n'\n'''\n'''text output\n%s\n'''\n"
        self.passes(page % "one\n…\nth…")
        self.passes(page % "…")
        self.fails(page % "one\ntwo", 4, "the page shows", "three")
        self.fails(page % "one\ntwo\nthre", 4)
        self.fails(page % "one\n…\nfour", 4)

    def test_a_server(self):
        page = (
            "'''sh\ntensorserve serve models/half_plus_two\n'''\n"
            "'''sh\ncurl -d '{\"instances\": [%s]}' http://127.0.0.1:8500/v1/models/half_plus_two:predict\n'''\n"
            "'''text output\n{\n    \"predictions\": [2.5\n    ]\n}\n'''\n"
        )
        self.assertIn(", 1 server:", self.passes(page % "1.0"))
        self.fails(page % "2.0", 7, "3.0")
        # curl's exit status is 0.
        self.fails(page % '"text"', 5, "error")

    def test_a_server_that_does_not_start(self):
        self.fails("'''sh\ntensorserve serve nowhere\n'''\n", 2, "the server ended", "nowhere")

    def test_a_block_without_a_language(self):
        self.fails("'''sh\ntrue\n'''\n\n'''\ntrue\n'''\n", 5, "names no language")

    def test_languages_and_marks_that_are_not_known(self):
        self.fails("'''bash\ntrue\n'''\n", 1, "`bash` is not a language of this test")
        self.fails("'''sh need=docker\ntrue\n'''\n", 1, "`need` is not a mark of `sh`")
        self.fails("'''sh needs=luck\ntrue\n'''\n", 1, "needs=luck")
        self.fails("'''sh fragment\ntrue\n'''\n", 1, "`fragment` is not a mark of `sh`")

    def test_blocks_that_do_not_run_are_listed_and_checked(self):
        listed = self.passes("\n'''sh needs=docker\ndocker run\n'''\n")
        self.assertIn("1 block did not run", listed)
        self.assertRegex(listed, r"docker, a container engine: .*page.md:2\n")
        self.fails("'''sh needs=docker\ndocker run 'x\n'''\n", 1, "bash cannot read this")

    def test_python(self):
        self.passes(
            "'''python\nx = 1 + 1\n'''\n'''python\nx     # 2\nprint(x)   # prints it\n'''\n'''text output\n2\n'''\n"
        )
        self.passes("'''python\n[1, 'a'], 2.125     # [1, 'a'], 2.1…\n'''\n")
        self.fails("'''python\n1 + 1     # 3\n'''\n", 1, "the page says 3, and the value is 2")
        self.fails("'''python\nimport nothing_of_this_name\n'''\n", 1, "ModuleNotFoundError")
        self.fails("'''python fragment\ndef f(:\n'''\n", 1, "is not valid python")

    def test_settings(self):
        self.passes(
            "'''toml\nhttp_port = 9000\n[[models]]\nname = \"a\"\npath = \"/models/a\"\n'''\n"
        )
        self.fails("'''toml\nhttp_prt = 9000\n'''\n", 1, "did you mean http_port?")
        self.fails("'''toml\nhttp_port = \n'''\n", 1, "is not valid toml")
        self.passes("'''toml fragment\nhttp_prt = 9000\n'''\n")

    def test_data(self):
        self.passes(
            "'''json\n{\"a\": 1}\n{\"a\": 2}\n'''\n'''yaml\na: [1]\n'''\n'''ini\n[a]\nb=1\n'''\n"
        )
        self.fails("'''json\n{\"a\": }\n'''\n", 1, "is not valid json")
        self.fails("'''yaml\na: [1\n'''\n", 1, "is not valid yaml")
        self.fails("'''ini\nb\n'''\n", 1, "is not valid ini")

    def test_files(self):
        self.passes(
            "'''json file=a/b.json\n[1]\n'''\n'''sh\ncat a/b.json\n'''\n'''json output\n[1]\n'''\n"
        )

    def test_a_block_that_does_not_end(self):
        self.fails("text\n'''sh\ntrue\n", 2, "does not end")


if __name__ == "__main__":
    unittest.main()
