//! Permissions: every route and gRPC method with every role, invalid credentials, and auth files
//! that change under load.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use tempfile::TempDir;
use tensorserve::config::ModelSettings;
use tensorserve_auth::file::{add_key, add_user};
use tensorserve_auth::{Permission, Role, Roles};
use tonic::Code;

use crate::support::client::{Answer, Client, request};
use crate::support::events::Events;
use crate::support::fake::Model;
use crate::support::grpc::Caller;
use crate::support::pause_between_requests;
use crate::support::place::Place;

const PREDICT: &str = "/v1/models/m:predict";
const BODY: &str = r#"{"instances": [[1.0]]}"#;

/// An auth file with users and API keys.
struct People {
    folder: TempDir,
}

/// The API keys in the file and their roles.
const KEYS: [(&str, &[Role]); 5] = [
    ("key-of-infer", &[Role::Infer]),
    ("key-of-metrics", &[Role::Metrics]),
    ("key-of-both", &[Role::Infer, Role::Metrics]),
    ("key-of-admin", &[Role::Admin]),
    ("key-of-nothing", &[]),
];

impl People {
    fn new() -> Self {
        let people = People { folder: tempfile::tempdir().expect("temporary directory") };
        for (key, roles) in KEYS {
            add_key(&people.file(), &format!("the {key}"), key, roles).expect("a key");
        }
        add_user(&people.file(), "ana", "correct horse", &[Role::Admin]).expect("a user");
        people
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("auth.toml")
    }

    fn serve(&self) -> Place {
        Place::of(&Model::default(), |settings| settings.server.auth_file = Some(self.file()))
    }
}

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
}

/// Every kind of caller: the `Authorization` header, and the roles if the credentials are valid.
fn callers() -> Vec<(Option<String>, Option<Roles>)> {
    let keys = KEYS.iter().map(|(key, roles)| (Some(bearer(key)), Some(Roles::of(roles))));
    let mut callers: Vec<_> = keys.collect();
    callers.push((Some(basic("ana", "correct horse")), Some(Roles::ALL)));
    callers.push((Some(bearer("nobody's")), None));
    callers.push((None, None));
    callers
}

fn ask(place: &Place, method: &str, path: &str, authorization: Option<&str>) -> Answer {
    let mut headers = vec![("Content-Type", "application/json")];
    headers.extend(authorization.map(|value| ("Authorization", value)));
    request(place.server.address, method, path, &headers, "")
}

