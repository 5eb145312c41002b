//! The command line: output and exit status.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use tensorserve_auth::Role;
use tensorserve_auth::file::{add_key, add_user};

use crate::support::client::{get, post, post_form};
use crate::support::process::{Ended, Process, ended, run, tensorserve};
use crate::support::project;

fn models() -> String {
    project("models").display().to_string()
}

/// Asserts that a command failed with `code` and printed all `parts` on stderr.
fn assert_refused(ended: &Ended, code: i32, parts: &[&str]) {
    assert_eq!(ended.status.code(), Some(code), "{}", ended.stderr);
    for part in parts {
        assert!(ended.stderr.contains(part), "{part:?} is not in: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

#[test]
fn the_version_comes_with_that_of_the_library() {
    let ended = run(&["--version"]);
    assert!(ended.status.success());
    let version = env!("CARGO_PKG_VERSION");
    assert!(ended.stdout.starts_with(&format!("tensorserve {version}\n")), "{}", ended.stdout);
    assert!(ended.stdout.contains("libtensorflow 2."), "{}", ended.stdout);
    let line = ended.stdout.lines().find(|line| line.starts_with("libtensorflow")).expect("a line");
    let file = line.split_once(" (/").and_then(|(_, file)| file.strip_suffix(')')).expect("a file");
    assert!(Path::new("/").join(file).is_file(), "{line}");
}

#[test]
fn an_error_of_inspect_names_the_file_once() {
    let folder = tempfile::tempdir().expect("temporary directory");
    for name in ["model.pkl", "model.pmml", "model.onnx"] {
        let file = folder.path().join(name);
        fs::write(&file, "damaged").expect("written");
        let path = file.display().to_string();
        let ended = run(&["inspect", &path]);
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        let first = ended.stderr.lines().next().expect("a line");
        assert_eq!(first.matches(&path).count(), 1, "{first}");
    }
}

/// `make run` builds without them.
#[cfg(not(feature = "onnx"))]
#[test]
fn platforms_that_are_left_out_of_the_build_are_named() {
    let model = project("tests/data/platforms/onnx/iris_mlp_torch113.onnx").display().to_string();
    let left_out = "this build leaves out onnx, mxnet";
    assert_refused(&run(&["serve", &model]), 1, &["--platform (tensorflow)", left_out]);
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    let missing = project("models/no_such_model").display().to_string();
    let text = project("README.md").display().to_string();
    let models = models();
    assert_refused(&run(&["serve"]), 1, &["nothing to serve", "tensorserve serve models/"]);
    assert_refused(&run(&["serve", &missing]), 1, &["no_such_model", "no such file or directory"]);
    assert_refused(&run(&["serve", "--http-prot", "1"]), 2, &["--http-prot", "--http-port"]);
    assert_refused(&run(&["serve", "--http-port", "many"]), 2, &["many", "--http-port"]);
    assert_refused(&run(&["srve"]), 2, &["srve", "serve"]);
    let nowhere = run(&["serve", &models, "--libtensorflow", "/nowhere/at/all"]);
    assert_refused(&nowhere, 1, &["no libtensorflow at /nowhere/at/all"]);
    let no_library = run(&["serve", &models, "--libtensorflow", &text]);
    assert_refused(&no_library, 1, &["README.md", "invalid ELF header"]);
    assert_refused(&run(&["serve", &models, "--host", "example"]), 1, &["host", "example"]);
    let several = run(&["serve", &models, "--max-batch-size", "0", "--batching", "maybe"]);
    assert_refused(&several, 1, &["max_batch_size", "maybe"]);
}

#[test]
fn a_server_that_requires_a_gpu_does_not_start_without_one() {
    let model = project("models/half_plus_two").display().to_string();
    let ports = ["--http-port", "0", "--grpc-port", "0"];
    let required = run(&[&["serve", &model, "--require-gpu"], ports.as_slice()].concat());
    let parts = ["no GPU, and require_gpu is set", "built for CPUs only", "fetch tensorflow-gpu"];
    assert_refused(&required, 1, &parts);
    let by_variable =
        tensorserve(&["serve", &model]).env("TENSORSERVE_REQUIRE_GPU", "true").output();
    let stderr = by_variable.expect("process starts").stderr;
    assert!(String::from_utf8_lossy(&stderr).contains("require_gpu is set"));
    let wrong = run(&[&["serve", &model, "--require-gpu=maybe"], ports.as_slice()].concat());
    assert_refused(&wrong, 2, &["--require-gpu", "maybe"]);
    let server = Process::serve(Path::new(&model), &["--require-gpu=false"]);
    let status = get(server.address, "/api/v1/status").text();
    assert!(status.contains("\"gpus\":[],\"gpus_unavailable\":null"), "{status}");
}

#[test]
fn unknown_settings_suggest_the_nearest() {
    let ended = tensorserve(&["serve", &models()])
        .env("TENSORSERVE_HTTP_PROT", "1")
        .stdout(Stdio::null())
        .output()
        .expect("process starts");
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(stderr.contains("TENSORSERVE_HTTP_PROT"), "{stderr}");
    assert!(stderr.contains("TENSORSERVE_HTTP_PORT"), "{stderr}");
    let root = tempfile::tempdir().expect("temporary directory");
    let file = root.path().join("tensorserve.toml");
    fs::write(&file, "max_batch_siez = 3\n").expect("written");
    let ended = run(&["serve", "--config", &file.display().to_string()]);
    let parts = ["tensorserve.toml:1", "max_batch_siez", "did you mean max_batch_size?"];
    assert_refused(&ended, 1, &parts);
}

#[test]
fn mistakes_of_options_and_variables_are_reported_together() {
    let mut command = tensorserve(&["serve", "--host", "foo", "--batching", "maybe"]);
    command.args(["--http-port", "99999", "--auth-file", "/no/users", "/nope"]);
    command.env("TENSORSERVE_HTTP_PROT", "1");
    let parts = [
        "6 configuration mistakes",
        "auth_file: /no/users: No such file or directory",
        "TENSORSERVE_HTTP_PROT is not a variable of tensorserve; did you mean \
         TENSORSERVE_HTTP_PORT?",
        "--host: \"foo\" is not an IP address",
        "--batching: \"maybe\" is not auto, on or off",
        "--http-port: \"99999\" is not a port",
        "/nope: there is no such file or directory",
    ];
    assert_refused(&ended(&mut command), 2, &parts);
}

#[test]
fn mistakes_of_the_file_are_reported_with_the_others() {
    let root = tempfile::tempdir().expect("temporary directory");
    let file = root.path().join("tensorserve.toml");
    let text = "max_batch_siez = 3\nhttp_threads = \"many\"\nimages = \"jpeg\"\n\
                request_timeout = \"soon\"\n\n[[models]]\nname = \"a/b\"\npath = \"m\"\n\
                version_policy = \"newest\"\nlabels = { stable = \"three\" }\n\n[[models]]\n\
                pth = \"m\"\n";
    fs::write(&file, text).expect("written");
    let file = file.display().to_string();
    let mut command = tensorserve(&["serve", "--config", &file, "--grpc-prot", "1"]);
    command.args(["--keep-alive", "0", "--http-port=9000", "/nope", "--tags"]);
    command.env("TENSORSERVE_GRPC_PORT", "9000").env("TENSORSERVE_CONSOLE", "maybe");
    let at = |line: usize, text: &str| format!("tensorserve.toml:{line}: {text}");
    let parts = [
        "--grpc-prot is not an option of `tensorserve serve`; did you mean --grpc-port?",
        "--tags: the value is missing",
        "--keep-alive: must be more than 0",
        "TENSORSERVE_CONSOLE: \"maybe\" is not true or false",
        "http_port and grpc_port must differ (--http-port, TENSORSERVE_GRPC_PORT)",
        "/nope: there is no such file or directory",
        &at(8, &format!("path: {}/m: there is no such file or directory", root.path().display())),
        &at(1, "max_batch_siez is not a setting; did you mean max_batch_size?"),
        &at(2, "http_threads: \"many\" is not"),
        &at(3, "images: \"jpeg\" is not auto, raw or base64"),
        &at(4, "request_timeout: \"soon\" is not a duration"),
        &at(7, "name: a model's name must not be empty or contain / or :"),
        &at(9, "version_policy: \"newest\" is not"),
        &at(10, "labels: the version of \"stable\" is not an integer"),
        &at(12, "models: the path of the model is missing"),
        &at(13, "pth is not a setting of a model; did you mean path?"),
    ];
    let refused = ended(&mut command);
    assert_refused(&refused, 2, &parts);
    let count = format!("{} configuration mistakes", parts.len());
    assert!(refused.stderr.contains(&count), "{}", refused.stderr);
}

#[test]
fn help_shows_values_defaults_and_variables() {
    let help = run(&["serve", "--help"]).stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "--http-port <PORT> HTTP port",
        "[default: 8500] [env: TENSORSERVE_HTTP_PORT]",
        "[env: TENSORSERVE_BATCHING] [possible values: auto, on, off]",
        "[env: TENSORSERVE_WARM_UP] [possible values: true, false]",
    ] {
        assert!(help.contains(part), "{part:?} is not in: {help}");
    }
}

#[test]
fn the_short_help_fits_a_screen() {
    for columns in ["80", "100"] {
        let help = ended(tensorserve(&["serve", "-h"]).env("COLUMNS", columns)).stdout;
        let options = help.lines().filter(|line| line.trim_start().starts_with('-')).count();
        // Twenty, and the one for help.
        assert_eq!(options, 21, "{help}");
        assert!(help.lines().count() <= 50, "{} lines: {help}", help.lines().count());
        let widest = help.lines().map(|line| line.chars().count()).max();
        assert!(widest <= columns.parse().ok(), "{widest:?} of {columns} columns: {help}");
        assert!(help.contains("`tensorserve serve --help` has all"), "{help}");
        assert!(!help.contains("--load-probe"), "{help}");
    }
    let all = run(&["serve", "--help"]).stdout;
    assert!(all.contains("--load-probe-memory") && all.contains("TENSORSERVE_HTTP_PORT"));
    // Paragraphs are wrapped once, at the width of the terminal.
    let narrow = ended(tensorserve(&["serve", "--help"]).env("COLUMNS", "80")).stdout;
    let end = narrow.split_once("Each setting can be").expect("the paragraph").1;
    let paragraph: Vec<&str> = end.lines().take_while(|line| !line.is_empty()).collect();
    let (last, lines) = paragraph.split_last().expect("lines");
    assert!(lines.len() > 3 && !last.is_empty(), "{narrow}");
    for line in lines.iter().skip(1) {
        assert!((55..=80).contains(&line.chars().count()), "{line:?} in {narrow}");
    }
}

#[test]
fn commands_that_take_any_words_have_help() {
    for words in [&["docker-shim", "--help"][..], &["docker-shim", "-h"]] {
        let help = run(words);
        assert!(help.status.success(), "{}", help.stderr);
        for part in ["Usage: tensorserve docker-shim", "compose up", "context inspect"] {
            assert!(help.stdout.contains(part), "{part:?} is not in: {}", help.stdout);
        }
    }
    let unknown = run(&["docker-shim", "swarm", "--help"]);
    assert_refused(&unknown, 1, &["docker swarm --help", "supports only"]);
    let help = run(&["container", "--help"]);
    assert!(help.status.success(), "{}", help.stderr);
    // The commands of the image, and how one is chosen.
    let parts = ["Usage: tensorserve [COMMAND]", "inspect", "Usage: tensorserve container"];
    for part in parts.into_iter().chain(["by the first rule that applies", "MODEL_BASE_PATH"]) {
        assert!(help.stdout.contains(part), "{part:?} is not in: {}", help.stdout);
    }
}

#[test]
fn the_port_of_another_server_is_suggested() {
    let wrong = run(&["serve", &models(), "--port", "9000"]);
    assert_refused(&wrong, 2, &["--port is not an option", "did you mean --http-port?"]);
}

#[test]
fn paths_that_do_not_exist_are_mistakes_like_others() {
    let root = tempfile::tempdir().expect("temporary directory");
    let file = root.path().join("tensorserve.toml");
    let text = "max_batch_siez = 3\n\ntls_certificate = \"/no/cert\"\n\
                tls_key = \"/no/key\"\nauth_file = \"/no/users\"\n\n[[models]]\nname = \"m\"\n\
                path = \"/no/model\"\ncode = \"code\"\n";
    fs::write(&file, text).expect("written");
    let mut command = tensorserve(&["serve", "--libonnxruntime", "/no/onnx", "--config"]);
    command.arg(&file).env("TENSORSERVE_GRPC_SOCKET_PATH", "/no/folder/socket");
    command.env("TENSORSERVE_PYTHON", "/no/python");
    let at = |line: usize, text: &str| format!("tensorserve.toml:{line}: {text}");
    let nothing = "there is no such file or directory";
    let parts = [
        &at(1, "max_batch_siez is not a setting"),
        &at(4, "tls_key: /no/key: No such file or directory"),
        "auth_file: /no/users: No such file or directory",
        &at(9, &format!("path: /no/model: {nothing}")),
        &at(10, &format!("code: {}/code: {nothing}", root.path().display())),
        "--libonnxruntime: no libonnxruntime at /no/onnx",
        &format!("TENSORSERVE_GRPC_SOCKET_PATH: /no/folder: {nothing}"),
        &format!("TENSORSERVE_PYTHON: /no/python: {nothing}"),
    ];
    let refused = ended(&mut command);
    assert_refused(&refused, 1, &parts);
    let count = format!("{} configuration mistakes", parts.len());
    assert!(refused.stderr.contains(&count), "{}", refused.stderr);
}

#[test]
fn every_open_port_is_told() {
    let model = project("models/half_plus_two");
    let process = Process::serve(&model, &[]);
    assert!(
        !process.printed.iter().any(|line| line.starts_with("open: ")),
        "{:?}",
        process.printed
    );
    let process = Process::serve(&model, &["--host", "0.0.0.0"]);
    let port = process.address.port();
    let all = process.printed.iter().find(|line| line.starts_with("open: ")).expect("a line");
    assert!(all.starts_with(&format!("open: HTTP on 0.0.0.0:{port}, gRPC on 0.0.0.0:")), "{all}");
    assert!(all.ends_with("; all addresses of this machine, also for other machines"), "{all}");
}

#[test]
fn nothing_but_json_is_printed_if_the_log_is_json() {
    let model = project("models/half_plus_two");
    let arguments = ["serve", "--http-port=0", "--grpc-port=0", "--log-format=json"];
    let mut command = tensorserve(&arguments);
    command.args(["--log-level=error", "--stop-with-stdin=true"]).arg(&model);
    // Without a writer, standard input ends, and the server stops when it is ready to.
    let ended_well = ended(command.stdin(Stdio::null()));
    assert!(ended_well.status.success(), "{}", ended_well.stderr);
    let events = |text: &str| -> Vec<serde_json::Value> {
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    };
    events(&ended_well.stderr);
    for event in events(&ended_well.stdout) {
        assert_eq!((&event["level"], &event["target"]), (&"INFO".into(), &"tensorserve".into()));
    }
    let mut command = tensorserve(&arguments);
    command.arg(&model).stderr(Stdio::null());
    let process = Process::start(command);
    for part in ["tensorserve ", "listening on http://127.0.0.1:", "ready after "] {
        assert!(process.printed.iter().any(|line| line.starts_with(part)), "{:?}", process.printed);
    }
    assert!(!process.printed.iter().any(|line| line.contains("MODEL")), "{:?}", process.printed);
    // Mistakes are one event.
    let wrong = run(&["serve", "--log-format=json", "--http-port=x", "--batching=maybe", "/nope"]);
    assert_eq!((wrong.status.code(), wrong.stdout.as_str()), (Some(2), ""));
    let [event] = &events(&wrong.stderr)[..] else { panic!("{}", wrong.stderr) };
    assert_eq!(event["level"], "ERROR");
    let message = event["message"].as_str().expect("text");
    assert!(message.starts_with("3 configuration mistakes:\n"), "{message}");
}

#[test]
fn the_error_of_a_port_in_use_names_the_flag_of_the_front() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = other.local_addr().expect("address").port();
    let model = models() + "/half_plus_two";
    let all = TcpListener::bind(("0.0.0.0", 0)).expect("a port");
    let of_all = all.local_addr().expect("address").port();
    let base = format!("--model_base_path={model}");
    for (words, option) in [
        (vec!["serve".to_owned(), model.clone(), format!("--http-port={port}")], "--http-port"),
        (
            vec![
                "serve".to_owned(),
                model.clone(),
                "--http-port=0".to_owned(),
                format!("--grpc-port={port}"),
            ],
            "--grpc-port",
        ),
        (
            vec!["tensorflow_model_server".to_owned(), base.clone(), format!("--port={of_all}")],
            "--port",
        ),
        (
            vec![
                "tensorflow_model_server".to_owned(),
                base.clone(),
                "--port=0".to_owned(),
                format!("--grpc_socket_path={}", std::env::temp_dir().join("unused").display()),
                format!("--rest_api_port={of_all}"),
            ],
            "--rest_api_port",
        ),
        (
            vec!["simple_tensorflow_serving".to_owned(), base.clone(), format!("--port={of_all}")],
            "--port",
        ),
    ] {
        let ended = run(&words);
        assert!(!ended.status.success(), "{words:?}");
        let told = format!("choose another one with {option}\n");
        assert!(ended.stderr.contains(&told), "{words:?}: {}", ended.stderr);
    }
}

#[test]
fn a_port_in_use_is_told() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = other.local_addr().expect("address").port().to_string();
    let ended = run(&["serve", &models(), "--http-port", &port]);
    assert_refused(&ended, 1, &[&port, "--http-port"]);
}

