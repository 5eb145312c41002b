//! Python worker processes without a server: the contract of their handlers, and failures of
//! scripts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tensorserve::config::{Settings, WorkersConfig};
use tensorserve_workers::handlers::{HandlerContext, HandlerReply, Handlers, ModelReply};
use tensorserve_workers::{HandlerError, Workers};

use crate::support::server;

pub const CONTEXT: HandlerContext = HandlerContext {
    traceparent: None,
    tracestate: None,
    model_name: Some("half_plus_three"),
    model_version: None,
    method: Some("predict"),
    rest_uri: "http://localhost:8501/v1/models/half_plus_three:predict",
    grpc_port: Some(9000),
    is_multi_model: false,
    custom_attributes: Some("tfs-model-name=half_plus_three, ünrelated=\"1\""),
    request_content_type: "application/json",
    accept_header: "text/csv",
    content_length: Some(3),
    timeout: 60,
};

/// A script, its workers, and a runtime for the calls.
pub struct Place {
    folder: tempfile::TempDir,
    workers: Workers,
    pub runtime: tokio::runtime::Runtime,
    pub handlers: Option<Arc<Handlers>>,
}

pub fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

fn workers(change: impl FnOnce(&mut WorkersConfig)) -> Workers {
    let mut config = server::config(Settings::default()).workers;
    config.count = 2;
    change(&mut config);
    Workers::new(config)
}

impl Place {
    pub fn new(script: &str, change: impl FnOnce(&mut WorkersConfig)) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        fs::write(folder.path().join("inference.py"), script).expect("written");
        Place { folder, workers: workers(change), runtime: runtime(), handlers: None }
    }

    pub fn open(script: &str, change: impl FnOnce(&mut WorkersConfig)) -> Self {
        let mut place = Place::new(script, change);
        place.handlers = Some(place.workers.open(place.folder.path()).expect("opens"));
        place
    }

    fn refuses(script: &str) -> String {
        let place = Place::new(script, |_| {});
        let Err(error) = place.workers.open(place.folder.path()) else {
            panic!("opened");
        };
        error.message().to_owned()
    }

    pub fn handlers(&self) -> &Handlers {
        self.handlers.as_ref().expect("open")
    }

    fn ask(&self, body: impl AsRef<[u8]>) -> Result<HandlerReply, HandlerError> {
        self.runtime.block_on(self.handlers().handler(&CONTEXT, body.as_ref(), in_time()))
    }

    pub fn says(&self, body: impl AsRef<[u8]>) -> String {
        let answer = self.ask(body).expect("an answer");
        String::from_utf8(answer.body.to_vec()).expect("text")
    }

    pub fn fails(&self, body: &str) -> (u16, String) {
        let failure = self.ask(body).expect_err("a failure");
        (failure.status, failure.error.message().to_owned())
    }

    /// The status of a failure, what the client is told, and what only the log is told.
    fn fails_with_cause(&self, body: &str) -> (u16, String, String) {
        let failure = self.ask(body).expect_err("a failure");
        let cause =
            std::error::Error::source(&failure.error).map_or(String::new(), |e| e.to_string());
        (failure.status, failure.error.message().to_owned(), cause)
    }

    /// The processes that run the script.
    pub fn processes(&self) -> Vec<u32> {
        processes_with(self.folder.path())
    }

    pub fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < Duration::from_secs(300), "timed out waiting for {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it answers again after a failure.
    pub fn recovers(&self) {
        self.wait_until("an answer", |place| place.says("echo") == "echo");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.handlers = None;
        self.workers.stop(Duration::from_secs(2));
        if !std::thread::panicking() {
            // On a busy machine a process that was killed takes a moment to end.
            self.wait_until("the end of all processes", |place| place.processes().is_empty());
        }
    }
}

pub fn in_time() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// Processes with `path` among their arguments.
fn processes_with(path: &Path) -> Vec<u32> {
    let wanted = path.to_str().expect("UTF-8");
    let numbers = fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_one = |number: &u32| {
        let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(wanted)
    };
    numbers.filter(is_one).collect()
}

const ECHO: &str = "def handler(data, context):\n    return data.read(), context.accept_header\n";

/// A script whose handler returns the result of `do(text)` as text.
pub fn doing(body: &str) -> String {
    format!(
        "import os, sys, time, json, threading\n{body}\n\
         def handler(data, context):\n    text = data.read().decode()\n    \
         if text == 'echo': return text, None\n    return str(do(text)), 'text/plain'\n"
    )
}