/// The paths of all routes and gRPC methods that require `permission`.
fn paths_of(place: &Place, permission: Permission) -> Vec<String> {
    let api = place.server.api();
    let routes = api.routes().map(|(_, path, required)| (path.to_owned(), required));
    let all = routes.chain(api.grpc_methods().map(|(path, required)| (path.to_owned(), required)));
    let paths = all.filter(|(_, required)| *required == permission);
    let mut paths: Vec<_> = paths.map(|(path, _)| path).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// The tests below compare every route with its declared permission; this test fixes the most
/// sensitive declarations.
#[test]
fn nothing_is_open_or_taken_from_admins_by_mistake() {
    let place = Place::of(&Model::default(), |_| ());
    assert_eq!(
        paths_of(&place, Permission::Public),
        [
            "/",
            "/console/{file}",
            "/grpc.health.v1.Health/Check",
            "/grpc.health.v1.Health/Watch",
            "/health",
            "/healthz",
            "/inference.GRPCInferenceService/ServerLive",
            "/inference.GRPCInferenceService/ServerReady",
            "/ping",
            "/ping{*rest}",
            "/readyz",
            "/reference",
            "/static/images/favicon.ico",
            "/static/simple.css",
            "/v2/health/live",
            "/v2/health/ready",
        ]
    );
    let admins = paths_of(&place, Permission::Admin);
    for path in [
        "/inference.GRPCInferenceService/RepositoryModelLoad",
        "/inference.GRPCInferenceService/RepositoryModelUnload",
        "/models",
        "/models/{model}",
        "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
    ] {
        assert!(admins.iter().any(|admin| admin == path), "{path} is not in {admins:?}");
    }
    let metrics = paths_of(&place, Permission::Metrics);
    assert_eq!(metrics, ["/metrics", "/monitoring/prometheus/metrics"]);
}

#[test]
fn every_route_asks_for_its_role() {
    let people = People::new();
    let place = people.serve();
    let (mut sent, mut refused) = (0, 0);
    let routes = place.server.api().routes();
    let each = routes.flat_map(|(methods, path, permission)| {
        methods.iter().map(move |method| (*method, path, permission))
    });
    for (method, path, permission) in each {
        let path = path.replace("{model}", "m").replace("{endpoint}", "m");
        let path = path.replace("{version}", "1").replace("{label}", "l");
        let path = path.replace("{file}", "app.js").replace("{*rest}", "/x");
        let path = path.replace("{region}", "r");
        assert!(!path.contains('{'), "{path} has a parameter that this test does not fill in");
        for (authorization, roles) in callers() {
            let answer = ask(&place, method, &path, authorization.as_deref());
            let what = format!("{method} {path} ({permission}) for {authorization:?}");
            let expected = match roles {
                _ if permission == Permission::Public => None,
                None => Some(401),
                Some(roles) if !permission.allows(roles) => Some(403),
                Some(_) => None,
            };
            sent += 1;
            match expected {
                Some(status) => {
                    refused += 1;
                    assert_eq!(answer.status, status, "{what}: {}", answer.text());
                }
                None => assert!(![401, 403].contains(&answer.status), "{what}"),
            }
            let is_challenged = answer.headers.contains_key("www-authenticate");
            assert_eq!(is_challenged, expected == Some(401), "{what}");
        }
    }
    // Browsers send preflight requests without credentials.
    assert_eq!(ask(&place, "OPTIONS", PREDICT, None).status, 400);
    // Callers without credentials cannot find out which routes exist.
    for path in ["/nowhere", "/healthz/", "/METRICS", "//metrics", "/v2/models/m", "/models/"] {
        assert_eq!(ask(&place, "GET", path, None).status, 401, "{path}");
    }
    assert!(sent > 300 && refused > 150 && refused < sent, "{refused} of {sent}");
}

#[test]
fn every_call_asks_for_its_role() {
    let people = People::new();
    let place = people.serve();
    let caller = Caller::connect(place.server.grpc_address()).expect("connects");
    for (path, permission) in place.server.api().grpc_methods() {
        for (authorization, roles) in callers() {
            let code = caller.begin(path, authorization.as_deref());
            let what = format!("{path} ({permission}) for {authorization:?}: {code:?}");
            match roles {
                _ if permission == Permission::Public => assert_eq!(code, Code::Ok, "{what}"),
                None => assert_eq!(code, Code::Unauthenticated, "{what}"),
                Some(roles) if permission.allows(roles) => {
                    assert_ne!(code, Code::Unauthenticated, "{what}");
                    // Only `tensorflow_model_server` mode accepts configuration over gRPC.
                    let is_reload = path.ends_with("HandleReloadConfigRequest");
                    assert_eq!(code == Code::PermissionDenied, is_reload, "{what}");
                }
                Some(_) => assert_eq!(code, Code::PermissionDenied, "{what}"),
            }
        }
    }
    let unknown = "/tensorflow.serving.SessionService/SessionRun";
    assert_eq!(caller.begin(unknown, None), Code::Unauthenticated);
    assert_eq!(caller.begin(unknown, Some("Bearer key-of-infer")), Code::PermissionDenied);
    assert_eq!(caller.begin(unknown, Some("Bearer key-of-admin")), Code::Unimplemented);
}

#[test]
fn bad_credentials_are_refused_in_the_form_of_each_protocol() {
    let people = People::new();
    let place = people.serve();
    let long = format!("Bearer {}", "a".repeat(20_000));
    let right = BASE64_STANDARD.encode("ana:correct horse");
    let cases = [
        None,
        Some(String::new()),
        Some("Bearer".to_owned()),
        Some("Bearer ".to_owned()),
        Some(bearer("key-of-infe")),
        Some(bearer("key-of-inferr")),
        Some(bearer("KEY-OF-INFER")),
        Some(bearer("key-of-infer key-of-admin")),
        Some(right.clone()),
        Some(format!("Basic {right}=")),
        Some(format!("Basic {}", right.trim_end_matches('='))),
        Some("Basic !!!".to_owned()),
        Some(format!("Basic {}", BASE64_STANDARD.encode("ana"))),
        Some(format!("Basic {}", BASE64_STANDARD.encode(b"\xff\xfe:x"))),
        Some("Digest username=\"ana\"".to_owned()),
        Some("AWS4-HMAC-SHA256 Credential=key-of-admin/x".to_owned()),
        Some(basic("ana", "")),
        Some(basic("ana", "correct horse ")),
        Some(basic("Ana", "correct horse")),
        Some(basic("the key-of-admin", "key-of-admin")),
        Some(basic("", "")),
        Some(long),
    ];
    for authorization in &cases {
        for (path, body) in [(PREDICT, BODY), ("/", "{}"), ("/invocations", BODY)] {
            let mut headers = vec![("Content-Type", "application/json")];
            headers.extend(authorization.as_deref().map(|value| ("Authorization", value)));
            let answer = request(place.server.address, "POST", path, &headers, body);
            let what = format!("{path} with {authorization:.60?}");
            answer.assert_refused(&what, 401, "credentials");
            let challenge = answer.headers.get("www-authenticate").map(String::as_str);
            assert_eq!(challenge, Some("Basic realm=\"tensorserve\", charset=\"UTF-8\", Bearer"));
            // The response does not repeat the credentials.
            assert!(!answer.text().contains("horse") && !answer.text().contains("ana"), "{what}");
        }
    }
    // The response does not reveal whether a user exists.
    let known = ask(&place, "GET", "/v1/models", Some(&basic("ana", "wrong")));
    let unknown = ask(&place, "GET", "/v1/models", Some(&basic("bob", "wrong")));
    assert_eq!((known.status, known.text()), (unknown.status, unknown.text()));
    // The dashboard has its own sign-in form; a challenge would open the browser's dialog.
    let headers = [("X-Requested-With", "tensorserve")];
    let answer = request(place.server.address, "GET", "/v1/models", &headers, "");
    assert_eq!(answer.status, 401);
    assert!(!answer.headers.contains_key("www-authenticate"));
    // Of two headers the first counts.
    let two = [("Authorization", "Bearer nobody's"), ("Authorization", "Bearer key-of-admin")];
    assert_eq!(request(place.server.address, "GET", "/metrics", &two, "").status, 401);
    // AWS clients get the error format of SageMaker.
    let answer = request(place.server.address, "POST", "/endpoints/m/invocations", &[], BODY);
    assert_eq!(answer.status, 401);
    assert!(answer.json()["Message"].is_string(), "{}", answer.text());
}

#[test]
fn who_is_known_is_served_and_probes_are_told_no_more_than_they_need() {
    let people = People::new();
    let place = people.serve();
    for authorization in [bearer("key-of-infer"), basic("ana", "correct horse")] {
        let mut client = Client::connect(place.server.address).expect("connects");
        // A password check must not block later requests on the same connection.
        for _ in 0..3 {
            let headers = [("Authorization", authorization.as_str())];
            let answer = client.request("POST", PREDICT, &headers, BODY.as_bytes());
            let answer = answer.expect("an answer");
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.json(), json!({"predictions": [[1.0]]}));
        }
        // A refusal keeps the connection usable.
        let refused = client.request("POST", PREDICT, &[], BODY.as_bytes()).expect("an answer");
        assert_eq!(refused.status, 401);
    }
    let answer = ask(&place, "GET", "/readyz", None);
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok\n"));
    let waiting = Place::empty(|settings, root| {
        settings.server.auth_file = Some(people.file());
        let (name, path) = (Some("secret_name".to_owned()), Some(root.join("not_there")));
        settings.models.push(ModelSettings { name, path, ..ModelSettings::default() });
    });
    let answer = ask(&waiting, "GET", "/readyz", None);
    answer.assert_refused("/readyz", 503, "not ready");
    assert!(!answer.text().contains("secret_name"), "{}", answer.text());
    let answer = ask(&waiting, "GET", "/v1/models/secret_name", Some("Bearer key-of-metrics"));
    assert!(answer.text().contains("secret_name"), "{}", answer.text());
}

