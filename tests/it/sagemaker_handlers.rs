//! `inference.py` on `/invocations`: the container's cases, and requests whose worker process is
//! killed under load.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::sagemaker_cases::{self, Case, Part, Tally, cases_of, check};
use crate::sagemaker_models;
use crate::support::client::{Answer, Client, get, post, request};
use crate::support::process::{Process, tensorserve};
use crate::support::server::TestServer;
use crate::support::{copy, data, project};
use crate::worker::wheel;

/// Shared by the scripts of the cases: conversion of requests and responses.
const COMMON: &str = r#"
import json

def request_of(data, context):
    kind = context.request_content_type
    text = data.read().decode("utf-8")
    if kind == "application/json":
        return text
    if kind == "text/csv":
        return json.dumps({"instances": [float(number) for number in text.split(",")]})
    raise ValueError('{"error": "unsupported content type %s"}' % (kind or "unknown"))

def answer_of(status, content, context):
    if status != 200:
        raise ValueError(content.decode("utf-8"))
    return content, context.accept_header
"#;

const SINGLE_ECHO: &str = "def handler(data, context):\n    return data.read(), None\n";

const PAIR: &str = r#"
def input_handler(data, context):
    return request_of(data, context)

def output_handler(response, context):
    return answer_of(response.status_code, response.content, context)
"#;

const SINGLE: &str = r#"
import urllib.error, urllib.request

def handler(data, context):
    try:
        answer = urllib.request.urlopen(context.rest_uri, request_of(data, context).encode())
    except urllib.error.HTTPError as error:
        answer = error
    return answer_of(answer.status, answer.read(), context)
"#;

fn code(script: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    fs::write(folder.path().join("inference.py"), script).expect("written");
    folder
}

/// A container of `model` with the script in `code`.
fn container(model: (&str, &str), code: &Path, environments: &Path) -> TestServer {
    TestServer::container(&[model], |settings| {
        settings.each.code = Some(code.to_owned());
        settings.server.handler_workers = Some(2);
        settings.server.max_load_retries = Some(0);
        settings.server.python_environments = Some(environments.to_owned());
        settings.server.sagemaker_default_model = Some(model.0.to_owned());
    })
}

/// The script that a case describes.
fn script(case: &Case) -> String {
    let returns = |value: &str| format!("def handler(data, context):\n    return {value}\n");
    let described = case.setup.handler.as_deref().unwrap_or_default();
    let model = |keep: &str| {
        format!(
            "import json, sys\ndef input_handler(data, context):\n    \
             return {{'instances': json.loads(data.read())['x']}}\n\
             def output_handler(response, context):\n    answer = response.json()\n    \
             answer['python'] = True\n    {keep}\n    \
             return json.dumps(answer), context.accept_header\n"
        )
    };
    match case.id.as_str() {
        "pp-handler-missing" => "def input_handler(data, context):\n    return data\n".to_owned(),
        "pp-handler-order" => COMMON.to_owned() + PAIR + &returns("'<output of handler>', None"),
        "pp-ret-bytes" => returns("b'0123456789'"),
        "pp-ret-list" => returns("['x', 'text/csv']"),
        "pp-ret-none-body" => returns("None, 'text/plain'"),
        "pp-raise" => "def handler(data, context):\n    \
             raise ValueError('{\"error\": \"unsupported content type x\"}')\n"
            .to_owned(),
        "pp-http-error-g3" => "class HTTPError(Exception):\n    \
             status, title, description = '422 Unprocessable Entity', 'T', 'D'\n\
             def handler(data, context):\n    raise HTTPError\n"
            .to_owned(),
        "pp-echo" | "pp-chunked" => returns("data.read(), 'application/octet-stream; v=1'"),
        "pp-context" | "pp-context-none" => {
            "import json\n".to_owned() + &returns("json.dumps(context._asdict()), None")
        }
        "pp-lib" => model("import dummy_module; answer['dummy_module'] = dummy_module.__version__"),
        // The case's Pillow of 2019 supports no current Python; a wheel of ours replaces it.
        "pp-requirements" => model("import tiny_thing; answer['pillow'] = '6.0.0'"),
        "dlc-handlers" => "import json\n\
             def input_handler(data, context):\n    request = json.loads(data.read())\n    \
             request['instances'].insert(0, [9, 9, 9])\n    return request\n\
             def output_handler(response, context):\n    answer = response.json()\n    \
             answer['_handler_marker'] = 'input_output_ok'\n    \
             return json.dumps(answer), context.accept_header\n"
            .to_owned(),
        "pp-lib-wins" => COMMON.to_owned() + "import dummy_module\n" + PAIR,
        _ if described.starts_with("input_handler+") => COMMON.to_owned() + PAIR,
        _ if described.starts_with("single handler") || described.starts_with("any") => {
            COMMON.to_owned() + SINGLE
        }
        other => panic!("{other}: there is no script for this case"),
    }
}