#[test]
fn bodies_of_all_sizes_come_back() {
    let place = Place::open(ECHO, |_| {});
    assert!(place.handlers().is_single());
    for size in [0, 1, 1000, 9000, 64 << 10, (64 << 10) + 1, 600_000, 9 << 20, 20] {
        let body: Vec<u8> = (0..size).map(|i| (i * 31 % 251) as u8).collect();
        let answer = place.ask(&body).expect("an answer");
        assert!(answer.body == body, "{size} bytes");
        assert_eq!(answer.content_type.as_deref(), Some("text/csv"));
    }
}

#[test]
fn the_context_has_all_its_fields() {
    let place = Place::open(
        "import json\ndef handler(data, context):\n    \
         assert context[0] == context.model_name and len(context) == 11\n    \
         return json.dumps(context._asdict()), None\n",
        |_| {},
    );
    let text = place.says("");
    let expected = json!({
        "model_name": "half_plus_three",
        "model_version": null,
        "method": "predict",
        "rest_uri": "http://localhost:8501/v1/models/half_plus_three:predict",
        "grpc_port": "9000",
        "channel": null,
        "custom_attributes": "tfs-model-name=half_plus_three, ünrelated=\"1\"",
        "request_content_type": "application/json",
        "accept_header": "text/csv",
        "content_length": 3,
        "timeout": 60,
    });
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), expected);
    let multi =
        HandlerContext { is_multi_model: true, model_name: None, content_length: None, ..CONTEXT };
    let answer = place.handlers().handler(&multi, b"", in_time());
    let answer = place.runtime.block_on(answer).expect("an answer");
    let json: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(json["grpc_port"], 9000);
    assert_eq!(json["model_name"], Value::Null);
    assert_eq!(json["content_length"], Value::Null);
}

const PAIR: &str = r#"
import json
seen = None

def input_handler(data, context):
    global seen
    seen = data.read().decode()
    return {"text": "dict", "list": ["l"], "none": None, "bytes": bytearray(b"b")}.get(
        seen, {"instances": [seen]} if seen == "json" else seen)

def output_handler(response, context):
    if response.status_code == 418:
        response.raise_for_status()
    with response as again:
        assert again is response and bool(response) == response.ok
    pieces = list(response.iter_content(4))
    assert b"".join(pieces) == response.content and len(pieces[0]) == 4
    about = [response.status_code, response.json(), response.headers["content-TYPE"],
             response.text, response.reason, response.ok, context.method, seen, repr(response),
             list(response.iter_lines(decode_unicode=True))]
    return json.dumps(about), "x/y; z=1"
"#;