#[test]
fn the_file_serves_models_with_their_own_settings() {
    let root = tempfile::tempdir().expect("temporary directory");
    let file = root.path().join("tensorserve.toml");
    let digits = project("models/digits");
    let text = format!(
        "version_policy = \"all\"\n[[models]]\nname = \"numbers\"\npath = {digits:?}\n\
         labels = {{ old = 1 }}\n"
    );
    fs::write(&file, text).expect("written");
    let mut command = tensorserve(&["serve", "--http-port", "0", "--grpc-port", "0"]);
    command.args(["--config"]).arg(&file);
    let process = Process::start(command);
    let status = get(process.address, "/v1/models/numbers").text();
    assert!(status.contains("\"version\": \"1\"") && status.contains("\"version\": \"2\""));
    assert_eq!(get(process.address, "/v1/models/numbers/labels/old").status, 200);
}

#[test]
fn the_start_prints_a_table_and_a_request_that_works() {
    let process = Process::serve(&project("models"), &[]);
    let printed = process.printed.join("\n");
    for part in ["MODEL", "half_plus_two", "digits", "serving_default", "tensorflow", " ms"] {
        assert!(printed.contains(part), "{part:?} is not in: {printed}");
    }
    let health = run(&["health", &format!("http://{}", process.address)]);
    assert!(health.status.success(), "{}", health.stderr);
}

