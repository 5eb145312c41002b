"""A server that requires credentials: the page itself is open, and everything in it is not."""

import os
import subprocess
import tempfile
import unittest

from playwright.sync_api import expect

from house import BINARY, PageTest


def auth(file, *arguments, said=None):
    """Runs `tensorserve auth`; returns its output."""
    command = [BINARY, "auth", *arguments, "--file", file]
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Login(PageTest):
    models = ("half_plus_two",)

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        file = os.path.join(folder.name, "auth.toml")
        auth(file, "add-user", "ana", "--role", "admin", said="s3cret pass wörd\n")
        cls.key = auth(file, "add-key", "ci", "--role", "infer")
        cls.options = ("--auth-file", file)
        super().setUpClass()

    def setUp(self):
        super().setUp()
        # The browser's message for a response with status 401.
        self.expected.append("401")

    def test_a_user_logs_in_and_out(self):
        page = self.page
        page.goto(self.server.url)
        expect(page.locator("#login")).to_be_visible()
        expect(page.locator("#main")).to_be_hidden()
        self.assertNotIn("half_plus_two", page.content())
        page.get_by_label("User").fill("ana")
        page.get_by_label("Password").fill("wrong")
        page.get_by_label("Password").press("Enter")
        expect(page.locator("#login-error")).not_to_be_empty()
        page.get_by_label("Password").fill("s3cret pass wörd")
        page.get_by_role("button", name="Log in").click()
        expect(self.row("half_plus_two")).to_be_visible()
        expect(page.locator("#user")).to_have_text("ana")
        expect(page.locator("#tab-admin")).to_be_visible()
        page.reload()
        expect(self.row("half_plus_two")).to_be_visible()
        self.show("try")
        page.locator("#try-send").click()
        expect(page.locator("#try-answer .chip")).to_contain_text("200")
        request = page.locator("#try-request")
        expect(request).to_contain_text("Authorization: Basic …")
        self.show("api")
        with page.expect_download() as download:
            page.get_by_role("link", name="Metrics").click()
        with open(download.value.path(), encoding="utf-8") as file:
            self.assertIn("tensorserve_ready 1", file.read())
        page.get_by_role("button", name="Log out").click()
        expect(page.locator("#login")).to_be_visible()
        self.assertNotIn("half_plus_two", page.content())

    def test_axe_finds_nothing_in_the_login(self):
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                page = self.open(viewport={"width": width, "height": 844}, color_scheme=scheme)
                page.goto(self.server.url)
                page.get_by_label("User").fill("ana")
                page.get_by_label("Password").fill("wrong")
                page.get_by_label("Password").press("Enter")
                expect(page.locator("#login-error")).not_to_be_empty()
                with self.subTest(width=width, scheme=scheme):
                    self.assertEqual(self.violations(page), [])

    def test_a_key_sees_what_its_role_may(self):
        page = self.page
        page.goto(self.server.url)
        page.get_by_label("API key").fill(self.key)
        page.get_by_role("button", name="Log in").click()
        row = self.row("half_plus_two")
        row.locator(".model-name").click()
        expect(row.get_by_role("button", name="Try it")).to_be_visible()
        expect(row.get_by_role("button", name="Unload…")).to_have_count(0)
        expect(page.locator("#tab-admin")).to_be_hidden()
        page.goto(self.server.url + "/#admin")
        page.reload()
        expect(page.locator("#panel-overview")).to_be_visible()


if __name__ == "__main__":
    unittest.main()
