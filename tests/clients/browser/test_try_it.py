"""Trying models: the page gets the same response as any other client."""

import base64
import csv
import io
import json
import os
import re
import shutil
import subprocess
import unittest

from playwright.sync_api import expect

from house import IMAGES, ROOT, PageTest

IMAGE = os.path.join(IMAGES, "3_45.png")
SKLEARN = os.path.join(ROOT, "tests/data/platforms/sklearn")
SIMPLE = os.path.join(ROOT, "tests/data/simple-tensorflow-serving/models")


class TryIt(PageTest):
    models = ("digits", "half_plus_two", "recommender", "wide_mlp")

    def model(self, name):
        self.show("try")
        self.page.locator("#try-model").select_option(name)
        # The form of the model that was selected before stays until that of this one is complete.
        legend = self.page.locator("#try-inputs legend .code").first
        expect(legend).to_have_text(self.first_input(name))

    def ready(self, name):
        """Waits until a model is listed as one that can be tried."""
        expect(self.page.locator(f"#try-model option[value={name}]")).to_have_text(name)

    def first_input(self, name):
        versions = self.server.ask_json(f"/api/v1/models/{name}")["versions"]
        signatures = [one for version in versions for one in version.get("signatures") or []]
        default = next(one for one in signatures if one["name"] == "serving_default")
        return default["inputs"][0]["name"]

    def send(self):
        # Removes the response to an earlier request.
        self.page.locator("#try-answer").evaluate("place => place.replaceChildren()")
        self.page.locator("#try-send").click()
        expect(self.page.locator("#try-answer .chip.good")).to_contain_text("200")
        return self.page.locator("#try-answer-text").inner_text()

    def rows(self, wanted):
        shown = self.page.locator(".rows-control output")
        while int(shown.inner_text()) < wanted:
            self.page.get_by_role("button", name="Add a row").click()
        while int(shown.inner_text()) > wanted:
            self.page.get_by_role("button", name="Remove a row").click()

    def wire(self, name):
        self.page.get_by_role("radio", name=name, exact=True).click()

    def shown_request(self):
        return self.page.locator("#try-request").inner_text()

    def shown_text(self):
        """The body of the request, as the page copies it."""
        return self.page.locator("#try-request").get_attribute("data-whole").split("\n\n", 1)[1]

    def sent_again(self):
        """The response that another client gets for the request that is shown."""
        head, body = self.shown_request().split("\n\n", 1)
        first, *lines = head.split("\n")
        path = first.split(" ")[1]
        headers = dict(line.split(": ", 1) for line in lines)
        return self.server.ask(path, body.encode(), headers)

    def test_numbers_in_a_form_over_each_protocol(self):
        self.model("half_plus_two")
        self.rows(2)
        self.page.get_by_label("x, row 1").fill("5")
        self.page.get_by_label("x, row 2").fill("0.1")
        for wire, path, answer in (
            ("TensorFlow Serving", "/v1/models/half_plus_two:predict", "outputs"),
            ("Simple", "/", "y"),
            ("SageMaker", "/invocations", "outputs"),
        ):
            with self.subTest(wire):
                self.wire(wire)
                self.assertIn(f"POST {path} HTTP/1.1", self.shown_request())
                text = self.send()
                self.assertEqual(text.strip(), self.sent_again().strip())
                self.assertAlmostEqual(json.loads(text)[answer][0], 4.5)
        expect(self.page.locator(".waterfall")).to_contain_text("run")

    def test_the_open_inference_protocol(self):
        self.model("recommender")
        self.rows(2)
        self.wire("Open Inference")
        self.assertIn("POST /v2/models/recommender/infer HTTP/1.1", self.shown_request())
        outputs = json.loads(self.send())["outputs"]
        self.wire("TensorFlow Serving")
        wanted = json.loads(self.send())["outputs"]
        for output in outputs:
            flat = wanted[output["name"]] if isinstance(wanted, dict) else wanted
            while isinstance(flat[0], list):
                flat = [value for row in flat for value in row]
            self.assertEqual(output["data"], flat)

    def mlflow_model(self, name, inputs):
        """Serves a model folder of MLflow with these inputs in its signature."""
        folder = os.path.join(self.server.folder, name, "1")
        os.makedirs(folder)
        self.addCleanup(shutil.rmtree, os.path.dirname(folder))
        shutil.copy(
            os.path.join(SKLEARN, "iris_logreg_pipeline.pkl"), os.path.join(folder, "model.pkl")
        )
        with open(os.path.join(folder, "MLmodel"), "w") as file:
            file.write("flavors:\n  sklearn: {pickled_model: model.pkl, ")
            file.write("serialization_format: pickle}\nsignature:\n")
            file.write(f"  inputs: '{json.dumps(inputs)}'\n")
        self.ready(name)

    def test_the_protocol_of_mlflow(self):
        names = ("sepal length", "sepal width", "petal length", "petal width")
        self.show("try")
        self.mlflow_model("flowers", [{"type": "double", "name": name} for name in names])
        tensor = {"dtype": "float64", "shape": [-1, 4]}
        self.mlflow_model("matrix", [{"type": "tensor", "tensor-spec": tensor}])
        rows = [[5.1, 3.5, 1.4, 0.2], [6.3, 3.3, 6.0, 2.5]]
        for model, body in (
            ("flowers", {"dataframe_split": {"columns": list(names), "data": rows}}),
            ("matrix", {"inputs": rows}),
        ):
            with self.subTest(model):
                self.model(model)
                # `/invocations` is MLflow's for this model, and not SageMaker's.
                expect(self.page.get_by_role("radio", name="SageMaker")).to_be_hidden()
                self.wire("MLflow")
                self.open_csv("5.1,3.5,1.4,0.2\n6.3,3.3,6.0,2.5\n")
                expect(self.page.locator("#try-table tbody tr")).to_have_count(2)
                self.assertIn("POST /invocations HTTP/1.1", self.shown_request())
                self.assertEqual(json.loads(self.shown_text()), body)
                text = self.send()
                self.assertEqual(text, self.sent_again())
                self.assertEqual(json.loads(text), {"predictions": [0, 2]})
        self.page.reload()
        expect(self.page.get_by_role("radio", name="MLflow")).to_be_checked()
        self.model("digits")
        expect(self.page.get_by_role("radio", name="MLflow")).to_be_hidden()
        expect(self.page.get_by_role("radio", name="TensorFlow Serving")).to_be_checked()
        expect(self.page.get_by_role("radio", name="SageMaker")).to_be_visible()

    def test_a_command_for_the_shell_gets_the_same_response(self):
        self.model("half_plus_two")
        self.page.get_by_label("x, row 1").fill("5")
        expect(self.page.get_by_role("button", name="Copy as curl")).to_be_visible()
        for wire in ("TensorFlow Serving", "Simple", "SageMaker", "Open Inference"):
            with self.subTest(wire):
                self.wire(wire)
                answer = json.loads(self.send())
                command = self.page.locator("#try-request").get_attribute("data-curl")
                done = subprocess.run(
                    ["sh", "-c", f"{command} --silent"], capture_output=True, check=True
                )
                found = json.loads(done.stdout)
                # Every request has an identifier of its own.
                self.assertEqual({**found, "id": 0}, {**answer, "id": 0})

    def test_an_address_keeps_the_model_and_the_protocol(self):
        self.model("recommender")
        self.wire("Open Inference")
        self.assertIn("#try/recommender?signature=serving_default&api=v2", self.page.url)
        self.page.reload()
        expect(self.page.locator("#try-model")).to_have_value("recommender")
        expect(self.page.get_by_role("radio", name="Open Inference")).to_be_checked()
        self.page.locator("#tab-clients").click()
        expect(self.page.locator("#clients-model")).to_have_value("recommender")

    def test_a_failed_model_shows_its_reason_and_then_its_form(self):
        folder = os.path.join(self.server.folder, "broken")
        os.makedirs(os.path.join(folder, "1"))
        self.addCleanup(shutil.rmtree, folder)
        with open(os.path.join(folder, "1/saved_model.pb"), "wb") as file:
            file.write(b"this is no model")
        self.show("try")
        # A model that can be tried is selected at first.
        expect(self.page.locator("#try-model")).to_have_value("digits")
        option = self.page.locator("#try-model option[value=broken]")
        expect(option).to_have_text("broken (failed)")
        self.page.locator("#try-model").select_option("broken")
        expect(self.page.locator("#try-reason")).to_contain_text("Version 1 failed")
        expect(self.page.locator("#try-reason")).to_contain_text("saved_model.pb")
        expect(self.page.locator("#try-send")).to_be_hidden()
        self.assertTrue(self.page.url.endswith("#try/broken"))
        self.page.reload()
        expect(self.page.locator("#try-reason")).to_contain_text("saved_model.pb")
        source = os.path.join(self.server.folder, "half_plus_two/1")
        shutil.copytree(source, os.path.join(folder, "2"))
        expect(option).to_have_text("broken")
        expect(self.page.locator("#try-reason")).to_be_hidden()
        self.assertEqual(json.loads(self.send()), {"outputs": [2.5]})

    def test_models_of_other_platforms(self):
        for name, file in (
            ("forest", "scikitlearn_iris/model.pkl"),
            ("tree", "pmml_iris/DecisionTreeIris.pmml"),
        ):
            folder = os.path.join(self.server.folder, name, "1")
            os.makedirs(folder)
            shutil.copy(os.path.join(SIMPLE, file), folder)
        self.page.reload()
        self.show("try")
        for name in ("forest", "tree"):
            self.ready(name)
        self.model("forest")
        self.rows(1)
        for column, value in enumerate("1234", 1):
            self.page.get_by_label(f"data, row 1, column {column}").fill(value)
        for wire in ("TensorFlow Serving", "Simple", "SageMaker"):
            with self.subTest(wire):
                self.wire(wire)
                text = self.send()
                self.assertEqual(text.strip(), self.sent_again().strip())
                self.assertIn("0.34285714", text)
        self.model("tree")
        self.rows(1)
        for field, value in (
            ("Petal_Length", "1.4"),
            ("Petal_Width", "0.2"),
            ("Sepal_Length", "5.1"),
            ("Sepal_Width", "3.5"),
        ):
            self.page.get_by_label(f"{field}, row 1").fill(value)
        for wire in ("TensorFlow Serving", "Simple", "SageMaker"):
            with self.subTest(wire):
                self.wire(wire)
                text = self.send()
                self.assertEqual(text.strip(), self.sent_again().strip())
                self.assertIn("setosa", text)

    def passengers(self):
        """Serves a pipeline of tables with text; returns rows and what the original predicts for them."""
        folder = os.path.join(self.server.folder, "passengers", "1")
        os.makedirs(folder)
        self.addCleanup(shutil.rmtree, os.path.dirname(folder))
        shutil.copy(os.path.join(SKLEARN, "passengers_boosted.pkl"), folder)
        with open(os.path.join(SKLEARN, "passengers_boosted.json")) as file:
            return json.load(file)

    def open_csv(self, text, page=None):
        page = page or self.page
        page.locator("#try-file").set_input_files(
            {"name": "passengers.csv", "mimeType": "text/csv", "buffer": text.encode()}
        )

    def test_a_csv_file_shows_its_first_rows_with_send_in_view(self):
        golden = self.passengers()
        rows = golden["rows"][:12]
        names = ("Age", "Embarked", "Fare", "Parch", "Pclass", "Sex", "SibSp")
        self.assertIsNone(rows[0]["Age"])
        # Lines end with CRLF, and the names of passengers contain commas and quotes.
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, rows[0])
        writer.writeheader()
        writer.writerows({**row, "Name": f'{row["Name"]} "Jim"'} for row in rows)
        for width in (1280, 390):
            with self.subTest(width=width):
                page = self.open(viewport={"width": width, "height": 800})
                self.show("try", page)
                expect(page.locator("#try-model option[value=passengers]")).to_have_text(
                    "passengers"
                )
                page.locator("#try-model").select_option("passengers")
                expect(page.locator("#try-inputs legend .code").first).to_have_text("Age")
                self.open_csv(text.getvalue(), page)
                table = page.locator("#try-table table")
                expect(table.locator("tbody tr")).to_have_count(5)
                self.assertEqual(table.locator("thead th").all_inner_texts(), [*names])
                for row, line in zip(rows, table.locator("tbody tr").all(), strict=False):
                    shown = ["missing" if row[name] is None else str(row[name]) for name in names]
                    self.assertEqual(line.locator("td").all_inner_texts(), shown)
                expect(page.locator("#try-table")).to_contain_text("the first 5 of 12 rows")
                expect(page.locator("#try-table")).to_contain_text(
                    "Not used: PassengerId, Name, Ticket, Cabin"
                )
                expect(page.locator("#try-inputs")).to_be_hidden()
                # The bar of a phone lies over the last 60 pixels.
                end = 800 - (60 if width == 390 else 0)
                for what in (table, page.locator("#try-send")):
                    box = what.bounding_box()
                    self.assertGreaterEqual(box["y"], 56)
                    self.assertLessEqual(box["y"] + box["height"], end)
                self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
                page.locator("#try-send").click()
                expect(page.locator("#try-answer .chip.good")).to_contain_text("200")
                answer = json.loads(page.locator("#try-answer-text").inner_text())["outputs"]
                wanted = golden["outputs"]["predict_proba"][: len(rows)]
                for ours, theirs in zip(answer["predict_proba"], wanted, strict=True):
                    for value, other in zip(ours, theirs, strict=True):
                        self.assertAlmostEqual(value, other, delta=1e-12)
                page.get_by_role("button", name="Edit").click()
                expect(page.get_by_label("Age, row 12")).to_be_visible()

    def test_csv_files_that_do_not_fit(self):
        self.passengers()
        self.show("try")
        self.ready("passengers")
        self.model("passengers")
        error = self.page.locator("#try-error")
        self.open_csv("Age,Embarked,Fare,Parch,Pclass,Sex\n1,S,1,1,1,male\n")
        expect(error).to_have_text("The first line of the CSV file lacks SibSp.")
        self.open_csv("Age,Embarked,Fare,Parch,Pclass,Sex,SibSp\n1,S,1,1,1,male,0\n\n2,S,1\n")
        expect(error).to_have_text("Row 2 of the CSV file has 3 fields, the first line 7.")
        self.open_csv("Age,Embarked,Fare,Parch,Pclass,Sex,SibSp\n")
        expect(error).to_have_text("The CSV file has 0 rows; the form takes 1 to 200.")
        # A value that does not fit is shown where it can be changed.
        self.open_csv("Age,Embarked,Fare,Parch,Pclass,Sex,SibSp\nold,S,1,1,1,male,0\n")
        expect(self.page.locator("#try-table table")).to_be_visible()
        self.page.locator("#try-send").click()
        expect(error).to_contain_text("Age: “old” is not a number")
        expect(self.page.get_by_label("Age, row 1")).to_be_focused()

    def test_an_empty_field_is_a_missing_value(self):
        golden = self.passengers()
        number = next(at for at, row in enumerate(golden["rows"]) if row["Age"] is None)
        row, expected = golden["rows"][number], golden["outputs"]["predict_proba"][number]
        self.page.reload()
        self.show("try")
        self.ready("passengers")
        self.model("passengers")
        self.rows(1)
        for field in ("Age", "Embarked", "Fare", "Parch", "Pclass", "Sex", "SibSp"):
            text = "" if row[field] is None else str(row[field])
            self.page.get_by_label(f"{field}, row 1").fill(text)
        for wire in ("TensorFlow Serving", "Simple", "SageMaker"):
            with self.subTest(wire):
                self.wire(wire)
                found = json.loads(self.send())
                outputs = found.get("outputs", found)
                for value, wanted in zip(outputs["predict_proba"][0], expected, strict=True):
                    self.assertAlmostEqual(value, wanted, delta=1e-12)

    def test_inputs_follow_the_signature(self):
        self.model("recommender")
        self.rows(3)
        expect(self.page.get_by_label("features, row 3, column 13")).to_be_visible()
        large = "9007199254740993"
        self.page.get_by_label("user_id, row 1").fill(large)
        self.assertIn(large, self.shown_request(), "whole numbers keep all their digits")
        self.assertEqual(self.send().strip(), self.sent_again().strip())
        self.page.get_by_label("user_id, row 1").fill("1.5")
        self.page.locator("#try-send").click()
        expect(self.page.locator("#try-error")).to_contain_text("not a whole number of type int64")
        expect(self.page.get_by_label("user_id, row 1")).to_be_focused()

    def test_nothing_is_sent_with_the_form_of_another_model(self):
        self.model("half_plus_two")
        held = []

        def hold(route):
            held.append(route)

        self.page.route("**/api/v1/models/recommender", hold)
        self.page.locator("#try-model").select_option("recommender")
        self.eventually(lambda: held, "the page asks for the signatures")
        expect(self.page.locator("#try-send")).to_be_disabled()
        held[0].continue_()
        expect(self.page.locator("#try-send")).to_be_enabled()
        expect(self.page.locator("#try-inputs")).to_contain_text("user_id")

    def test_json_as_it_is_written(self):
        self.model("half_plus_two")
        self.page.get_by_role("radio", name="JSON").click()
        text = self.page.get_by_label("Body")
        self.assertIn('"inputs"', text.input_value())
        text.fill('{"instances": [1.0, 2.0, 5.0]}')
        text.press("Control+Enter")
        expect(self.page.locator("#try-answer-text")).to_contain_text("4.5")
        answer = self.page.locator("#try-answer-text").inner_text()
        self.assertEqual(json.loads(answer), {"predictions": [2.5, 3.0, 4.5]})
        self.expected.append("400")
        text.fill('{"instances": ["a"]}')
        self.page.locator("#try-send").click()
        expect(self.page.locator("#try-answer .chip.bad")).to_contain_text("400")

    def test_an_image_over_each_protocol(self):
        self.model("digits")
        self.page.locator(".drop input").set_input_files(IMAGE)
        expect(self.page.locator(".thumb")).to_contain_text("64 × 64")
        with open(IMAGE, "rb") as file:
            text = base64.b64encode(file.read()).decode()
        plain = self.server.ask_json(
            "/v1/models/digits:predict", {"inputs": {"image_bytes": [{"b64": text}]}}
        )["outputs"]
        for wire in ("TensorFlow Serving", "SageMaker", "Simple"):
            with self.subTest(wire):
                self.wire(wire)
                answer = json.loads(self.send())
                answer = answer.get("outputs", answer)
                self.assertEqual(answer["classes"], plain["classes"])
                pairs = zip(answer["probabilities"][0], plain["probabilities"][0], strict=True)
                for ours, theirs in pairs:
                    self.assertAlmostEqual(ours, theirs, places=6)
                best = self.page.locator("section.likely li").first
                expect(best.locator(".name")).to_have_text("3")
                expect(best.locator(".time")).to_have_text("100 %")
        self.assertIn("image=@3_45.png", self.shown_request())

    def test_an_image_as_pixels(self):
        self.model("wide_mlp")
        self.page.locator(".drop input").set_input_files(IMAGE)
        expect(self.page.locator(".thumb")).to_contain_text("64 × 64")
        answer = self.send()
        body = json.loads(self.shown_text())
        self.assertEqual([len(row) for row in body["inputs"]["x"]], [784])
        self.assertTrue(all(0 <= value <= 1 for value in body["inputs"]["x"][0]))
        again = self.server.ask("/v1/models/wide_mlp:predict", json.dumps(body).encode())
        self.assertEqual(answer.strip(), again.strip())
        expect(self.page.locator("section.likely li .name").first).to_have_text("3")

    def test_files_that_are_no_images_are_refused(self):
        self.model("digits")
        chooser = self.page.locator(".drop input")
        chooser.set_input_files({"name": "x.png", "mimeType": "image/png", "buffer": b"no image"})
        expect(self.page.locator(".input .field-error")).to_contain_text("x.png is not an image")
        # The header of a PNG that declares 65,500 pixels per side.
        head = bytes.fromhex("89504e470d0a1a0a0000000d49484452") + (65500).to_bytes(4, "big") * 2
        chooser.set_input_files(
            {"name": "huge.png", "mimeType": "image/png", "buffer": head + b"\x08\x00\0\0\0"}
        )
        expect(self.page.locator(".input .field-error")).to_contain_text("huge.png")
        expect(self.page.locator(".thumb")).to_have_count(0)

    def test_csv_and_numpy_files(self):
        self.model("half_plus_two")
        chooser = self.page.locator("#try-file")
        chooser.set_input_files(
            {"name": "x.csv", "mimeType": "text/csv", "buffer": b'x\n3\n4\n"8"\n'}
        )
        expect(self.page.locator("#try-table tbody tr")).to_have_count(3)
        expect(self.page.get_by_label("x, row 3")).to_have_value("8")
        self.assertEqual(json.loads(self.send())["outputs"], [3.5, 4.0, 6.0])
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"
        header = header.ljust(117) + "\n"
        array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
        chooser.set_input_files(
            {"name": "x.npy", "mimeType": "", "buffer": array + b"\x00\x00\x80\x3f"}
        )
        expect(self.page.locator("#try-request")).to_contain_text("application/x-npy")
        self.assertRegex(self.send(), re.compile(r"2\.5"))


if __name__ == "__main__":
    unittest.main()