#[test]
fn health_of_no_server_is_a_failure() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("address");
    drop(other);
    let ended = run(&["health", &format!("http://{address}")]);
    assert_refused(&ended, 1, &[&address.to_string()]);
}

/// The curl commands that `inspect` prints for all models, with the address of the test server.
fn example_commands(address: std::net::SocketAddr) -> Vec<String> {
    let ended = run(&["inspect", &models()]);
    assert!(ended.status.success(), "{}", ended.stderr);
    let image = project("examples/images/digits/3_45.png").display().to_string();
    let lines = ended.stdout.lines().map(str::trim);
    let commands = lines.filter(|line| line.contains("curl ") && line.contains("http://"));
    commands
        .map(|line| {
            let line = line.replace("http://127.0.0.1:8500", &format!("http://{address}"));
            line.replace("@FILE", &format!("@{image}")).replace("curl ", "curl -sS --fail ")
        })
        .collect()
}

#[test]
fn every_request_that_inspect_shows_works() {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: curl is not installed");
        return;
    }
    let process = Process::serve(&project("models"), &[]);
    let commands = example_commands(process.address);
    assert!(commands.len() >= 5, "{commands:?}");
    for command in commands {
        let output = Command::new("sh").args(["-c", &command]).output().expect("sh");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {stderr}");
        assert!(!output.stdout.is_empty(), "{command}");
    }
}