#[test]
fn pings_without_credentials_do_not_reveal_which_models_exist() {
    let people = People::new();
    let place = people.serve();
    for model in ["m", "nothing", "../m"] {
        let attributes = format!("tfs-model-name={model}");
        let headers = [("X-Amzn-SageMaker-Custom-Attributes", attributes.as_str())];
        let answer = request(place.server.address, "GET", "/ping", &headers, "");
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "{model}");
    }
}

/// The time until a refusal, in milliseconds.
fn time_refused(place: &Place, user: &str, password: &str) -> f64 {
    let authorization = basic(user, password);
    let start = Instant::now();
    assert_eq!(ask(place, "GET", "/v1/models", Some(&authorization)).status, 401);
    start.elapsed().as_secs_f64() * 1e3
}

#[test]
fn an_unknown_user_takes_as_long_as_a_wrong_password() {
    let people = People::new();
    let place = people.serve();
    // In turns, and the least of each: other load on the machine only adds to it, and the more turns, the less.
    let mut least = [f64::INFINITY; 2];
    let is_alike = |[known, unknown]: [f64; 2]| (0.5..2.0).contains(&(known / unknown));
    for turn in 0..300 {
        for (user, least) in ["ana", "bob"].into_iter().zip(&mut least) {
            *least = least.min(time_refused(&place, user, &format!("wrong {turn} of {user}")));
        }
        if turn >= 9 && is_alike(least) {
            break;
        }
    }
    let [known, unknown] = least;
    assert!(is_alike(least), "{known} and {unknown} ms");
    // Long enough for the password hash, which is also computed for an unknown user.
    assert!(unknown > 3.0, "{unknown} ms");
}

