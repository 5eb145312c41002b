"""The list of models with 1, 5 and 200 of them, some failing, at the widths of a desktop and of a phone."""

import itertools
import json
import unittest

from playwright.sync_api import expect

from house import CLIPPED, PageTest

WIDTHS = (1280, 390)

#: Lines of names that begin inside a word.
BROKEN_NAMES = """() => [...document.querySelectorAll(".model-name span")].filter((name) => {
    if (!name.checkVisibility()) return false;
    const range = document.createRange();
    let before = null;
    for (const part of [...name.childNodes].filter((node) => node.data)) {
        for (let i = 0; i < part.data.length; i += 1) {
            range.setStart(part, i);
            range.setEnd(part, i + 1);
            const { top } = range.getBoundingClientRect();
            if (before && top > before.top + 2 && !/[_.:/-]/.test(before.letter)) return true;
            before = { top, letter: part.data[i] };
        }
    }
    return false;
}).map((name) => name.textContent)"""


class ManyModels(PageTest):
    models = ("half_plus_two",)

    def status(self, count, failing=()):
        """The status of the server, with this many models."""
        status = self.server.ask_json("/api/v1/status")
        one = status["models"][0]
        status["models"] = []
        for i in range(count):
            version = {**one["versions"][0], "requests_per_second": float(i)}
            if i in failing:
                version.update(state="FAILED", error="saved_model.pb is not a SavedModel " * 6)
            name = f"customer_churn_prediction_europe_{i:03}"
            status["models"].append({**one, "name": name, "versions": [version]})
        return status

    def page_of(self, status, width, **options):
        page = self.open(viewport={"width": width, "height": 844}, **options)
        body = json.dumps(status)
        page.route(
            "**/api/v1/status",
            lambda route: route.fulfill(content_type="application/json", body=body),
        )
        # Without a stream the page polls the status.
        page.route("**/api/v1/stream", lambda route: route.fulfill(status=404, body=""))
        self.expected.append("404")
        return self.show("overview", page)

    def names(self, page):
        rows = "[...document.querySelectorAll('.model')].filter(row => !row.hidden)"
        return page.evaluate(f"{rows}.map(row => row.querySelector('.model-name').textContent)")

    def test_nothing_is_clipped_and_names_break_between_words(self):
        for count in (1, 5, 200):
            for width in (*WIDTHS, 1024, 1920):
                with self.subTest(count, width=width):
                    status = self.status(count, failing=(0,))
                    status["server"]["reasons"] = [f"model {i} is not ready" for i in range(count)]
                    status["server"]["ready"] = False
                    page = self.page_of(status, width)
                    expect(page.locator(".model")).to_have_count(count)
                    self.assertEqual(page.evaluate(CLIPPED), [])
                    self.assertEqual(page.evaluate(BROKEN_NAMES), [])
                    wide = page.evaluate("document.documentElement.scrollWidth")
                    self.assertLessEqual(wide, width)

    def test_failures_come_first_and_the_list_is_sorted_and_filtered(self):
        page = self.page_of(self.status(200, failing=(7, 150)), 1280)
        expect(page.locator(".model")).to_have_count(200)
        self.assertEqual([name[-3:] for name in self.names(page)[:3]], ["007", "150", "000"])
        page.get_by_role("button", name="Requests", exact=True).click()
        head = page.get_by_role("columnheader", name="Requests")
        expect(head).to_have_attribute("aria-sort", "descending")
        self.assertEqual(self.names(page)[0][-3:], "199")
        page.get_by_role("button", name="Requests", exact=True).click()
        expect(head).to_have_attribute("aria-sort", "ascending")
        self.assertEqual(self.names(page)[0][-3:], "000")
        page.get_by_role("radio", name="Failing 2").click()
        self.assertEqual([name[-3:] for name in self.names(page)], ["007", "150"])
        expect(page.locator("#models-count")).to_have_text("2 of 200 models")
        # A link, or the page loaded again, shows the same.
        page.reload()
        expect(page.get_by_role("radio", name="Failing 2")).to_be_checked()
        expect(head).to_have_attribute("aria-sort", "ascending")
        self.assertEqual([name[-3:] for name in self.names(page)], ["007", "150"])

    def test_a_phone_has_a_menu_for_the_order(self):
        page = self.page_of(self.status(5, failing=(3,)), 390)
        expect(page.locator(".model")).to_have_count(5)
        self.assertEqual(self.names(page)[0][-3:], "003")
        page.get_by_label("Sort by").select_option("Requests")
        self.assertEqual(self.names(page)[0][-3:], "004")

    def test_a_model_is_searched_in_try_it(self):
        model = self.server.ask_json("/api/v1/models/half_plus_two")

        def detail(route):
            name = route.request.url.rsplit("/", 1)[1]
            wanted = next(one for one in status["models"] if one["name"] == name)
            versions = [
                {**full, "state": now["state"], "error": now["error"]}
                for full, now in zip(model["versions"], wanted["versions"], strict=True)
            ]
            body = json.dumps({**model, "name": name, "versions": versions})
            route.fulfill(content_type="application/json", body=body)

        for width in WIDTHS:
            with self.subTest(width=width):
                status = self.status(200, failing=(7, 150))
                page = self.page_of(status, width)
                page.route("**/api/v1/models/*", detail)
                self.show("try", page)
                field = page.get_by_role("combobox", name="Find a model")
                field.fill("europe 15")
                found = page.get_by_role("listbox").get_by_role("option")
                expect(found).to_have_count(8)
                expect(page.locator(".matches")).to_contain_text("and 4 more models")
                field.press("ArrowDown")
                field.press("Enter")
                chosen = page.locator("#try-model")
                expect(chosen).to_have_value("customer_churn_prediction_europe_115")
                expect(page.locator("#try-send")).to_be_visible()
                field.fill("failed")
                expect(found).to_have_count(2)
                found.last.click()
                expect(chosen).to_have_value("customer_churn_prediction_europe_150")
                expect(page.locator("#try-reason")).to_contain_text("is not a SavedModel")
                expect(page.locator("#try-send")).to_be_hidden()
                field.fill("no such model")
                expect(page.locator(".matches")).to_have_text("No model matches.")
                wide = page.evaluate("document.documentElement.scrollWidth")
                self.assertLessEqual(wide, width)

    def test_sizes_of_models_are_those_of_files_and_the_connection_has_a_name(self):
        page = self.page_of(self.status(1), 1280)
        expect(page.get_by_role("columnheader", name="Files")).to_be_visible()
        expect(page.locator("#connection-text")).to_have_text("Polling")
        expect(page.locator("#tiles")).to_contain_text("Saturation")

    def test_headings_skip_no_level(self):
        for panel in ("overview", "charts", "try", "clients", "admin", "api"):
            self.show(panel)
            levels = self.page.evaluate("""
                [...document.querySelectorAll("h1, h2, h3, h4")].filter((one) => one.checkVisibility())
                    .map((one) => Number(one.tagName[1]))
            """)
            for before, after in itertools.pairwise(levels):
                self.assertLessEqual(after, before + 1, f"{panel}: {levels}")

    def test_a_lost_connection_turns_grey_and_says_since_when(self):
        self.expected += ["ERR_", "Failed to fetch"]
        self.show()
        expect(self.page.locator("#connection")).to_have_attribute("data-state", "live")
        self.server.stop()
        expect(self.page.locator("#ready-text")).to_contain_text("No contact since ")
        self.assertRegex(
            self.page.locator("#banner-text").inner_text(), r"lost since \d\d:\d\d:\d\d"
        )
        grey = "getComputedStyle(document.querySelector('main')).filter"
        self.assertEqual(self.page.evaluate(grey), "grayscale(1)")
        self.server.start()
        expect(self.page.locator("#ready-text")).to_have_text("Ready")
        self.assertEqual(self.page.evaluate(grey), "none")


if __name__ == "__main__":
    unittest.main()