/// Cases with deliberately different responses. `docs/sagemaker.md` gives the reasons.
const OTHERWISE: [&str; 1] = [
    // The 2.20 image does not call output_handler when the model fails; the older ones do.
    "pp-io-empty-g3",
];

fn ask(server: &TestServer, case: &Case) -> Answer {
    if case.id == "pp-handler-missing" {
        // The server starts; the status of the model contains the error.
        return get(server.address, "/v1/models/half_plus_three");
    }
    if case.id == "pp-chunked" {
        let mut client = Client::connect(server.address).expect("connects");
        let head = "POST /invocations HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunks = "4\r\nchun\r\n6\r\nkybody\r\n0\r\n\r\n";
        client.send((head.to_owned() + chunks).as_bytes()).expect("sent");
        return client.answer("POST").expect("an answer");
    }
    if case.request_body.as_deref() == Some("@inputs/test-large.csv") {
        // One row of 3 MB.
        let headers: Vec<(&str, &str)> =
            case.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let body = vec!["1.0"; 753_936].join(",");
        return request(server.address, &case.method, &case.path, &headers, body);
    }
    sagemaker_cases::ask(server, case)
}

/// The code directory that a case describes.
fn folder(case: &Case, script: &str) -> TempDir {
    let code = code(script);
    if case.id == "pp-requirements" {
        let wheel = wheel(code.path());
        let requirements = format!("--no-index\n{}\n", wheel.display());
        fs::write(code.path().join("requirements.txt"), requirements).expect("written");
        return code;
    }
    let lib = code.path().join("lib");
    fs::create_dir(&lib).expect("a directory");
    fs::write(lib.join("dummy_module.py"), "__version__ = '0.1'").expect("written");
    // Not installed, because the directory contains lib.
    fs::write(code.path().join("requirements.txt"), "no_such==1\n").expect("written");
    code
}

#[test]
fn every_case_of_handlers_passes() {
    let environments = tempfile::tempdir().expect("a directory");
    let mut servers: BTreeMap<String, (TempDir, TestServer)> = BTreeMap::new();
    let mut tally = Tally::default();
    for case in cases_of(Part::Handlers) {
        let model = match case.setup.model_dir.as_str() {
            "synth/multiply_2" => ("multiply_2", "sagemaker/synth/multiply_2"),
            _ => ("half_plus_three", "sagemaker/models/half_plus_three"),
        };
        let (_, server) = servers.entry(script(&case)).or_insert_with_key(|script| {
            let code = folder(&case, script);
            let server = container(model, code.path(), environments.path());
            (code, server)
        });
        let answer = ask(server, &case);
        let outcome = match case.expect_status {
            Some(_) => check(&case, &answer),
            // The container prints the error and restarts its service forever, without a status.
            None => check(&Case { expect_status: Some(answer.status), ..case.clone() }, &answer),
        };
        tally.note(&case, outcome, &OTHERWISE);
    }
    tally.assert(28, &OTHERWISE);
}