#[test]
fn a_pair_is_called_in_turn() {
    let place = Place::open(PAIR, |config| config.count = 3);
    let handlers = place.handlers();
    assert!(!handlers.is_single());
    let input = |text: &str| {
        let body = place.runtime.block_on(handlers.input(&CONTEXT, text.as_bytes(), in_time()));
        let (body, begun) = body.expect("a request");
        (String::from_utf8(body.to_vec()).expect("text"), begun)
    };
    assert_eq!(input("as it is").0, "as it is");
    assert_eq!(input("json").0, r#"{"instances": ["json"]}"#);
    assert_eq!(input("list").0, r#"["l"]"#);
    assert_eq!(input("bytes").0, "b");
    assert_eq!(input("").0, "");
    let output = |begun, status, body: &[u8]| {
        let model = ModelReply { status, content_type: "application/json", body };
        place.runtime.block_on(handlers.output(&CONTEXT, begun, model, in_time()))
    };
    // Both calls go to the same process, so the script keeps its state between them.
    for round in 0..20 {
        let said = format!("round {round}");
        let (_, begun) = input(&said);
        let answer = output(begun, 200, b"{\"a\":\n 1}").expect("an answer");
        assert_eq!(answer.content_type.as_deref(), Some("x/y; z=1"));
        let expected = json!([
            200, {"a": 1}, "application/json", "{\"a\":\n 1}", "OK", true, "predict", said,
            "<Response [200]>", ["{\"a\":", " 1}"]
        ]);
        let got: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(got, expected);
    }
    let failure = output(input("x").1, 418, b"{}").expect_err("raised");
    assert_eq!(failure.status, 500);
    let text = "418 Client Error: I'm a Teapot for url: http://localhost:8501/v1/models/";
    assert!(failure.error.message().starts_with(text), "{}", failure.error);
}

#[test]
fn scripts_that_cannot_be_run_say_why() {
    let error = Place::refuses("import nothing_of_that_name\n");
    assert!(error.contains("inference.py\", line 1, in <module>"), "{error}");
    assert!(error.contains("No module named 'nothing_of_that_name'"), "{error}");
    let line = "inference.py: ModuleNotFoundError: No module named 'nothing_of_that_name'";
    assert!(error.lines().next().is_some_and(|first| first.ends_with(line)), "{error}");
    let error = Place::refuses("def input_handler(data, context):\n    return data\n");
    assert!(error.contains("Handlers are not implemented correctly in user script."), "{error}");
    let error = Place::refuses("def f(:\n");
    assert!(error.contains("SyntaxError") && error.contains("inference.py"), "{error}");
    let error = Place::refuses("print('so long')\nimport sys\nsys.exit(7)\n");
    assert!(error.contains("exited with status 7 before it was ready\nso long"), "{error}");
    let error = Place::refuses("import os\nos.kill(os.getpid(), 11)\n");
    assert!(error.contains("was killed by signal 11 (SIGSEGV)"), "{error}");
    let place = Place::new("", |config| config.python = "/no/python".into());
    let Err(error) = place.workers.open(place.folder.path()) else {
        panic!("opened");
    };
    assert!(error.message().contains("/no/python cannot be started"), "{error}");
    let Err(error) = place.workers.open(Path::new("/no/code")) else {
        panic!("opened");
    };
    assert!(error.message().contains("/no/code/inference.py: file not found"), "{error}");
}

#[test]
fn exceptions_are_answers() {
    let place = Place::open(
        &doing(
            "class Falcon(Exception):\n  status, title, description = '422 X', 'T', 'D'\n\
             class Flask(Exception):\n  code = 404\n\
             class Fast(Exception):\n  status_code, detail = 409, 'taken'\n\
             class Io(OSError):\n  code = 404\n\
             def do(text):\n  raise eval(text)",
        ),
        |_| {},
    );
    assert_eq!(place.fails("ValueError('{\"a\": 1}')"), (500, "{\"a\": 1}".to_owned()));
    assert_eq!(place.fails("KeyError()"), (500, "KeyError".to_owned()));
    assert_eq!(place.fails("Flask('gone')"), (404, "gone".to_owned()));
    assert_eq!(place.fails("Fast()"), (409, "taken".to_owned()));
    // An error of a call that the handler itself makes is not the client's.
    assert_eq!(place.fails("Io('theirs')"), (500, "theirs".to_owned()));
    assert_eq!(place.fails("ValueError('\\ud800')"), (500, "?".to_owned()));
    let failure = place.ask("Falcon()").expect_err("raised");
    let title = failure.title.as_deref();
    assert_eq!((failure.status, title, failure.error.message()), (422, Some("T"), "D"));
    place.recovers();
}

#[test]
fn answers_of_other_forms_are_taken_or_refused() {
    let place = Place::open("def handler(data, context):\n    return eval(data.read())\n", |_| {});
    let takes = |text: &str| {
        let answer = place.ask(text).unwrap_or_else(|e| panic!("{text}: {}", e.error));
        (String::from_utf8(answer.body.to_vec()).expect("text"), answer.content_type)
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(takes("['x', 'text/csv']"), ("x".to_owned(), text("text/csv")));
    assert_eq!(takes("(None, 'a/b')"), (String::new(), text("a/b")));
    assert_eq!(takes("('é', None)"), ("é".to_owned(), None));
    assert_eq!(takes("(memoryview(b'm'), None)"), ("m".to_owned(), None));
    for (value, says) in [
        ("b'0123456789'", "too many values to unpack (expected 2)"),
        ("(1, 2, 3)", "too many values to unpack (expected 2)"),
        ("('a',)", "not enough values to unpack (expected 2, got 1)"),
        ("None", "handler returned NoneType and not (body, content_type)"),
        ("({}, 'a/b')", "the body that handler returned must be str, bytes or None, not dict"),
        ("(iter([]), 'a/b')", "must be str, bytes or None"),
        ("('a', 5)", "the content type that handler returned must be str, not int"),
        ("('a', 'a/b\\r\\nx: y')", "is not a valid content type"),
    ] {
        let (status, error) = place.fails(value);
        assert_eq!(status, 500, "{value}");
        assert!(error.contains(says), "{value}: {error}");
    }
}

#[test]
fn a_process_that_ends_fails_its_own_request_only() {
    let place = Place::open(
        &doing(
            "def do(text):\n  print('about to', text, flush=True)\n  eval(text)\n  return 'done'",
        ),
        |config| config.timeout = Duration::from_millis(600),
    );
    for (what, says) in [
        (
            "sys.exit(3)",
            "exited with status 3; the server log has its last output; its last output:\n\
             about to sys.exit(3)",
        ),
        ("os._exit(0)", "exited with status 0"),
        ("os.kill(os.getpid(), 9)", "was killed by signal 9 (SIGKILL"),
        ("os.abort()", "was killed by signal 6 (SIGABRT)"),
        ("os.kill(os.getpid(), 11)", "Fatal Python error: Segmentation fault"),
        ("time.sleep(60)", "was stopped: no reply after 0.6 s"),
        ("os.closerange(3, 50) or time.sleep(60)", "it had closed its socket"),
    ] {
        let before = place.processes();
        let start = Instant::now();
        let (status, error, cause) = place.fails_with_cause(what);
        assert_eq!(status, 502, "{what}: {error}");
        let logged = format!("{error}; {cause}");
        assert!(logged.contains(says), "{what}: {logged}");
        assert!(!error.contains("about to") && !error.contains('/'), "{what}: {error}");
        assert!(start.elapsed() < Duration::from_secs(50), "{what}: {:?}", start.elapsed());
        // The other process still serves.
        assert_eq!(place.says("echo"), "echo", "after {what}");
        place.wait_until("a new process", |place| {
            let now = place.processes();
            now.len() == 2 && now != before
        });
        place.recovers();
    }
}

#[test]
fn what_a_handler_prints_does_not_block_it() {
    let place = Place::open(
        &doing("def do(text):\n  line = 'spam' * 1000\n  for _ in range(50000): print(line)"),
        |_| {},
    );
    let start = Instant::now();
    assert_eq!(place.says("200 MB"), "None");
    println!("200 MB printed in {:?}", start.elapsed());
    place.recovers();
}

#[test]
fn what_a_handler_starts_ends_with_it() {
    let place = Place::open(
        &doing(
            "import subprocess\n\
             def do(text):\n  \
               if text == 'fork':\n    \
                 pid = os.fork()\n    \
                 if pid == 0: time.sleep(300)\n    \
                 return pid\n  \
               if text == 'return from fork':\n    \
                 pid = os.fork()\n    \
                 return 'child' if pid == 0 else os.waitpid(pid, 0)[1]\n  \
               if text == 'spawn':\n    \
                 return subprocess.Popen(['sleep', '300']).pid\n  \
               os._exit(1)",
        ),
        |config| config.count = 1,
    );
    assert_eq!(place.says("return from fork"), "0");
    for how in ["fork", "spawn"] {
        let started: u32 = place.says(how).parse().expect("a number");
        assert!(is_running(started), "{how}");
        place.recovers();
        let (status, error) = place.fails("exit");
        assert_eq!((status, error.contains("exited with status 1")), (502, true), "{error}");
        place.wait_until("the end of the process", |_| !is_running(started));
        place.recovers();
    }
}

fn is_running(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_process_that_holds_too_much_is_replaced() {
    let limit: usize = 150 << 20;
    let place = Place::open(
        &doing(
            "kept = []\n\
             def do(text):\n  \
               if text == 'leak':\n    kept.append(b'x' * (170 << 20))\n    return os.getpid()\n  \
               while True: kept.append(b'x' * (10 << 20)); time.sleep(0.02)",
        ),
        |config| (config.count, config.memory_limit) = (1, Some(limit)),
    );
    let leaky: u32 = place.says("leak").parse().expect("a number");
    place.wait_until("the end of the process", |_| !is_running(leaky));
    place.recovers();
    let (status, error) = place.fails("grow");
    assert_eq!(status, 502);
    assert!(error.contains("handler_memory_limit is 150 MiB"), "{error}");
    place.recovers();
}

#[test]
fn a_script_that_cannot_start_again_is_told_at_once() {
    let place = Place::open(
        &doing(
            "if os.path.exists(__file__ + '.once'):\n  raise RuntimeError('not again')\n\
             def do(text):\n  open(__file__ + '.once', 'w').close()\n  os._exit(1)",
        ),
        |config| config.count = 1,
    );
    assert_eq!(place.fails("exit").0, 502);
    place.wait_until("the reason", |place| {
        let (status, error, cause) = place.fails_with_cause("x");
        assert_eq!(status, 502);
        assert!(!error.contains("Traceback") && !error.contains("not again"), "{error}");
        cause.contains("RuntimeError: not again")
    });
    // The script starts again once it can.
    fs::remove_file(place.folder.path().join("inference.py.once")).expect("removed");
    let start = Instant::now();
    while place.ask("echo").is_err() {
        assert!(start.elapsed() < Duration::from_secs(300), "the process does not restart");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn one_folder_has_one_pool() {
    let place = Place::open(ECHO, |_| {});
    let again = place.workers.open(place.folder.path()).expect("opens");
    assert_eq!(place.processes().len(), 2);
    assert!(place.workers.opened(place.folder.path()).is_some());
    drop(again);
    assert_eq!(place.processes().len(), 2);
}

#[test]
fn libraries_in_the_folder_come_first() {
    let place = Place::new("", |_| {});
    let code = place.folder.path();
    fs::create_dir(code.join("lib")).expect("a directory");
    fs::write(code.join("lib/dummy_module.py"), "__version__ = '0.1'").expect("written");
    fs::write(code.join("lib/beside.py"), "where = 'lib'").expect("written");
    fs::write(code.join("beside.py"), "where = 'code'").expect("written");
    // Not installed, because the directory contains lib.
    fs::write(code.join("requirements.txt"), "no_package_has_this_name==1").expect("written");
    let script = doing(
        "import dummy_module, beside\n\
         def do(text): return [dummy_module.__version__, beside.where, __name__]",
    );
    fs::write(code.join("inference.py"), script).expect("written");
    let mut place = place;
    place.handlers = Some(place.workers.open(place.folder.path()).expect("opens"));
    assert_eq!(place.says(""), "['0.1', 'lib', 'inference']");
}

/// A wheel of one module, built without packaging tools.
pub fn wheel(folder: &Path) -> PathBuf {
    let path = folder.join("tiny_thing-1.5-py3-none-any.whl");
    let make = format!(
        "import zipfile\nz = zipfile.ZipFile({path:?}, 'w')\nd = 'tiny_thing-1.5.dist-info/'\n\
         z.writestr('tiny_thing.py', 'version = 1.5')\n\
         z.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: tiny-thing\\nVersion: 1.5\\n')\n\
         z.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\n\
         Tag: py3-none-any\\n')\n\
         z.writestr(d + 'RECORD', 'tiny_thing.py,,\\n')\nz.close()\n"
    );
    let made = std::process::Command::new("python3").args(["-c", &make]).status();
    assert!(made.expect("python3").success());
    path
}

#[test]
fn requirements_are_installed_once() {
    let environments = tempfile::tempdir().expect("a directory");
    let cache = environments.path().to_owned();
    let script = doing("import tiny_thing\ndef do(text): return tiny_thing.version");
    let mut place = Place::new(&script, |config| config.environments = cache.clone());
    let code = place.folder.path().to_owned();
    let wheel = wheel(&code);
    let requirements = format!("--no-index\n{}\n", wheel.display());
    fs::write(code.join("requirements.txt"), &requirements).expect("written");
    // The code is no part of pip.
    fs::write(code.join("pip.py"), "raise SystemExit('not pip')\n").expect("written");
    place.handlers = Some(place.workers.open(&code).expect("opens"));
    assert_eq!(place.says(""), "1.5");
    place.handlers = None;
    // The second time, the environment exists.
    let made: Vec<PathBuf> = fs::read_dir(&cache)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_dir())
        .collect();
    let installed = |home: &PathBuf| fs::metadata(home.join("complete")).and_then(|m| m.modified());
    let before: Vec<_> = made.iter().map(|home| installed(home).expect("installed")).collect();
    place.handlers = Some(place.workers.open(&code).expect("opens"));
    assert_eq!(place.says(""), "1.5");
    assert_eq!(made.len(), 1);
    let after: Vec<_> = made.iter().map(|home| installed(home).expect("installed")).collect();
    assert_eq!(before, after);
    place.handlers = None;
    fs::write(code.join("requirements.txt"), "--no-index\nno_such_thing==7\n").expect("written");
    let Err(error) = place.workers.open(&code) else {
        panic!("opened");
    };
    let error = error.message();
    assert!(error.contains("requirements.txt: its packages could not be installed"), "{error}");
    assert!(error.contains("no_such_thing==7"), "{error}");
}
