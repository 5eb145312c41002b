"""axe finds nothing in any panel, light and dark, at the widths of a desktop and of a phone, with failing models."""

import os
import shutil
import unittest
import urllib.error

from playwright.sync_api import expect

from house import IMAGES, ROOT, PageTest

SKLEARN = os.path.join(ROOT, "tests/data/platforms/sklearn")


class Accessibility(PageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        broken = os.path.join(cls.server.folder, "broken/1")
        os.makedirs(broken)
        with open(os.path.join(broken, "saved_model.pb"), "wb") as file:
            file.write(b"this is no model")
        table = os.path.join(cls.server.folder, "passengers/1")
        os.makedirs(table)
        shutil.copy(os.path.join(SKLEARN, "passengers_boosted.pkl"), table)

    def setUp(self):
        super().setUp()
        for body in ({"inputs": {"x": [1.0, 2.0]}}, {"inputs": {"x": ["wrong"]}}):
            try:
                self.server.ask_json("/v1/models/half_plus_two:predict", body)
            except urllib.error.HTTPError as error:
                self.assertEqual(error.code, 400)

    def each(self):
        """A page for each width, light and dark."""
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                page = self.open(viewport={"width": width, "height": 844}, color_scheme=scheme)
                yield page, {"width": width, "scheme": scheme}

    def check_page(self, page, **what):
        with self.subTest(**what):
            self.assertEqual(self.violations(page), [])

    def test_every_panel(self):
        for page, how in self.each():
            self.show("overview", page)
            failed = page.locator(".model", has_text="broken")
            expect(failed.locator(".wide .chip.bad")).to_be_visible()
            expect(page.locator(".model", has_text="passengers").locator(".good")).to_be_visible()
            self.check_page(page, panel="overview", **how)
            failed.locator(".model-name").click()
            expect(failed.locator(".notice")).to_be_visible()
            used = page.locator(".model", has_text="half_plus_two")
            used.locator(".model-name").click()
            expect(used.locator(".last-error")).to_be_visible()
            expect(used.locator("table.signature")).to_be_visible()
            self.check_page(page, panel="overview, open rows", **how)
            for panel, ready in (
                ("charts", "#charts-grid path.line"),
                ("clients", "#clients-code span"),
                ("admin", "#audit tr"),
                ("api", "#panel-api a"),
            ):
                self.show(panel, page)
                expect(page.locator(ready).first).to_be_visible()
                self.check_page(page, panel=panel, **how)

    def test_try_it_with_an_image_a_table_and_a_failed_model(self):
        for page, how in self.each():
            self.show("try", page)
            for model in ("broken", "passengers"):
                expect(page.locator(f"#try-model option[value={model}]")).to_contain_text(model)
            page.locator("#try-model").select_option("digits")
            page.locator(".drop input").set_input_files(os.path.join(IMAGES, "3_45.png"))
            expect(page.locator(".thumb")).to_be_visible()
            page.locator("#try-send").click()
            expect(page.locator("section.likely")).to_be_visible()
            self.check_page(page, panel="try, an image", **how)
            page.locator("#try-model").select_option("passengers")
            expect(page.get_by_label("Age, row 1")).to_be_visible()
            self.check_page(page, panel="try, a form", **how)
            page.get_by_role("radio", name="JSON").click()
            self.check_page(page, panel="try, JSON", **how)
            rows = b"Age,Embarked,Fare,Parch,Pclass,Sex,SibSp\n,S,7.25,0,3,male,1\n"
            page.locator("#try-file").set_input_files(
                {"name": "passengers.csv", "mimeType": "text/csv", "buffer": rows}
            )
            expect(page.locator("#try-table table")).to_be_visible()
            self.check_page(page, panel="try, a table", **how)
            page.locator("#try-model").select_option("broken")
            expect(page.locator("#try-reason .notice")).to_be_visible()
            self.check_page(page, panel="try, a failed model", **how)

    def test_dialogs_messages_and_the_reference(self):
        for page, how in self.each():
            self.show("admin", page)
            page.locator("#drain").click()
            expect(page.get_by_role("dialog")).to_be_visible()
            self.check_page(page, panel="a dialog", **how)
            page.keyboard.press("Escape")
            self.show("overview", page)
            page.locator(".model", has_text="digits").locator(".model-name").click()
            page.get_by_role("button", name="Labels…").click()
            page.get_by_label("Label", exact=True).fill("steady")
            page.get_by_role("button", name="Apply").click()
            expect(page.locator("#toasts .toast.good")).to_be_visible()
            self.check_page(page, panel="a message", **how)
            page.goto(f"{self.server.url}/reference")
            expect(page.locator(".route").first).to_be_visible()
            self.check_page(page, panel="the reference", **how)


if __name__ == "__main__":
    unittest.main()
