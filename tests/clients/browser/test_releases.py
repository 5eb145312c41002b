"""New versions that recorded requests speak against: what is shown of their trials, and what an admin does with them."""

import base64
import json
import os
import shutil
import tempfile
import unittest

from playwright.sync_api import expect

from house import CLIPPED, IMAGES, MODELS, PICTURES, PageTest

#: More of everything than the trials of these tests have.
LONG = "signature_of_the_second_tower/customer_churn_probability:0 " * 4
FULL_REPORT = {
    "failed": [f"requests.{i}.tfrecord record {i}: {LONG}" for i in range(3)],
    "failed_in_new": 3,
    "failed_in_both": 2,
    "failed_in_old": 1,
    "widened_tolerances": {"scores": 0.012},
    "slowdown": 1.64,
    "signatures": {"lost": [f"{LONG} is missing"], "added": ['signature "encode" is new']},
    "notes": [f"{LONG} could not be read"],
}


class Releases(PageTest):
    models = ()

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.options = ("--release", "gated", "--release-watch", "0s")
        cls.options += ("--request-log", os.path.join(folder.name, "log/"))
        cls.options += ("--release-state", os.path.join(folder.name, "held"))
        super().setUpClass()

    def publish(self, model, version, of):
        """Version `of` of digits becomes a version of a model, at once."""
        hidden = os.path.join(self.server.home.name, f"{model}-{version}")
        shutil.copytree(os.path.join(MODELS, "digits", str(of)), hidden)
        folder = os.path.join(self.server.folder, model)
        os.makedirs(folder, exist_ok=True)
        os.rename(hidden, os.path.join(folder, str(version)))

    def version(self, model, number):
        all_models = self.server.ask_json("/api/v1/status")["models"]
        if all(one["name"] != model for one in all_models):
            return {"state": None}
        versions = self.server.ask_json(f"/api/v1/models/{model}")["versions"]
        found = (one for one in versions if one["version"] == number)
        return next(found, {"state": None})

    def wait_for(self, model, number, state):
        self.eventually(
            lambda: self.version(model, number)["state"] == state,
            f"version {number} of {model} is {state}",
        )

    def serve(self, model, requests=5):
        """Version 1 serves and has answered requests."""
        self.publish(model, 1, of=1)
        self.wait_for(model, 1, "AVAILABLE")
        images = sorted(name for name in os.listdir(IMAGES) if name.endswith(".png"))
        for name in images[:requests]:
            with open(os.path.join(IMAGES, name), "rb") as file:
                image = base64.b64encode(file.read()).decode()
            self.server.ask_json(f"/v1/models/{model}:predict", {"instances": [{"b64": image}]})

    def hold(self, model):
        """Version 1 serves, and version 2 is held."""
        self.serve(model)
        self.publish(model, 2, of=2)
        self.wait_for(model, 2, "HELD")

    def opened(self, name, page=None):
        page = self.show(page=page)
        row = page.locator(".model").filter(has=page.locator(".model-name", has_text=name))
        row.locator(".model-name").click()
        expect(row.locator("h3").first).to_be_visible()
        return row

    def confirm(self, button, action, *told):
        button.click()
        dialog = self.page.get_by_role("dialog")
        for text in told:
            expect(dialog).to_contain_text(text)
        dialog.get_by_role("button", name=action, exact=True).click()
        expect(dialog).to_be_hidden()

    def test_a_held_version_is_released_and_the_next_one_dropped(self):
        self.hold("letters")
        self.show()
        row = self.row("letters")
        expect(row.locator(".wide .chip.bad")).to_have_text("v2held")
        expect(row.locator(".version-error")).to_contain_text(
            'output "probabilities": values differ'
        )
        self.page.get_by_role("radio", name="Failing").click()
        expect(row).to_be_visible()
        self.opened("letters")
        held = row.locator("section", has_text="Version 2")
        expect(held.locator(".notice")).to_contain_text("What is against it")
        expect(held.locator(".notice li")).to_have_count(
            len(self.version("letters", 2)["trial"]["against"])
        )
        expect(held.locator(".notice")).to_contain_text("of 5 requests")
        expect(held.locator(".facts").first).to_contain_text("Answered by both5 requests")
        expect(held.locator(".facts").first).to_contain_text("too few requests to tell")
        cells = held.locator("tr", has_text="probabilities").locator("td")
        expect(cells).to_have_count(6)
        expect(cells.nth(0)).to_have_text("5")
        expect(cells.nth(1)).to_have_text("0")
        expect(cells.nth(2)).to_contain_text("in request")
        expect(held.locator("tr", has_text="classes").locator("td").nth(1)).to_have_text("5")
        # Only the version that serves can be tried.
        self.show("try")
        self.page.locator("#try-model").select_option("letters")
        expect(self.page.locator("#try-send")).to_be_enabled()
        offered = self.page.locator("#try-version option").all_inner_texts()
        self.assertEqual(offered, ["Latest version", "Version 1"])
        self.show()
        self.confirm(
            held.get_by_role("button", name="Release version 2…"),
            "Release",
            "Version 2 serves from now on",
            "Version 1 is unloaded",
        )
        expect(self.page.locator("#toasts")).to_contain_text("Version 2 of letters is released.")
        self.wait_for("letters", 2, "AVAILABLE")
        self.page.get_by_role("radio", name="All").click()
        expect(row.locator(".wide .chip.good")).to_have_text("v2ready")
        released = row.locator("details", has_text="Was held, and released by an admin")
        expect(released.locator("table")).to_be_hidden()
        released.locator("summary").click()
        expect(released.locator("table")).to_be_visible()
        self.publish("letters", 3, of=1)
        self.wait_for("letters", 3, "HELD")
        # The page goes on to show the report that the user has opened.
        drop = row.get_by_role("button", name="Drop version 3…")
        expect(drop).to_be_visible()
        expect(released.locator("table")).to_be_visible()
        self.confirm(drop, "Drop", "Version 2 goes on to serve")
        expect(self.page.locator("#toasts")).to_contain_text("Version 3 of letters is dropped.")
        self.wait_for("letters", 3, "END")
        expect(drop).to_have_count(0)
        self.assertEqual(self.version("letters", 2)["state"], "AVAILABLE")
        self.publish("letters", 4, of=2)
        self.wait_for("letters", 4, "AVAILABLE")
        passed = row.locator("details", has_text="Passed its trial with 5 recorded requests")
        passed.locator("summary").click()
        expect(passed.locator("table")).to_be_visible()

    def test_an_error_is_shown_if_the_version_is_held_no_more(self):
        self.hold("gone")
        row = self.opened("gone")
        button = row.get_by_role("button", name="Release version 2…")
        expect(button).to_be_visible()
        # As of another admin, while this one reads the dialog.
        button.click()
        json_type = {"Content-Type": "application/json"}
        self.server.ask("/api/v1/models/gone/versions/2/release", b"{}", json_type)
        self.wait_for("gone", 2, "AVAILABLE")
        self.expected.append("400")
        self.page.get_by_role("dialog").get_by_role("button", name="Release", exact=True).click()
        expect(self.page.locator(".toast.bad")).to_contain_text(
            "version 2 of model gone is not held"
        )

    def test_a_version_on_trial_can_be_dropped(self):
        self.hold("tried")

        def on_trial(route):
            """As while the trial runs, which takes milliseconds here."""
            answer = route.fetch()
            status = answer.json()
            for model in status.get("models", [status]):
                for version in model["versions"]:
                    if version["state"] == "HELD":
                        version.update(state="TRIAL", error=None)
            route.fulfill(response=answer, body=json.dumps(status))

        self.page.route("**/api/v1/status", on_trial)
        self.page.route("**/api/v1/models/tried", on_trial)
        self.page.route("**/api/v1/stream", lambda route: route.fulfill(status=404, body=""))
        self.expected.append("404")
        row = self.opened("tried")
        expect(row.locator(".wide .chip.busy")).to_have_text("v2on trial")
        section = row.locator("section", has_text="Version 2")
        expect(section).to_contain_text("It serves once it has passed.")
        expect(section.get_by_role("button")).to_have_count(1)
        button = section.get_by_role("button", name="Drop version 2…")
        self.confirm(button, "Drop", "Its trial ends.", "Version 1 goes on to serve")
        self.wait_for("tried", 2, "END")
        expect(button).to_have_count(0)

    def test_only_an_admin_decides(self):
        self.hold("read")

        def as_reader(route):
            answer = route.fetch()
            status = answer.json()
            status["server"]["roles"] = ["read"]
            route.fulfill(response=answer, body=json.dumps(status))

        self.page.route("**/api/v1/status", as_reader)
        self.page.route("**/api/v1/stream", lambda route: route.fulfill(status=404, body=""))
        self.expected.append("404")
        row = self.opened("read")
        expect(row.locator(".compared")).to_be_visible()
        expect(row.get_by_role("button", name="version 2")).to_have_count(0)

    def with_report(self, page, model, **changes):
        """The trial of version 2 in the answers of the server is changed."""

        def change(route):
            answer = route.fetch()
            detail = answer.json()
            for version in detail["versions"]:
                if version["version"] == 2:
                    version["trial"].update(changes)
            route.fulfill(response=answer, body=json.dumps(detail))

        page.route(f"**/api/v1/models/{model}", change)

    def test_reports_are_readable_at_every_width_light_and_dark(self):
        self.hold("seen")
        for width in (390, 1280):
            for scheme in ("light", "dark"):
                for changes in ({}, FULL_REPORT):
                    with self.subTest(width=width, scheme=scheme, full=bool(changes)):
                        viewport = {"width": width, "height": 844}
                        page = self.open(viewport=viewport, color_scheme=scheme)
                        self.with_report(page, "seen", **changes)
                        row = self.opened("seen", page)
                        expect(row.locator(".compared")).to_be_visible()
                        headings = row.locator("h3, h4").all_inner_texts()
                        self.assertIn("Its trial", headings)
                        for heading in ("Widened tolerances", "Changes of signatures", "Notes"):
                            self.assertEqual(heading in headings, bool(changes), headings)
                        self.assertEqual(page.evaluate(CLIPPED), [])
                        wide = page.evaluate("document.documentElement.scrollWidth")
                        self.assertLessEqual(wide, width)
                        self.assertEqual(page.evaluate(SKIPPED_LEVELS), [])
                        self.assertEqual(self.violations(page), [])
                        if PICTURES:
                            name = f"held-{width}-{scheme}{'-full' if changes else ''}.png"
                            page.screenshot(path=os.path.join(PICTURES, name), full_page=True)
                        page.context.close()


#: Headings that are more than one level below the one before.
SKIPPED_LEVELS = """() => {
    const all = [...document.querySelectorAll("h1, h2, h3, h4")].filter((one) => one.checkVisibility());
    const level = (one) => Number(one.tagName[1]);
    return all.filter((one, i) => i && level(one) > level(all[i - 1]) + 1).map((one) => one.textContent);
}"""


if __name__ == "__main__":
    unittest.main()
