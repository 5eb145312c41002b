"""The models: becoming ready, failing, filtering, opening; and names that are markup."""

import os
import re
import shutil
import unittest

from playwright.sync_api import expect

from house import MODELS, ROOT, PageTest

HOSTILE = "<img src=x onerror=alert(1)>"


class Overview(PageTest):
    models = ("digits", "half_plus_two")
    options = ("--optimize", "exact")

    def test_a_version_goes_live_and_another_fails(self):
        self.show()
        row = self.row("half_plus_two")
        expect(row.locator(".wide .chip.good")).to_have_text("v1ready")
        folder = os.path.join(self.server.folder, "half_plus_two")
        shutil.copytree(os.path.join(MODELS, "half_plus_two/1"), os.path.join(folder, "2"))
        expect(row.locator(".wide .chip.good", has_text="v2")).to_be_visible()

        broken = os.path.join(self.server.folder, "broken/1")
        os.makedirs(broken)
        with open(os.path.join(broken, "saved_model.pb"), "wb") as file:
            file.write(b"this is no model")
        self.addCleanup(shutil.rmtree, os.path.dirname(broken))
        row = self.row("broken")
        expect(row.locator(".wide .chip.bad")).to_have_text("v1failed")
        expect(row.locator(".version-error")).to_contain_text("saved_model.pb")
        expect(self.page.locator("#ready-text")).to_have_text("Not ready")
        expect(self.page.locator("#reasons")).to_contain_text("broken")

    def test_figures_are_those_of_the_server(self):
        self.show()
        status = self.server.ask_json("/api/v1/status")["server"]
        expect(self.page.locator("#version")).to_have_text(status["version"])
        expect(self.page.locator("#uptime")).to_contain_text("up ")
        expect(self.page.locator("#facts")).to_contain_text(status["runtimes"][0])
        tiles = self.page.locator("#tiles")
        expect(tiles).to_contain_text(f"of {status['cores']} core")
        # The use of all resources, also if nobody reads the metrics.
        expect(tiles).to_contain_text(re.compile(r"CPU \d+\s%"))
        expect(tiles).to_contain_text(re.compile(r"batch threads \d+\s%"))
        # Requests in flight with the memory that they hold.
        expect(tiles).to_contain_text(re.compile(r"\d+ queued, [\d.]+ \w+ of [\d.]+ \w+"))
        expect(self.page.locator("#connection")).to_have_attribute("data-state", "live")

    def test_rows_open_and_show_the_signature(self):
        self.show()
        row = self.row("digits")
        name = row.locator(".model-name")
        name.click()
        expect(name).to_have_attribute("aria-expanded", "true")
        table = row.locator("table.signature").first
        for word in ("serving_default", "image_bytes", "string", "[?]", "probabilities"):
            expect(table).to_contain_text(word)
        expect(row.locator(".version-detail").first).to_contain_text("joined: rows are ")
        expect(row.locator(".history")).to_contain_text("ready")
        expect(row.locator(".facts").first).to_contain_text("Batching")
        name.press("Escape")
        expect(name).to_have_attribute("aria-expanded", "false")

    def test_an_open_row_says_in_which_form_a_version_runs(self):
        def form():
            versions = self.server.ask_json("/api/v1/models/half_plus_two")["versions"]
            return next(it["optimization"] for it in versions if it["optimization"])

        self.eventually(lambda: form()["state"] in ("optimized", "unchanged"), "a decision")
        self.show()
        row = self.row("half_plus_two")
        row.locator(".model-name").click()
        facts = row.locator(".facts").first
        expect(facts).to_contain_text("Optimization")
        expect(facts).to_contain_text("reads of variables are constants")
        if form()["state"] == "optimized":
            expect(facts).to_contain_text(re.compile(r"\d+ % less CPU time, \d+ equal results"))

    def test_an_open_row_names_operations_that_reach_outside_the_model(self):
        folder = os.path.join(self.server.folder, "reads_file")
        shutil.copytree(os.path.join(ROOT, "tests/data/clients/reads_file"), folder)
        self.addCleanup(shutil.rmtree, folder)
        self.show()
        row = self.row("reads_file")
        expect(row.locator(".wide .chip.good")).to_be_visible()
        row.locator(".model-name").click()
        expect(row.locator(".facts").first).to_contain_text("ReadFile reads a file (node read)")
        self.row("digits").locator(".model-name").click()
        facts = self.row("digits").locator(".facts").first
        expect(facts).to_contain_text("Batching")
        expect(facts).not_to_contain_text("Outside the model")

    def test_the_filter_narrows_the_models(self):
        self.show()
        expect(self.row("digits")).to_be_visible()
        self.page.get_by_label("Filter models").fill("half ready")
        expect(self.row("half_plus_two")).to_be_visible()
        expect(self.row("digits")).to_be_hidden()
        expect(self.page.locator("#models-count")).to_contain_text("1 of")
        self.page.get_by_label("Filter models").fill("no such model")
        expect(self.page.locator("#models-none")).to_be_visible()

    def test_names_that_are_markup_are_text(self):
        folder = os.path.join(self.server.folder, HOSTILE)
        shutil.copytree(os.path.join(MODELS, "half_plus_two"), folder)
        self.addCleanup(shutil.rmtree, folder)
        self.page.on("dialog", lambda dialog: self.fail(f"a script ran: {dialog.message}"))
        self.show()
        row = self.row(HOSTILE)
        expect(row.locator(".wide .chip.good")).to_be_visible()
        row.locator(".model-name").click()
        row.get_by_role("button", name="Try it").click()
        expect(self.page.locator("#try-model")).to_have_value(HOSTILE)
        self.page.locator("#try-send").click()
        expect(self.page.locator("#try-answer .chip")).to_contain_text("200")
        self.show("clients")
        expect(self.page.locator("#clients-code")).to_contain_text("curl")
        self.show("charts")
        expect(self.page.locator("#charts-model option", has_text=HOSTILE)).to_be_attached()
        self.assertEqual(self.page.locator("img[src='x'], [onerror]").count(), 0)


if __name__ == "__main__":
    unittest.main()
