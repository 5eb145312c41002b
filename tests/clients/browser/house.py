"""A server of the built binary, Debian's Chromium, and a page that is checked for errors."""

import atexit
import functools
import json
import os
import shutil
import sys
import tempfile
import time
import unittest
import urllib.request

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Error, expect, sync_playwright

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import BINARY, ROOT, Running, environment, free_port  # noqa: F401

MODELS = os.path.join(ROOT, "models")
IMAGES = os.path.join(ROOT, "examples/images/digits")

#: Directory for screenshots of every panel and of the report, if set.
PICTURES = os.environ.get("TENSORSERVE_PICTURES")

#: Generous, for machines that build at the same time.
PATIENCE = 60_000
expect.set_options(timeout=PATIENCE)

#: Boxes that cut off a text without a sign of it.
CLIPPED = """() => {
    const found = [];
    const isForScreenReaders = (element) =>
        element && (getComputedStyle(element).clipPath === "inset(50%)" || isForScreenReaders(element.parentElement));
    const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode;
        const element = text.parentElement;
        if (!text.data.trim() || !element.checkVisibility({ contentVisibilityAuto: true })
            || element.closest(".offscreen, option") || isForScreenReaders(element)) continue;
        const range = document.createRange();
        range.selectNodeContents(text);
        for (const box of range.getClientRects()) {
            for (let at = element; at; at = at.parentElement) {
                const style = getComputedStyle(at);
                if (/auto|scroll/.test(style.overflowX) || style.webkitLineClamp !== "none") break;
                if (!/hidden|clip/.test(style.overflowX)) continue;
                const frame = at.getBoundingClientRect();
                if (box.right > frame.right + 1 || box.bottom > frame.bottom + 1) found.push(text.data);
            }
        }
    }
    return [...new Set(found)];
}"""


def chromium():
    """The path of Chromium, which packages.sh installs for root."""
    for name in (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise RuntimeError(
        "the dashboard's tests need Chromium: apt-get install chromium, or set CHROMIUM"
    )


def launch(playwright, attempts=3):
    """Starts Chromium. Once in CI it ended while it started; no test is about that."""
    # Chromium's sandbox does not work for root, which CI runs as.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    try:
        return playwright.chromium.launch(executable_path=chromium(), args=arguments)
    except Error as error:
        if attempts == 1:
            raise
        print(f"Chromium did not start, and is started again: {error}", file=sys.stderr)
        return launch(playwright, attempts - 1)


@functools.cache
def browser():
    """The Chromium of all tests. Each page has a context, and so cookies and storage, of its own."""
    playwright = sync_playwright().start()
    atexit.register(playwright.stop)
    started = launch(playwright)
    atexit.register(started.close)
    return started


class Server:
    """Serves a folder of models that the test may change, on a port that outlives restarts."""

    def __init__(self, *names, options=()):
        self.home = tempfile.TemporaryDirectory()
        self.folder = os.path.join(self.home.name, "models")
        os.mkdir(self.folder)
        for name in names:
            shutil.copytree(os.path.join(MODELS, name), os.path.join(self.folder, name))
        self.port = free_port()
        self.options = options
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        command = [
            "serve",
            self.folder,
            "--http-port",
            str(self.port),
            "--grpc-port",
            "0",
            "--poll-interval",
            "300ms",
            "--log-level",
            "error",
            *self.options,
        ]
        self.running = Running(command, environment(), may_be_unready=True)

    def stop(self):
        self.running.stop()

    def close(self):
        self.stop()
        self.home.cleanup()

    def ask(self, path, body=None, headers=None):
        """Sends a request; returns the text of the response."""
        request = urllib.request.Request(self.url + path, data=body, headers=headers or {})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read().decode()

    def ask_json(self, path, body=None):
        headers = {"Content-Type": "application/json"}
        return json.loads(self.ask(path, body and json.dumps(body).encode(), headers))


class PageTest(unittest.TestCase):
    """A page of a server. Every error in the browser that a test does not expect fails it."""

    #: The models and the options of the server of all tests of the class.
    models = ("digits", "half_plus_two", "recommender")
    options = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.models, options=cls.options)
        cls.addClassCleanup(cls.server.close)
        cls.browser = browser()

    def setUp(self):
        #: Parts of the console messages that the test expects.
        self.expected = []
        self.page = self.open()

    def violations(self, page):
        """What axe finds against a page."""
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
            for rule in Axe().run(page).response["violations"]
            for node in rule["nodes"]
        ]

    def open(self, **context):
        """A new page, without an address yet."""
        options = {
            "viewport": {"width": 1440, "height": 900},
            "reduced_motion": "reduce",
            **context,
        }
        context = self.browser.new_context(**options)
        self.addCleanup(context.close)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        said, asked = [], []
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("request", lambda request: asked.append(request.url))
        page.add_init_script("""
            addEventListener("securitypolicyviolation", (event) =>
                console.error("policy: " + event.violatedDirective + " " + event.blockedURI));
            addEventListener("unhandledrejection", (event) =>
                console.error("unhandled: " + event.reason));
        """)
        # Runs before the page closes.
        self.addCleanup(self.check, said, asked)
        return page

    def check(self, said, asked):
        wrong = [
            line
            for line in said
            if line.startswith(("error", "warning"))
            and not any(part in line for part in self.expected)
        ]
        self.assertEqual(wrong, [], "the console of the browser")
        ours = (self.server.url, f"blob:{self.server.url}", "data:")
        self.assertEqual([url for url in asked if not url.startswith(ours)], [])

    def show(self, panel="overview", page=None):
        """Opens a panel by its tab."""
        page = page or self.page
        if not page.url.startswith(self.server.url):
            page.goto(self.server.url)
        page.locator(f"#tab-{panel.split('/')[0]}").click()
        expect(page.locator(f"#panel-{panel.split('/')[0]}")).to_be_visible()
        return page

    def row(self, name):
        """The row of a model."""
        return self.page.locator(".model").filter(
            has=self.page.locator(".model-name", has_text=name)
        )

    def eventually(self, check, what):
        until = time.monotonic() + PATIENCE / 1000
        while time.monotonic() < until:
            if check():
                return
            self.page.wait_for_timeout(100)
        self.fail(f"timed out: {what}")