#[test]
fn wrong_passwords_keep_nobody_waiting_who_has_a_key() {
    let people = People::new();
    let place = people.serve();
    let busy = AtomicUsize::new(0);
    flooded(&place, &busy, || {
        thread::sleep(Duration::from_millis(300));
        let mut slowest = Duration::ZERO;
        for _ in 0..50 {
            let start = Instant::now();
            let key = [("Authorization", "Bearer key-of-infer")];
            let answer = request(place.server.address, "POST", PREDICT, &key, BODY);
            assert_eq!(answer.status, 200);
            slowest = slowest.max(start.elapsed());
        }
        assert!(slowest < Duration::from_secs(20), "{slowest:?}");
    });
    assert!(busy.load(Relaxed) > 0, "no request was refused with 429");
}

/// Does `work` while 100 clients send wrong passwords; `busy` counts those that are sent away.
fn flooded(place: &Place, busy: &AtomicUsize, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for flood in 0..100 {
            let stop = &stop;
            scope.spawn(move || {
                let mut n = 0;
                while !stop.load(Relaxed) {
                    n += 1;
                    let authorization = basic("ana", &format!("{flood} {n}"));
                    let answer = ask(place, "GET", "/v1/models", Some(&authorization));
                    match answer.status {
                        401 => {}
                        429 => {
                            assert_eq!(answer.headers["retry-after"], "1");
                            busy.fetch_add(1, Relaxed);
                            thread::sleep(Duration::from_millis(20));
                        }
                        other => panic!("{other}: {}", answer.text()),
                    }
                }
            });
        }
        // The flood also ends if `work` fails.
        let outcome = catch_unwind(AssertUnwindSafe(work));
        stop.store(true, Relaxed);
        outcome.unwrap_or_else(|failure| resume_unwind(failure));
    });
}

#[test]
fn wrong_passwords_delay_only_their_own_address() {
    let people = People::new();
    for user in 0..8 {
        add_user(&people.file(), &format!("user-{user}"), "correct horse", &[Role::Infer])
            .expect("a user");
    }
    let place = people.serve();
    let busy = AtomicUsize::new(0);
    flooded(&place, &busy, || {
        place.server.wait_until("the flood is refused", |_| busy.load(Relaxed) > 100);
        for user in 0..8 {
            let from = [127, 0, 0, 2 + user].into();
            let mut client = Client::connect_from(from, place.server.address).expect("connects");
            let authorization = basic(&format!("user-{user}"), "correct horse");
            let headers = [("Authorization", authorization.as_str())];
            let start = Instant::now();
            let answer = client.request("POST", PREDICT, &headers, BODY.as_bytes());
            let answer = answer.expect("an answer");
            assert_eq!(answer.status, 200, "user {user}: {}", answer.text());
            assert!(start.elapsed() < Duration::from_secs(20), "user {user}");
        }
    });
}

