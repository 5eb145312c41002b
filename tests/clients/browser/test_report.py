"""The report of a transform: a page that needs no server, readable on a desktop and on a phone."""

import os
import shutil
import subprocess
import tempfile
import unittest

from house import BINARY, CLIPPED, IMAGES, MODELS, PICTURES, PageTest
from running import environment

#: As of real stores: long, and without a place where a line would end.
LONG = "2026-11-25T23-59-59Z_warehouse-europe-west-4_camera-0017_frame"


class Report(PageTest):
    models = ("half_plus_two",)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        images, output = (os.path.join(folder.name, name) for name in ("images", "output"))
        os.mkdir(images)
        originals = sorted(name for name in os.listdir(IMAGES) if name.endswith(".png"))
        for number in range(400):
            original = os.path.join(IMAGES, originals[number % len(originals)])
            shutil.copy(original, os.path.join(images, f"{LONG}_{number:06}.png"))
        for name, content in (("damaged.png", b"\x89PNG\r\n\x1a\n damaged"), ("notes.txt", b"x")):
            with open(os.path.join(images, f"{LONG}_{name}"), "wb") as file:
                file.write(content)
        command = [BINARY, "transform", os.path.join(MODELS, "digits"), "--input", images]
        command += ["--output", output]
        # One object is damaged: the status is 1.
        done = subprocess.run(
            command, check=False, env=environment(), capture_output=True, text=True
        )
        cls.said = done.stdout + done.stderr
        cls.report = os.path.join(output, "_transform/report.html")

    def test_it_is_as_wide_as_the_window_and_clips_nothing(self):
        self.assertTrue(os.path.exists(self.report), self.said)
        for width in (390, 1280):
            for scheme in ("light", "dark"):
                with self.subTest(width=width, scheme=scheme):
                    viewport = {"width": width, "height": 844}
                    context = self.browser.new_context(viewport=viewport, color_scheme=scheme)
                    self.addCleanup(context.close)
                    page = context.new_page()
                    page.goto(f"file://{self.report}")
                    for heading in ("Throughput", "Slowest objects", "Failures", "Skipped", "Job"):
                        self.assertEqual(
                            page.get_by_role("heading", name=heading, exact=True).count(), 1
                        )
                    self.assertIn("damaged.png", page.content())
                    wide = page.evaluate("document.documentElement.scrollWidth")
                    self.assertLessEqual(wide, width)
                    self.assertEqual(page.evaluate(CLIPPED), [])
                    self.assertEqual(page.evaluate(BEYOND), [])
                    self.assertEqual(self.violations(page), [])
                    if PICTURES:
                        name = f"report-{width}-{scheme}.png"
                        page.screenshot(path=os.path.join(PICTURES, name), full_page=True)


#: Texts outside of the window, and those over other texts.
BEYOND = """() => {
    const boxes = [];
    const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode;
        if (!text.data.trim() || getComputedStyle(text.parentElement.closest("thead") ?? text.parentElement).clipPath !== "none")
            continue;
        const range = document.createRange();
        range.selectNodeContents(text);
        boxes.push(...[...range.getClientRects()].map((box) => [box, text]));
    }
    const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
    const found = boxes.filter(([box, text]) => box.left < 0 || box.right > innerWidth
        || boxes.some(([other, one]) => one !== text && over(box, other)));
    return [...new Set(found.map(([, text]) => text.data))];
}"""


if __name__ == "__main__":
    unittest.main()