#[test]
fn every_case_of_a_script_for_all_models_passes() {
    for handlers in [PAIR, SINGLE] {
        let root = tempfile::tempdir().expect("a directory");
        let model = root.path().join("half_plus_three/model/half_plus_three");
        for version in ["00000123", "00000124"] {
            let from = data("sagemaker/models/half_plus_three").join(version);
            copy(&from, &model.join(version));
        }
        fs::create_dir(root.path().join("code")).expect("a directory");
        let script = COMMON.to_owned() + handlers;
        fs::write(root.path().join("code/inference.py"), script).expect("written");
        let process = sagemaker_models::process(root.path());
        let mut tally = Tally::default();
        for case in cases_of(Part::UniversalHandlers) {
            tally.note(&case, sagemaker_models::run(process.address, &case), &[]);
        }
        tally.assert(3, &[]);
    }
}

#[test]
fn errors_of_the_model_pass_the_output_handler_by_as_in_the_2_20_image() {
    let code = code(&(COMMON.to_owned() + PAIR));
    let model = ("half_plus_three", "sagemaker/models/half_plus_three");
    let server = TestServer::container(&[model], |settings| {
        settings.each.code = Some(code.path().to_owned());
        settings.server.sagemaker_compatibility = Some("2.20".to_owned());
    });
    let cases: Vec<Case> = cases_of(Part::Handlers).collect();
    let case = cases.iter().find(|case| case.id == "pp-io-empty-g3").expect("the case");
    let answer = sagemaker_cases::ask(&server, case);
    assert_eq!(check(case, &answer), Ok(()), "{}", answer.text());
    assert_eq!(answer.headers["vary"], "Accept");
    let json = answer.json();
    let body: serde_json::Value =
        serde_json::from_str(json["description"].as_str().expect("text")).expect("JSON");
    assert!(body["error"].is_string(), "{json}");
}

#[test]
fn modules_of_the_working_directory_are_not_imported() {
    let (folder, code) = (tempfile::tempdir().expect("a directory"), code(SINGLE_ECHO));
    // Modules that Python imports at its start, before the script.
    for name in ["linecache", "types", "struct", "array", "threading", "json"] {
        let text = "raise SystemExit('a module of the working directory')\n";
        fs::write(folder.path().join(name).with_extension("py"), text).expect("written");
    }
    let model = project("models/half_plus_two").display().to_string();
    let code = code.path().display().to_string();
    let arguments =
        ["serve", "--http-port", "0", "--grpc-port", "off", "--code", &code, model.as_str()];
    let mut command = tensorserve(&arguments);
    command.current_dir(folder.path());
    let process = Process::start(command);
    assert_eq!(post(process.address, "/invocations", "text").text(), "text");
}

#[test]
fn a_stop_during_a_restart_is_not_a_failed_start() {
    let code = code(
        "import os, time\nif os.path.exists(__file__ + '.once'): time.sleep(60)\n\
         def handler(data, context):\n    open(__file__ + '.once', 'w').close()\n    os._exit(1)\n",
    );
    let log = code.path().join("log");
    let model = project("models/half_plus_two").display().to_string();
    let folder = code.path().display().to_string();
    let mut command = tensorserve(&["serve", "--http-port", "0", "--grpc-port", "off"]);
    command.args(["--handler-workers", "1", "--code", &folder, &model]);
    command.stderr(fs::File::create(&log).expect("a file"));
    let mut process = Process::start(command);
    let before = children(process.id());
    assert_eq!(post(process.address, "/invocations", "{}").status, 502);
    let start = Instant::now();
    let is_new = |child: &(u32, char)| child.0 != before[0].0 && child.1 != 'Z';
    while !children(process.id()).iter().any(is_new) {
        assert!(start.elapsed() < Duration::from_secs(300), "no other process is started");
        thread::sleep(Duration::from_millis(5));
    }
    process.signal("TERM");
    assert!(process.wait().success());
    let log = fs::read_to_string(&log).expect("the log");
    assert!(log.contains("shutting down") && !log.contains("not ready after"), "{log}");
}

