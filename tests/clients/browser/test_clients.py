"""Generated clients: shown for the selected model, and copied."""

import os
import shutil
import unittest

from playwright.sync_api import expect

from house import PageTest


class Clients(PageTest):
    def test_a_failed_model_has_a_reason_in_place_of_clients(self):
        folder = os.path.join(self.server.folder, "broken/1")
        os.makedirs(folder)
        self.addCleanup(shutil.rmtree, os.path.dirname(folder))
        with open(os.path.join(folder, "saved_model.pb"), "wb") as file:
            file.write(b"this is no model")
        self.show("clients")
        expect(self.page.locator("#clients-model option[value=broken]")).to_have_text(
            "broken (failed)"
        )
        # One that is ready is selected at first.
        expect(self.page.locator("#clients-code")).to_contain_text("digits")
        self.page.locator("#clients-model").select_option("broken")
        expect(self.page.locator("#clients-error")).to_contain_text(
            "broken has failed. saved_model.pb"
        )
        expect(self.page.locator("#clients-code")).to_be_empty()

    def test_clients_are_written_and_copied(self):
        page = self.open(permissions=["clipboard-read", "clipboard-write"])
        self.show("clients", page)
        page.locator("#clients-model").select_option("recommender")
        code = page.locator("#clients-code")
        languages = page.locator("#clients-languages").get_by_role("tab")
        expect(languages.first).to_be_visible()
        self.assertGreaterEqual(languages.count(), 5)
        for index in range(languages.count()):
            languages.nth(index).click()
            expect(code).to_contain_text("user_id")
            # All but the data of a request, which is not a program.
            if languages.nth(index).inner_text() != "JSON":
                expect(code).to_contain_text("recommender")
                expect(code).to_contain_text(str(self.server.port))
        languages.first.click()
        expect(page.locator("#clients-hint")).not_to_be_empty()
        expect(code).to_contain_text("curl")
        page.locator("#clients-tools button").click()
        expect(page.locator("#clients-tools button")).to_have_text("Copied")
        copied = page.evaluate("navigator.clipboard.readText()")
        self.assertEqual(copied, code.evaluate("box => box.textContent"))


if __name__ == "__main__":
    unittest.main()