#[test]
fn a_model_on_a_server_can_be_inspected() {
    let process = Process::serve(&project("models/recommender"), &[]);
    let url = format!("http://{}/v1/models/recommender", process.address);
    let ended = run(&["inspect", &url]);
    assert!(ended.status.success(), "{}", ended.stderr);
    for part in ["user_id", "item_id", "features", "int64", "score", "optimize is off"] {
        assert!(ended.stdout.contains(part), "{part} is not in: {}", ended.stdout);
    }
    let ended = run(&["inspect", &url.replace("recommender", "other")]);
    assert_refused(&ended, 1, &["other"]);
    assert_refused(&run(&["inspect", &project("docs").display().to_string()]), 1, &["docs"]);
}

#[test]
fn a_model_on_a_server_with_authentication_can_be_inspected() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("auth.toml");
    add_key(&file, "ci", "key-of-ci", &[Role::Infer]).expect("a key");
    add_user(&file, "ana", "correct horse", &[Role::Infer]).expect("a user");
    let options = ["--auth-file", file.to_str().expect("text")];
    let process = Process::serve(&project("models/half_plus_two"), &options);
    let url = format!("http://{}/v1/models/half_plus_two", process.address);
    assert_refused(&run(&["inspect", &url]), 1, &["credentials are missing"]);
    let user = [("TENSORSERVE_USER", "ana"), ("TENSORSERVE_PASSWORD", "correct horse")];
    for variables in [&[("TENSORSERVE_KEY", "key-of-ci")][..], &user] {
        let inspected = ended(tensorserve(&["inspect", &url]).envs(variables.iter().copied()));
        assert!(inspected.status.success(), "{}", inspected.stderr);
        assert!(inspected.stdout.contains("serving_default"), "{}", inspected.stdout);
    }
}