#[test]
fn what_a_handler_that_crashes_printed_is_not_sent() {
    let code = code(
        "import os\ndef handler(data, context):\n    print('the secret', flush=True)\n    \
         os._exit(3)\n",
    );
    let model = ("half_plus_three", "sagemaker/models/half_plus_three");
    let server = TestServer::container(&[model], |settings| {
        settings.each.code = Some(code.path().to_owned());
        settings.server.handler_workers = Some(1);
    });
    let answer = server.post("/invocations", "{}");
    let says =
        "the process of inference.py exited with status 3; the server log has its last output";
    assert_eq!((answer.status, answer.error()), (502, says.to_owned()));
    assert!(answer.headers.contains_key("x-request-id"), "to find it in the log");
}

#[test]
fn a_script_that_is_not_ready_does_not_show_its_traceback() {
    let code = code("import nothing_of_that_name\n");
    let model = ("half_plus_three", "sagemaker/models/half_plus_three");
    let server = TestServer::container(&[model], |settings| {
        settings.each.code = Some(code.path().to_owned());
        settings.server.max_load_retries = Some(0);
    });
    let answer = server.post("/invocations", "{}");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.error(), "inference.py is not ready; see the server log");
}

#[test]
fn a_script_without_handlers_is_told_and_other_models_serve() {
    let broken = code("def input_handler(data, context):\n    return data\n");
    let (mine, theirs) = (code("def handler(d, c):\n    return 'mine', None\n"), broken.path());
    let models = ["half_plus_two", "half_plus_three", "multiply_2"];
    let paths = models.map(|model| match model {
        "half_plus_two" => project("models/half_plus_two"),
        "half_plus_three" => project("tests/data/sagemaker/models/half_plus_three"),
        _ => project("tests/data/sagemaker/synth/multiply_2"),
    });
    let codes = [Some(mine.path()), Some(theirs), None];
    let server = TestServer::container(&[], |settings| {
        for ((model, path), code) in models.iter().zip(&paths).zip(codes) {
            let mut one = tensorserve::config::ModelSettings::default();
            (one.name, one.path) = (Some((*model).to_owned()), Some(path.clone()));
            one.each.code = code.map(Path::to_owned);
            settings.models.push(one);
        }
        settings.server.handler_workers = Some(1);
        settings.server.max_load_retries = Some(0);
    });
    let invoke = |model: &str| {
        let attributes = format!("tfs-model-name={model}");
        let headers = [
            ("X-Amzn-SageMaker-Custom-Attributes", attributes.as_str()),
            ("Content-Type", "application/json"),
        ];
        request(server.address, "POST", "/invocations", &headers, r#"{"instances":[[2.0]]}"#)
    };
    assert_eq!(invoke("half_plus_two").text(), "mine");
    assert_eq!(invoke("multiply_2").json(), json!({"predictions": [[4.0]]}));
    assert_eq!(invoke("half_plus_three").status, 404);
    let status = get(server.address, "/v1/models/half_plus_three").text();
    assert!(status.contains("Handlers are not implemented correctly in user script."), "{status}");
    assert!(status.contains("inference.py"), "{status}");
    assert_eq!(get(server.address, "/readyz").status, 503);
}

#[test]
fn requests_run_side_by_side() {
    let code = code(
        "import time\ndef handler(data, context):\n    time.sleep(0.05)\n    return 'slept', None\n",
    );
    let server = TestServer::container(
        &[("half_plus_three", "sagemaker/models/half_plus_three")],
        |settings| {
            settings.each.code = Some(code.path().to_owned());
            settings.server.handler_workers = Some(8);
        },
    );
    let round = || {
        let start = Instant::now();
        thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    assert_eq!(server.post("/invocations", "{}").text(), "slept");
                });
            }
        });
        start.elapsed()
    };
    let times: Vec<Duration> = (0..5).map(|_| round()).collect();
    println!("20 requests that sleep 50 ms, 8 processes: {times:?}");
    assert!(times.iter().min() < Some(&Duration::from_millis(200)), "{times:?}");
}

