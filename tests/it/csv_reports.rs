//! Tables in CSV that were served wrong: reports, and others of their kinds.
//!
//! `cases.json` has the status and the predictions of MLflow 3.17.2's scoring server, `more.json` the predictions of
//! XGBoost, LightGBM, CatBoost and scikit-learn.

use std::fs;

use serde_json::Value;

use crate::support::client::{Answer, request};
use crate::support::server::{TestServer, settings};
use crate::support::{alike, data};
use tensorserve::config::ModelSettings;

fn serve(folder: &str, models: &[(&str, &str)]) -> TestServer {
    let mut settings = settings();
    for (name, path) in models {
        settings.models.push(ModelSettings {
            path: Some(data(&format!("reports/{folder}")).join(path)),
            name: Some((*name).to_owned()),
            ..ModelSettings::default()
        });
    }
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

fn invoke(server: &TestServer, model: &str, kind: &str, body: &str) -> Answer {
    let attributes = format!("tfs-model-name={model}");
    let headers =
        [("Content-Type", kind), ("X-Amzn-SageMaker-Custom-Attributes", attributes.as_str())];
    request(server.address, "POST", "/invocations", &headers, body)
}

fn read(folder: &str, name: &str) -> Value {
    let path = data(&format!("reports/{folder}")).join(name);
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

#[test]
fn mlflow_reads_csv_as_its_scoring_server() {
    let folder = "07-mlflow-csv-wrong-answers";
    let zip = "../04-mlflow-csv-text-column/zip";
    let models = [("zip", zip), ("cats", "cats"), ("int32", "int32"), ("types", "types")];
    let server = serve(folder, &models);
    let cases = read(folder, "cases.json");
    let cases = cases.as_array().expect("cases");
    assert_eq!(cases.len(), 102);
    let mut wrong = Vec::new();
    for case in cases {
        let text = |name: &str| case[name].as_str().expect("text");
        let (model, kind, body) = (text("model"), text("type"), text("body"));
        let answer = invoke(&server, model, kind, body);
        let is_same = u64::from(answer.status) == case["status"]
            && (answer.status != 200
                || alike(&answer.json()["predictions"], &case["predictions"], Some(1e-12)));
        if !is_same {
            wrong.push(format!("{case}: {} {}", answer.status, answer.text()));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

const NAMED: &str = "debt,age,income\n0.6404226504432821,-0.1321048632913019,0.1257302210933933\n";
const PLAIN: &str = "0.1257302210933933,-0.1321048632913019,0.6404226504432821\n";

#[test]
fn headers_put_columns_into_the_order_of_the_model() {
    let folder = "tabular-03-csv-order";
    let files = ["named.lgb.txt", "named.cbm", "frame.pkl"];
    let mut right = read(folder, "more.json");
    right["model.json"] = read(folder, "right.json");
    let mut models: Vec<(&str, &str)> = files.map(|file| (file, file)).to_vec();
    models.push(("model.json", "model.json"));
    let server = serve(folder, &models);
    for (model, _) in models {
        let ordered = "income,age,debt\n".to_owned() + PLAIN;
        for (kind, body) in [
            ("text/csv", NAMED),
            ("text/csv; header=present", NAMED),
            ("text/csv", &ordered),
            ("text/csv", PLAIN),
            ("text/csv;header=absent; charset=utf-8", PLAIN),
        ] {
            let answer = invoke(&server, model, kind, body);
            assert_eq!(answer.status, 200, "{model} {kind} {body}: {}", answer.text());
            let found = &answer.json()["predictions"];
            assert!(alike(found, &right[model], Some(1e-6)), "{model} {kind} {body}: {found}");
        }
        for (kind, body, part) in [
            ("text/csv", NAMED.replace("debt", "Debt"), "Debt"),
            ("text/csv", NAMED.replace("income", "x"), "debt"),
            ("text/csv", NAMED.replace("income", "age"), "twice"),
            ("text/csv", format!("income,age,7\n{PLAIN}"), "income"),
            ("text/csv; header=present", PLAIN.repeat(2), "0.1257302210933933"),
            ("text/csv; header=absent", NAMED.to_owned(), "not a number"),
            ("text/csv; header=perhaps", NAMED.to_owned(), "header=perhaps"),
            ("text/csv", format!("{NAMED}1,2\n"), "line 3"),
            ("text/csv", format!("{NAMED}\"1,2,3\n"), "line 3"),
        ] {
            invoke(&server, model, kind, &body).assert_refused(model, 400, part);
        }
    }
}

#[test]
fn names_that_a_library_made_up_are_none() {
    let folder = "tabular-03-csv-order";
    let right = read(folder, "more.json");
    let files = ["unnamed.lgb.txt", "unnamed.cbm", "numbered.json", "gap.cbm"];
    let server = serve(folder, &files.map(|file| (file, file)));
    let check = |model: &str, body: &str| {
        let answer = invoke(&server, model, "text/csv", body);
        assert_eq!(answer.status, 200, "{model} {body}: {}", answer.text());
        let found = &answer.json()["predictions"];
        assert!(alike(found, &right[model], Some(1e-6)), "{model} {body}: {found}");
    };
    for model in ["unnamed.lgb.txt", "unnamed.cbm"] {
        check(model, PLAIN);
        check(model, &format!("a,b,c\n{PLAIN}"));
    }
    check("numbered.json", PLAIN);
    check("numbered.json", "2,1,0\n0.6404226504432821,-0.1321048632913019,0.1257302210933933\n");
    check("gap.cbm", &format!("gap,income,age,debt\n1,{PLAIN}"));
    check("gap.cbm", &NAMED.replace("debt", "gap,debt").replace("0.64", "1,0.64"));
}

#[test]
fn a_line_with_one_text_is_a_row() {
    let folder = "tabular-03-csv-order";
    let server = serve(folder, &[("boosted", "model.json"), ("unnamed", "unnamed.lgb.txt")]);
    for model in ["boosted", "unnamed"] {
        let answer = invoke(&server, model, "text/csv", "1,NA,3\n1,,3\n1,null,3\n");
        let rows = answer.json()["predictions"].clone();
        assert_eq!(rows.as_array().map(Vec::len), Some(3), "{rows}");
        assert_eq!((&rows[0], &rows[0]), (&rows[1], &rows[2]), "{rows}");
        let text = invoke(&server, model, "text/csv", "1,x,3\n1,2,3\n");
        text.assert_refused(model, 400, "line 1, column 2: \"x\" is not a number");
        let one = invoke(&server, model, "text/csv; header=present", "1,x,3\n1,2,3\n");
        match model {
            "boosted" => one.assert_refused(model, 400, "income"),
            _ => assert_eq!(one.json()["predictions"].as_array().map(Vec::len), Some(1)),
        }
        let none = invoke(&server, model, "text/csv", "income,age,debt\n");
        none.assert_refused(model, 400, "no rows");
    }
}