#[test]
fn a_stream_ends_when_its_credentials_are_revoked() {
    let people = People::new();
    let place = people.serve();
    let listen = |key: &str| {
        let header = format!("Authorization: {}\r\n", bearer(key));
        Events::listen_as(place.server.address, "/api/v1/stream", &header)
    };
    let (mut removed, mut changed) = (listen("key-of-infer"), listen("key-of-metrics"));
    let mut kept = listen("key-of-admin");
    for events in [&mut removed, &mut changed, &mut kept] {
        events.next_named("status").expect("a status");
    }
    let other = people.folder.path().join("other.toml");
    for (key, role) in [("key-of-metrics", Role::Infer), ("key-of-admin", Role::Admin)] {
        add_key(&other, &format!("the {key}"), key, &[role]).expect("a key");
    }
    fs::rename(other, people.file()).expect("renamed");
    let start = Instant::now();
    while removed.next().is_some() {}
    while changed.next().is_some() {}
    assert!(start.elapsed() < Duration::from_secs(100), "{:?}", start.elapsed());
    for _ in 0..2 {
        kept.next_named("status").expect("a status");
    }
}

#[test]
fn admins_have_streams_of_their_own() {
    let people = People::new();
    let place = people.serve();
    let header = |key: &str| format!("Authorization: {}\r\n", bearer(key));
    let listen =
        |key: &str| Events::listen_as(place.server.address, "/api/v1/stream", &header(key));
    let _others: Vec<Events> = (0..80).map(|_| listen("key-of-infer")).collect();
    let refused = ask(&place, "GET", "/api/v1/stream", Some(&bearer("key-of-both")));
    refused.assert_refused("one too many", 503, "80 clients are already connected");
    let _admins: Vec<Events> = (0..20).map(|_| listen("key-of-admin")).collect();
    let refused = ask(&place, "GET", "/api/v1/stream", Some(&bearer("key-of-admin")));
    refused.assert_refused("one too many", 503, "100 clients are already connected");
}