#[test]
fn completions_are_scripts() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = run(&["completions", shell]);
        assert!(ended.status.success());
        assert!(ended.stdout.contains("--http-port") || ended.stdout.contains("http-port"));
    }
}

#[test]
fn every_option_is_in_the_docs() {
    let docs = fs::read_to_string(project("docs/configuration.md")).expect("docs");
    let help = run(&["serve", "--help"]).stdout;
    let options = help.split_whitespace().filter_map(|word| word.strip_prefix("--"));
    let mut count = 0;
    for option in options.filter(|o| o.len() > 1 && !matches!(*o, "help" | "config")) {
        let key = option.replace('-', "_");
        let key = key.trim_end_matches(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit());
        assert!(docs.contains(&format!("`{key}`")), "{key} is not in docs/configuration.md");
        count += 1;
    }
    assert!(count > 30, "only {count} options in --help");
}

#[test]
fn the_answers_in_the_readme_are_those_of_the_server() {
    let readme = fs::read_to_string(project("README.md")).expect("README");
    let process = Process::serve(&project("models"), &[]);
    let body = r#"{"instances": [1.0, 2.0, 5.0]}"#;
    assert!(readme.contains(&format!("curl -d '{body}' http://127.0.0.1:8500/v1/models/half")));
    let answer = post(process.address, "/v1/models/half_plus_two:predict", body).text();
    assert!(readme.contains(&format!(" output\n{answer}\n```")), "{answer}");
    let file = "examples/images/digits/3_45.png";
    assert!(readme.contains(&format!("curl -F image=@{file} -F model_name=digits")));
    let image = fs::read(project(file)).expect("image");
    let fields = [("image", Some("3_45.png"), &image[..]), ("model_name", None, b"digits")];
    let answer = post_form(process.address, "/", &fields).text();
    let beginning = "{\"classes\":[3],\"probabilities\":[[";
    assert!(answer.starts_with(beginning) && readme.contains(beginning), "{answer}");
}
