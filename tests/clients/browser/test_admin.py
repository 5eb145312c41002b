"""Changes by an admin: each one is confirmed first, and recorded in the audit log."""

import unittest

from playwright.sync_api import expect

from house import PageTest


class Admin(PageTest):
    models = ("digits", "half_plus_two")

    def open_row(self, name):
        self.show()
        row = self.row(name)
        title = row.locator(".model-name")
        if title.get_attribute("aria-expanded") == "false":
            title.click()
        return row

    def confirm(self, action):
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_role("button", name=action, exact=True).click()
        expect(dialog).to_be_hidden()

    def toast(self, text):
        expect(self.page.locator("#toasts")).to_contain_text(text)

    def audited(self, what):
        self.show("admin")
        expect(self.page.locator("#audit tr").first).to_contain_text(what)
        expect(self.page.locator("#audit tr").first).to_contain_text("ok")

    def test_a_model_is_unloaded_and_loaded_again(self):
        row = self.open_row("half_plus_two")
        unload = row.get_by_role("button", name="Unload…")
        unload.click()
        dialog = self.page.get_by_role("dialog")
        expect(dialog).to_contain_text("stop serving")
        self.page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(row.locator(".wide .chip.good")).to_be_visible()
        unload.click()
        self.confirm("Unload")
        self.toast("half_plus_two is unloaded.")
        expect(row.locator(".wide .chip.good")).to_have_count(0)
        self.audited("unload")
        row = self.open_row("half_plus_two")
        row.get_by_role("button", name="Load…").click()
        self.confirm("Load")
        expect(row.locator(".wide .chip.good")).to_be_visible()
        answer = self.server.ask_json("/v1/models/half_plus_two:predict", {"instances": [2.0]})
        self.assertEqual(answer, {"predictions": [3.0]})

    def test_a_model_is_loaded_from_a_folder(self):
        self.show("admin")
        form = self.page.locator("#load-form")
        form.get_by_label("Name").fill("elsewhere")
        form.get_by_label("Path on the server").fill("/no/such/folder")
        form.get_by_role("button", name="Load…").click()
        self.expected += ["400", "403", "404"]
        self.confirm("Load")
        expect(self.page.locator(".toast.bad")).to_contain_text("directory")

    def test_labels(self):
        row = self.open_row("digits")
        row.get_by_role("button", name="Labels…").click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_label("Label").fill("steady")
        dialog.get_by_label("Version").select_option("2")
        self.confirm("Apply")
        expect(row.locator(".label")).to_have_text("steady")
        status = self.server.ask_json("/v1/models/digits/labels/steady")
        self.assertEqual(status["model_version_status"][0]["version"], "2")
        row.get_by_role("button", name="Labels…").click()
        expect(dialog).to_contain_text("steady (version 2)")
        dialog.get_by_label("Version").select_option("None (remove)")
        self.confirm("Apply")
        expect(row.locator(".label")).to_have_count(0)
        self.audited("label")

    def test_batching(self):
        row = self.open_row("digits")
        row.get_by_role("button", name="Batching…").click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_label("Maximum batch size").fill("7")
        dialog.get_by_label("Maximum queue delay").fill("2000")
        self.confirm("Apply")
        expect(row.locator(".facts").first).to_contain_text("at most 7 rows, 2 ms queue delay")
        self.audited("batching")

    def test_draining_is_reported_and_stopped(self):
        self.show("admin")
        self.page.locator("#drain").click()
        self.confirm("Drain")
        expect(self.page.locator("#ready-text")).to_have_text("Not ready")
        expect(self.page.locator("#drain-state")).to_contain_text("Draining")
        answer = self.server.ask_json("/v1/models/half_plus_two:predict", {"instances": [2.0]})
        self.assertEqual(answer, {"predictions": [3.0]})
        self.page.locator("#drain").click()
        self.confirm("Stop draining")
        expect(self.page.locator("#ready-text")).to_have_text("Ready")


if __name__ == "__main__":
    unittest.main()
