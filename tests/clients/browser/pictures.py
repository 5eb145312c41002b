"""Makes the pictures of docs/dashboard.md and docs/releases.md: pictures.py FOLDER

Needs what the tests need: TENSORSERVE_BINARY, and the packages of requirements.txt. Takes four minutes, three of which
are traffic for the charts.
"""

import base64
import contextlib
import json
import math
import os
import shutil
import sys
import tempfile
import threading
import time

from playwright.sync_api import expect

from house import IMAGES, ROOT, Server, browser

TABLE = os.path.join(ROOT, "tests/data/platforms/sklearn/passengers_boosted")
MODELS = ("digits", "half_plus_two", "recommender", "text_normalizer", "wide_mlp")
TRAFFIC_SECONDS = 180


def prepare(server):
    """A label, a table, and a version that has failed."""
    broken = os.path.join(server.folder, "digits/3")
    os.makedirs(broken)
    with open(os.path.join(broken, "saved_model.pb"), "wb") as file:
        file.write(b"this is no model")
    table = os.path.join(server.folder, "titanic/1")
    os.makedirs(table)
    shutil.copy(f"{TABLE}.pkl", os.path.join(table, "model.pkl"))
    server.ask_json("/api/v1/models/digits/versions/2/labels", {"label": "stable"})


def send(server, over, model, body, rate):
    """Sends requests to a model, at a rate that changes."""
    began = time.monotonic()
    turn = 0
    while not over.wait(1 / (rate * (1.3 + math.sin((time.monotonic() - began) / 17)))):
        turn += 1
        name = "no_such_model" if turn % 150 == 0 else model
        with contextlib.suppress(OSError):
            server.ask_json(
                f"/v1/models/{name}:predict", {"inputs": {}} if turn % 60 == 0 else body
            )


def bodies():
    """A request for each model that gets traffic, and how many of them a second."""
    clicks = {"user_id": [1, 2, 3], "item_id": [4, 5, 6], "features": [[0.5] * 13] * 3}
    return {
        "half_plus_two": ({"inputs": {"x": [1.0] * 8}}, 30),
        "wide_mlp": ({"inputs": {"x": [[0.1] * 784] * 2}}, 20),
        "recommender": ({"inputs": clicks}, 15),
    }


def rows():
    """A CSV file of passengers, as the model's training had them."""
    with open(f"{TABLE}.json") as file:
        passengers = json.load(file)["rows"]
    plain = [row for row in passengers if row["Age"] is None or 0 < row["Age"] < 100]
    names = ("PassengerId", "Age", "Embarked", "Fare", "Parch", "Pclass", "Sex", "SibSp")
    values = [
        [
            ""
            if row[name] is None
            else f"{row[name]:g}"
            if isinstance(row[name], float)
            else str(row[name])
            for name in names
        ]
        for row in plain
    ]
    return "\n".join(",".join(line) for line in [names, *values]).encode()


def shooter(server, folder):
    """What takes pictures of a server's page."""

    def shot(name, panel, act=None, scheme="light", **options):
        options = {"viewport": {"width": 1280, "height": 800}, **options}
        context = browser().new_context(color_scheme=scheme, reduced_motion="reduce", **options)
        page = context.new_page()
        page.goto(f"{server.url}/#{panel}")
        expect(page.locator(f"#panel-{panel.split('/')[0]}")).to_be_visible()
        if act:
            act(page)
        page.mouse.move(0, 0)
        page.wait_for_timeout(1500)
        page.screenshot(path=os.path.join(folder, f"dashboard-{name}.png"))
        context.close()

    return shot


def take(server, folder):
    shot = shooter(server, folder)

    def image(page):
        page.locator(".drop input").set_input_files(os.path.join(IMAGES, "3_45.png"))
        expect(page.locator(".thumb")).to_be_visible()
        page.locator("#try-send").click()
        expect(page.locator("section.likely")).to_be_visible()

    def table(page):
        expect(page.get_by_label("Age, row 1")).to_be_visible()
        page.locator("#try-file").set_input_files(
            {"name": "titanic.csv", "mimeType": "text/csv", "buffer": rows()}
        )
        expect(page.locator("#try-table table")).to_be_visible()
        page.locator("#try-send").click()
        expect(page.locator("#try-answer .chip.good")).to_be_visible()

    def lines(page):
        expect(page.locator("#panel-overview .row-line .line").first).to_be_attached()

    shot("overview", "overview", lines, viewport={"width": 1280, "height": 880})
    shot("try", "try/digits", image)
    shot("csv", "try/titanic", table)
    shot("charts", "charts", scheme="dark", viewport={"width": 1280, "height": 930})
    phone = {"viewport": {"width": 390, "height": 800}, "device_scale_factor": 1.25}
    shot("phone", "overview", scheme="dark", **phone)


def take_held(folder):
    """A version that recorded requests speak against."""
    home = tempfile.TemporaryDirectory()
    options = ("--release", "gated", "--request-log", os.path.join(home.name, "log/"))
    server = Server(
        "digits", options=(*options, "--release-state", os.path.join(home.name, "held"))
    )
    try:
        for name in sorted(os.listdir(IMAGES)) * 5:
            if name.endswith(".png"):
                with open(os.path.join(IMAGES, name), "rb") as file:
                    image = {"b64": base64.b64encode(file.read()).decode()}
                server.ask_json("/v1/models/digits:predict", {"instances": [image]})
        new = os.path.join(home.name, "3")
        shutil.copytree(os.path.join(server.folder, "digits/1"), new)
        shutil.move(new, os.path.join(server.folder, "digits/3"))

        def report(page):
            expect(page.locator(".version .chip.bad")).to_be_visible()
            page.locator(".model-name").click()
            expect(page.locator(".compared")).to_be_visible()

        size = {"width": 1280, "height": 930}
        shooter(server, folder)("held", "overview", report, viewport=size)
    finally:
        server.close()
        home.cleanup()


def main(folder):
    server = Server(*MODELS)
    over = threading.Event()
    threads = [
        threading.Thread(target=send, args=(server, over, model, body, rate))
        for model, (body, rate) in bodies().items()
    ]
    try:
        prepare(server)
        for thread in threads:
            thread.start()
        time.sleep(TRAFFIC_SECONDS)
        take(server, folder)
        take_held(folder)
    finally:
        over.set()
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join()
        server.close()


if __name__ == "__main__":
    main(sys.argv[1])
