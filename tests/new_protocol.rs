//! A protocol that is added without a change to any other file: it only decodes requests and
//! encodes responses.
#![allow(missing_docs, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use tensorserve::config::environment::Environment;
use tensorserve::config::units::Port;
use tensorserve::config::{Config, Settings};
use tensorserve::{Server, platforms, protocols};
use tensorserve_auth::Permission;
use tensorserve_core::engine::{
    Engine, EntryPoint, InferRequest, InferResponse, Method, ModelSpec, Resolver, SignatureRun,
    VersionSelector,
};
use tensorserve_protocol::{
    ALLOW, Answer, Failure, Host, Methods, NoRoute, Protocol, Reply, RoutedRequest, Routes,
    inferred,
};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Shape, Tensor, aligned_vec};

/// Numbers as lines of text, for models with one float input and one float output.
struct Lines;

struct LinesApi {
    engine: Engine,
}

impl Protocol for Lines {
    fn name(&self) -> &'static str {
        "lines"
    }

    fn routes(&self, host: &Host, routes: &mut Routes) {
        let api = Arc::new(LinesApi { engine: host.engine.clone() });
        let mut group = routes.group("Lines", &api, Reply::error).on_reply(|reply| {
            reply.headers.push(("x-lines", "1".to_owned()));
        });
        group
            .route(Methods::Post, "/lines/{model}", Permission::Infer, |api, request| {
                Box::pin(api.infer(request))
            })
            .body_limit(100)
            .summary("Run a model on one number a line");
        group.immediate(Methods::Get, "/lines/panic", Permission::Public, |_, _| -> Reply {
            panic!("as the test wants it")
        });
        group.scope("/lines", |_, _, missing| match missing {
            NoRoute::Path => Failure::from(Error::not_found("no lines here")),
            NoRoute::Method(allowed) => {
                let failure = Failure::new(Error::invalid("not with this method"), 405);
                failure.with_header(ALLOW, allowed.join(", "))
            }
        });
    }
}

impl LinesApi {
    async fn infer(&self, mut request: RoutedRequest<'_>) -> Answer {
        let body = request.take_bytes();
        let model = request.params.decoded("model");
        let entry = EntryPoint { protocol: "lines", method: Method::Predict };
        let call = self.engine.call(entry, request.start);
        let outcome =
            self.engine.infer(call, move |resolver| decode(resolver, &model, &body), encode).await;
        inferred(outcome, |text| Reply::ok("text/plain", text))
    }
}

fn decode(resolver: &mut Resolver<'_>, model: &str, body: &[u8]) -> Result<(InferRequest, ())> {
    let version = resolver.resolve(&ModelSpec { name: model, choice: VersionSelector::Latest });
    let version = version.map_err(|_| Error::not_found(format!("no model {model:?}")))?;
    let mut numbers = aligned_vec::<f32>(0);
    for line in String::from_utf8_lossy(body).lines() {
        let number = line.trim().parse();
        numbers.push(number.map_err(|_| Error::invalid(format!("{line:?} is not a number")))?);
    }
    let input = Tensor::from_vec(Shape::vector(numbers.len()), numbers)?;
    let default = version.signature("serving_default").map(|(index, _)| index);
    let signature = default.ok_or_else(|| Error::not_found("no signature serving_default"))?;
    Ok((InferRequest::new(version, SignatureRun::predict(signature, vec![input])), ()))
}

fn encode((): (), response: InferResponse) -> Result<String> {
    let outputs = response.into_single().1.outputs;
    let numbers = outputs.first().and_then(|output| output.values::<f32>()).unwrap_or(&[]);
    Ok(numbers.iter().map(|number| format!("{number}\n")).collect())
}

/// The response to a request: head and body.
fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connects");
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
    .expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response
}

#[test]
fn a_protocol_is_added_without_touching_another() {
    let mut settings = Settings::default();
    settings.server.http_port = Some(Port::Number(0));
    settings.server.grpc_port = Some("off".parse().expect("off"));
    settings.paths.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/half_plus_two"));
    let config = Config::new(settings, &Environment::of_process()).expect("valid settings");
    let mut all = protocols::built_in(&config);
    all.push(Arc::new(Lines));
    let server = Server::with_protocols(&config, platforms::built_in(&config), &all);
    let server = server.expect("starts");
    server.engine().wait_until_started(|_| ());
    let address = server.address().expect("HTTP is on");

    let response = send(address, "POST", "/lines/half_plus_two", "1\n4\n");
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("\r\n\r\n2.5\n4\n"));
    let response = send(address, "POST", "/lines/half_plus_two", "one");
    assert!(response.starts_with("HTTP/1.1 400"), "{response}");
    assert!(response.contains(r#"\"one\" is not a number"#), "{response}");
    assert!(send(address, "POST", "/lines/nothing", "1").starts_with("HTTP/1.1 404"));
    let response = send(address, "PUT", "/lines/half_plus_two", "1");
    assert!(response.starts_with("HTTP/1.1 405") && response.contains("allow: POST"), "{response}");

    let metrics = send(address, "GET", "/metrics", "");
    for code in ["OK", "INVALID_ARGUMENT"] {
        let series = format!(r#"protocol="lines",method="predict",code="{code}"}} 1"#);
        assert!(metrics.contains(&series), "{series} is not in {metrics}");
    }
    // The header of the group is on all its answers, also on those that the server gives in its place.
    for (method, path, body, status) in [
        ("POST", "/lines/half_plus_two", "1", 200),
        ("POST", "/lines/half_plus_two", "one", 400),
        ("POST", "/lines/nothing", "1", 404),
        ("GET", "/lines", "", 404),
        ("GET", "/lines/panic", "", 500),
        ("PUT", "/lines/half_plus_two", "1", 405),
        ("POST", "/lines/half_plus_two", &"1\n".repeat(100), 413),
    ] {
        let response = send(address, method, path, body);
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{response}");
        assert!(response.contains("\r\nx-lines: 1\r\n"), "{response}");
    }
    assert!(!send(address, "GET", "/healthz", "").contains("x-lines"));

    let described = send(address, "GET", "/openapi.json", "");
    assert!(described.contains("Run a model on one number a line"), "{described}");
    let predict = "/v1/models/half_plus_two:predict";
    let response = send(address, "POST", predict, r#"{"instances": [1.0]}"#);
    assert!(response.contains("2.5"), "the other protocols still work: {response}");
    server.stop();
}