/// IDs and states of the child processes of a process.
fn children(parent: u32) -> Vec<(u32, char)> {
    let numbers = fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let child = |number: u32| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut words = rest.split(' ');
        let state = words.next()?.chars().next()?;
        (words.next()?.parse() == Ok(parent)).then_some((number, state))
    };
    numbers.filter_map(child).collect()
}

const KILLS: usize = 100;

#[test]
fn killed_processes_cost_only_their_requests() {
    let code = code(
        "import json, os, time\ndef input_handler(data, context):\n    time.sleep(0.004)\n    \
         return data.read()\n\
         def output_handler(response, context):\n    \
         return json.dumps({'process': os.getpid(), **response.json()}), None\n",
    );
    let code = code.path().to_str().expect("UTF-8");
    let model = project("models/half_plus_two");
    let options = ["--code", code, "--handler-workers", "4", "--handler-threads", "1"];
    // Without a probe host, all children are workers.
    let options = [&options[..], &["--load-probe", "false"]].concat();
    let process = Process::serve(&model, &options);
    let (address, server) = (process.address, process.id());
    let ask = |client: &mut Client| {
        let headers = [("Content-Type", "application/json")];
        let body = br#"{"instances":[1.0,2.0,5.0]}"#;
        client.request("POST", "/invocations", &headers, body).expect("an answer")
    };
    let is_settled = || {
        let children = children(server);
        children.len() == 4 && children.iter().all(|(_, state)| *state != 'Z')
    };
    let settle = || {
        let start = Instant::now();
        while !is_settled() {
            assert!(start.elapsed() < Duration::from_secs(300), "{:?}", children(server));
            thread::sleep(Duration::from_millis(5));
        }
    };
    ask(&mut Client::connect(address).expect("connects"));
    settle();
    let descriptors = process.open_files();
    let (done, good, bad) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let slowest = AtomicU64::new(0);
    // Processes that have answered since the last kill. There are more clients than processes, so
    // that each process gets its next request at once.
    let busy = Mutex::new(BTreeSet::new());
    let client = || {
        let mut client = Client::connect(address).expect("connects");
        while !done.load(SeqCst) {
            let start = Instant::now();
            let answer = ask(&mut client);
            match answer.status {
                200 => {
                    let answer = answer.json();
                    assert_eq!(answer["predictions"], json!([2.5, 3.0, 4.5]));
                    busy.lock().expect("a set").insert(answer["process"].as_u64());
                    good.fetch_add(1, SeqCst);
                }
                502 => {
                    let error = answer.error();
                    assert!(error.contains("was killed by signal 9 (SIGKILL"), "{error}");
                    bad.fetch_add(1, SeqCst);
                    slowest.fetch_max(start.elapsed().as_millis() as u64, SeqCst);
                }
                other => panic!("{other}: {}", answer.text()),
            }
        }
    };
    thread::scope(|scope| {
        (0..5).for_each(|_| drop(scope.spawn(client)));
        let mut kills = 0;
        let start = Instant::now();
        while kills < KILLS && start.elapsed() < Duration::from_secs(300) {
            thread::sleep(Duration::from_millis(2));
            let mut busy = busy.lock().expect("a set");
            if busy.len() < 4 {
                continue;
            }
            // Rotates through the processes in the order of their IDs.
            let Some(victim) = busy.iter().nth(kills % 4).copied().flatten() else {
                continue;
            };
            busy.clear();
            drop(busy);
            let killed = Command::new("kill").args(["-s", "KILL", &victim.to_string()]).output();
            kills += usize::from(killed.expect("kill").status.success());
        }
        done.store(true, SeqCst);
        assert_eq!(kills, KILLS, "kills within the time limit");
    });
    let (good, bad, slowest) = (good.load(SeqCst), bad.load(SeqCst), slowest.load(SeqCst));
    println!("{KILLS} kills: {bad} requests failed, the slowest in {slowest} ms; {good} did not");
    assert!(bad <= KILLS as u64, "{bad} failed");
    assert!(bad > KILLS as u64 / 2, "only {bad} kills failed a request");
    // A client whose process is killed is told so; it waits for no timeout.
    assert!(slowest < 20_000, "{slowest} ms");
    settle();
    let start = Instant::now();
    while process.open_files() > descriptors {
        let (now, before) = (process.open_files(), descriptors);
        assert!(start.elapsed() < Duration::from_secs(300), "{now} descriptors, not {before}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_stop_ends_the_processes() {
    let code = code("def handler(data, context):\n    return data.read(), None\n");
    let code = code.path().to_str().expect("UTF-8");
    let model = project("models/half_plus_two");
    let mut process = Process::serve(&model, &["--code", code, "--handler-workers", "3"]);
    let workers = children(process.id());
    // The workers, and the host of load probes.
    assert_eq!(workers.len(), 4);
    process.signal("TERM");
    assert!(process.wait().success());
    let is_there = |(number, _): &&(u32, char)| Path::new(&format!("/proc/{number}")).exists();
    assert_eq!(workers.iter().filter(is_there).count(), 0);
    // A killed server cannot stop them itself.
    let mut process = Process::serve(&model, &["--code", code, "--handler-workers", "3"]);
    let workers = children(process.id());
    process.signal("KILL");
    process.wait();
    let start = Instant::now();
    while workers.iter().filter(is_there).count() > 0 {
        assert!(start.elapsed() < Duration::from_secs(300), "worker processes remain");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_traceback_of_a_handler_is_one_event_of_the_log() {
    let code = code(
        "import threading\n\
         def fails(text):\n    raise KeyError(text)\n\
         def handler(data, context):\n    print('before it', end='')\n    \
         thread = threading.Thread(target=fails, args=('in a thread',), name='helper')\n    \
         thread.start()\n    thread.join()\n    \
         try:\n        fails('the cause')\n    except KeyError:\n        \
         raise RuntimeError('no\\u2028way') from None\n",
    );
    let log = code.path().join("log");
    let model = project("models/half_plus_two").display().to_string();
    let folder = code.path().display().to_string();
    let mut command = tensorserve(&["serve", "--http-port", "0", "--grpc-port", "off"]);
    command.args(["--handler-workers", "1", "--log-format", "json", "--code", &folder, &model]);
    command.stderr(fs::File::create(&log).expect("a file"));
    let mut process = Process::start(command);
    assert_eq!(post(process.address, "/invocations", "{}").status, 500);
    process.signal("TERM");
    assert!(process.wait().success());
    let log = fs::read_to_string(&log).expect("the log");
    let events = log.lines().map(|line| serde_json::from_str(line).expect(line));
    let events: Vec<serde_json::Value> = events.collect();
    let about = |part: &str| {
        let has = |event: &&serde_json::Value| event["message"].as_str().unwrap().contains(part);
        let found: Vec<_> = events.iter().filter(has).collect();
        assert_eq!(found.len(), 1, "{part}: {log}");
        (found[0]["level"].as_str().unwrap(), found[0]["message"].as_str().unwrap())
    };
    let (level, message) = about("RuntimeError: no");
    assert_eq!(level, "ERROR", "{message}");
    assert!(message.contains("Traceback (most recent call last):\n  File \""), "{message}");
    assert!(message.contains("inference.py\", line"), "{message}");
    let (level, message) = about("KeyError: 'in a thread'");
    assert_eq!(level, "ERROR", "{message}");
    assert!(message.contains("Exception in thread helper:\nTraceback"), "{message}");
    assert_eq!(about("before it").0, "INFO");
}
