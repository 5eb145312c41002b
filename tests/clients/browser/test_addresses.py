"""Addresses: a link shows the same model, signature and choices, and the next panel stays with the model."""

import os
import shutil
import unittest

from playwright.sync_api import expect

from house import ROOT, PageTest

FRAME = os.path.join(ROOT, "tests/data/platforms/sklearn/iris_frame.pkl")


class Addresses(PageTest):
    models = ("digits", "half_plus_two")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # A model with two signatures.
        folder = os.path.join(cls.server.folder, "frame/1")
        os.makedirs(folder)
        shutil.copy(FRAME, folder)

    def address(self, wanted):
        self.eventually(lambda: self.page.url == f"{self.server.url}/{wanted}", wanted)

    def follow(self, link):
        """Opens a link in a window of its own."""
        page = self.open()
        page.goto(f"{self.server.url}/{link}")
        return page

    def test_charts(self):
        self.show("charts")
        self.address("#charts")
        self.page.locator("#charts-model").select_option("half_plus_two")
        self.address("#charts/half_plus_two")
        self.page.get_by_role("radio", name="15 min").click()
        self.address("#charts/half_plus_two?range=15")
        page = self.follow("#charts/half_plus_two?range=15")
        expect(page.locator("#charts-model")).to_have_value("half_plus_two")
        expect(page.get_by_role("radio", name="15 min")).to_be_checked()
        # The charts of the whole server are not those of a model.
        expect(page.get_by_role("heading", name="CPU")).to_be_hidden()
        page = self.follow("#charts/no_such_model")
        expect(page.locator("#charts-model")).to_have_value("")
        self.page.locator("#charts-model").select_option("All models")
        self.address("#charts?range=15")

    def test_clients(self):
        self.show("clients")
        expect(self.page.locator("#clients-model option[value=frame]")).to_have_text("frame")
        self.page.locator("#clients-model").select_option("frame")
        self.page.locator("#clients-signature").select_option("columns")
        self.page.get_by_role("tab", name="Python", exact=True).click()
        self.page.locator("#clients-variant").select_option("grpc")
        link = "#clients/frame?signature=columns&language=python&variant=grpc"
        self.address(link)
        page = self.follow(link)
        code = page.locator("#clients-code")
        expect(code).to_contain_text("grpc")
        expect(code).to_contain_text("columns")
        expect(page.locator("#clients-signature")).to_have_value("columns")
        expect(page.locator("#clients-variant")).to_have_value("grpc")
        expect(page.get_by_role("tab", name="Python", exact=True)).to_have_attribute(
            "aria-selected", "true"
        )

    def test_a_link_to_a_model_that_is_not_there(self):
        self.expected.append("404")
        page = self.open()
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{self.server.url}/#try/later")
        expect(page.locator("#try-error")).to_contain_text("later")
        expect(page.locator("#try-send")).to_be_disabled()
        # The page does not ask again with each status.
        before = page.locator("#uptime").inner_text()
        expect(page.locator("#uptime")).not_to_have_text(before)
        self.assertEqual(sum("/api/v1/models/" in url for url in asked), 1)
        source = os.path.join(self.server.folder, "half_plus_two")
        shutil.copytree(source, os.path.join(self.server.folder, "later"))
        expect(page.locator("#try-send")).to_be_enabled()
        expect(page.locator("#try-model")).to_have_value("later")
        expect(page.locator("#try-error")).to_be_empty()

    def test_the_model_and_its_signature_stay_from_panel_to_panel(self):
        self.show("try")
        expect(self.page.locator("#try-model option[value=frame]")).to_have_text("frame")
        self.page.locator("#try-model").select_option("frame")
        self.page.locator("#try-signature").select_option("columns")
        self.address("#try/frame?signature=columns")
        self.show("charts")
        self.address("#charts/frame?signature=columns")
        expect(self.page.locator("#charts-model")).to_have_value("frame")
        self.show("clients")
        self.address("#clients/frame?signature=columns")
        expect(self.page.locator("#clients-signature")).to_have_value("columns")
        self.page.locator("#clients-model").select_option("digits")
        self.address("#clients/digits?signature=serving_default")
        self.show("try")
        expect(self.page.locator("#try-model")).to_have_value("digits")
        # Panels without a model have none of this.
        self.show("admin")
        self.address("#admin")
        self.show("try")
        self.address("#try/digits?signature=serving_default")


if __name__ == "__main__":
    unittest.main()