#[test]
fn refusals_are_counted() {
    let people = People::new();
    let place = people.serve();
    let counted = |reason: &str| {
        let text = ask(&place, "GET", "/metrics", Some("Bearer key-of-metrics")).text();
        let name = format!("tensorserve_auth_failures_total{{reason=\"{reason}\"}} ");
        let count = text.lines().find_map(|line| line.strip_prefix(&name));
        count.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    for reason in ["missing", "malformed", "wrong", "forbidden", "busy"] {
        assert_eq!(counted(reason), "0", "{reason}");
    }
    let caller = Caller::connect(place.server.grpc_address()).expect("connects");
    for (authorization, reason) in [
        (None, "missing"),
        (Some("Bearer".to_owned()), "malformed"),
        (Some(bearer("nobody's")), "wrong"),
        (Some(basic("ana", "wrong horse")), "wrong"),
        (Some(bearer("key-of-metrics")), "forbidden"),
    ] {
        let before: u64 = counted(reason).parse().expect("a number");
        ask(&place, "POST", PREDICT, authorization.as_deref());
        caller.begin(crate::support::grpc::PREDICT, authorization.as_deref());
        assert_eq!(counted(reason), (before + 2).to_string(), "{authorization:?}");
    }
    ask(&place, "GET", "/v1/models", Some(&basic("ana", "correct horse")));
    assert_eq!(counted("wrong"), "4");
}

#[test]
fn who_lacks_the_permission_is_refused_before_memory_is_taken() {
    let people = People::new();
    let place = Place::of(&Model::default(), |settings| {
        settings.server.auth_file = Some(people.file());
        settings.server.max_request_memory = Some("1MiB".parse().expect("a size"));
    });
    let caller = Caller::connect(place.server.grpc_address()).expect("connects");
    let call = |key| caller.begin(crate::support::grpc::PREDICT, Some(&bearer(key)));
    let post = |key| ask(&place, "POST", PREDICT, Some(&bearer(key))).status;
    assert_eq!(caller.begin(crate::support::grpc::PREDICT, None), Code::Unauthenticated);
    let memory = place.server.engine.request_memory();
    let mut held = Vec::new();
    while let Ok(request) = memory.request() {
        held.push(request);
    }
    let (used, refused) = (memory.used(), memory.refused());
    for (key, code, status) in
        [("nobody's", Code::Unauthenticated, 401), ("key-of-metrics", Code::PermissionDenied, 403)]
    {
        assert_eq!((call(key), post(key)), (code, status), "{key}");
        assert_eq!((memory.used(), memory.refused()), (used, refused), "{key}");
    }
    assert_eq!((call("key-of-infer"), post("key-of-infer")), (Code::ResourceExhausted, 503));
    assert!(memory.refused() > refused);
}

#[test]
fn calls_over_the_unix_socket_ask_for_their_role() {
    let people = People::new();
    let folder = tempfile::tempdir().expect("temporary directory");
    let socket = folder.path().join("grpc.sock");
    let place = Place::of(&Model::default(), |settings| {
        settings.server.auth_file = Some(people.file());
        settings.server.grpc_socket_path = Some(socket.clone());
    });
    let caller = Caller::connect_to_path(&socket).expect("connects");
    for (path, permission) in place.server.api().grpc_methods() {
        for (authorization, roles) in callers() {
            let code = caller.begin(path, authorization.as_deref());
            let what = format!("{path} ({permission}) for {authorization:?}: {code:?}");
            match roles {
                _ if permission == Permission::Public => assert_eq!(code, Code::Ok, "{what}"),
                None => assert_eq!(code, Code::Unauthenticated, "{what}"),
                Some(roles) if permission.allows(roles) => {
                    assert_ne!(code, Code::Unauthenticated, "{what}");
                }
                Some(_) => assert_eq!(code, Code::PermissionDenied, "{what}"),
            }
        }
    }
}

/// Replaces a file in one step.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("tmp");
    fs::write(&beside, text).expect("written");
    fs::rename(beside, path).expect("renamed");
}

#[test]
fn the_file_changes_under_load_without_a_failed_request() {
    let people = People::new();
    let place = people.serve();
    let good = fs::read_to_string(people.file()).expect("text");
    let stop = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        for authorization in [bearer("key-of-infer"), basic("ana", "correct horse")] {
            for _ in 0..2 {
                let (place, stop, answered) = (&place, &stop, &answered);
                let authorization = authorization.clone();
                scope.spawn(move || {
                    let mut client = Client::connect(place.server.address).expect("connects");
                    while !stop.load(Relaxed) {
                        let headers = [("Authorization", authorization.as_str())];
                        let answer = client.request("POST", PREDICT, &headers, BODY.as_bytes());
                        let answer = answer.expect("an answer");
                        assert_eq!(answer.status, 200, "{authorization}: {}", answer.text());
                        answered.fetch_add(1, Relaxed);
                        pause_between_requests();
                    }
                });
            }
        }
        for n in 0..12 {
            match n % 4 {
                0 => replace(&people.file(), &format!("{good}\n# {n}\n")),
                1 => replace(&people.file(), "[users.ana"),
                2 => fs::write(people.file(), "").expect("written"),
                _ => fs::remove_file(people.file()).expect("removed"),
            }
            thread::sleep(Duration::from_millis(180));
        }
        stop.store(true, Relaxed);
    });
    assert!(answered.load(Relaxed) > 100, "{}", answered.load(Relaxed));
    // Additions, changes and removals of keys and users all take effect.
    add_key(&people.file(), "new", "new-key", &[Role::Infer]).expect("a key");
    add_key(&people.file(), "was infer", "key-of-infer", &[Role::Metrics]).expect("a key");
    let status = |key: &str| ask(&place, "POST", PREDICT, Some(&bearer(key))).status;
    place.server.wait_until("the new file", |_| status("key-of-infer") == 403);
    assert!(![401, 403].contains(&status("new-key")));
    assert_eq!(status("key-of-admin"), 401);
    assert_eq!(ask(&place, "GET", "/v1/models", Some(&basic("ana", "correct horse"))).status, 401);
}
