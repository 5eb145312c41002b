use tensorserve_protocol::{NoHeaders, RouteMatch, RouteTable};

use super::*;

/// The routes of the API.
fn table(exact: bool) -> RouteTable {
    let engine = Engine::without_models().expect("an engine");
    let api =
        Arc::new(RestApi { engine, exact, kserve: false, prefix: "", metrics: Arc::default() });
    let mut routes = Routes::default();
    add_routes(&api, &mut routes);
    RouteTable::new(routes).expect("no conflict")
}

fn find(table: &RouteTable, method: &str, target: &str) -> String {
    let head = RequestHead { method, target, headers: &NoHeaders };
    match table.find(&head) {
        RouteMatch::Route(route, params) => {
            let Some(spec) = OwnedModelSpec::of(&params) else { return "version".to_owned() };
            let path = route.path();
            let verb = path.rsplit(['/', '}']).next().expect("a verb").to_owned();
            format!("{verb} {} {:?} {:?}", spec.name, spec.version, spec.label)
        }
        RouteMatch::NoRoute(scope, missing) => {
            let reply = scope.style().render(scope.answer(&head, &missing));
            reply.error.map_or_else(String::new, |error| error.message().to_owned())
        }
        RouteMatch::Nothing => "nothing".to_owned(),
    }
}

#[test]
fn posts() {
    let (ours, exact) = (table(false), table(true));
    for (target, want) in [
        ("/v1/models/m:predict", ":predict m None None"),
        ("/V1/Models/m/VERSIONS/7:regress", ":regress m Some(7) None"),
        ("/v1/models/m%2Fn/labels/a%20b:classify", ":classify m/n None Some(\"a b\")"),
        ("/v1/models/m/versions/18446744073709551615:predict", "version"),
    ] {
        assert_eq!(find(&ours, "POST", target), want);
        assert_eq!(find(&exact, "POST", target), want);
    }
    for wrong in [
        "/v1/models/m",
        "/v1/models/m:Predict",
        "/v1/models/m:foo",
        "/v1/models/:predict",
        "/v1/models:predict",
        "/v1/models/m/versions/x:predict",
        "/v1/models/m/version/1:predict",
        "/v1/models/m/versions/1/labels/l:predict",
        "/v1/models/m/metadata",
        "/v1/models/m:predict?x=1",
        "/v1/models/m/:predict",
        "/v1/models/a:b:predict",
        "/v1/foo",
        "/v1/modelsm:predict",
    ] {
        assert_eq!(find(&exact, "POST", wrong), format!("Malformed request: POST {wrong}"));
    }
    // Without `exact`, the query is ignored.
    assert_eq!(find(&ours, "POST", "/v1/models/m:predict?x=1"), ":predict m None None");
}

#[test]
fn gets() {
    let (ours, exact) = (table(false), table(true));
    for (target, want) in [
        ("/v1/models/m", " m None None"),
        ("/v1/models/m/versions/1", " m Some(1) None"),
        ("/v1/models/m/labels/l", " m None Some(\"l\")"),
        ("/v1/models/m/metadata", "metadata m None None"),
        // The route matches in any case; the handler distinguishes.
        ("/v1/models/m/Metadata", "metadata m None None"),
        ("/v1/models/metadata", " metadata None None"),
        ("/v1/models/versions", " versions None None"),
        ("/v1/models/versions/metadata", "metadata versions None None"),
    ] {
        assert_eq!(find(&ours, "GET", target), want);
        assert_eq!(find(&exact, "GET", target), want);
    }
    assert_eq!(find(&exact, "GET", "/v1/models/m?x=1"), " m?x=1 None None");
    for wrong in [
        "/v1/models/",
        "/v1/models/m/",
        "/v1/models/m:predict",
        "/v1/models/debug/model_name",
        "/v1/models/m/versions/1/labels/l",
        "/v1/models/m/versions",
        "/v1/models/m/x/metadata",
    ] {
        assert_eq!(find(&exact, "GET", wrong), format!("Malformed request: GET {wrong}"));
    }
    for nameless in ["/v1/models/versions/1", "/V1/models/labels/l/metadata"] {
        assert_eq!(find(&ours, "GET", nameless), "Missing model name in request.");
    }
    assert_eq!(find(&exact, "PUT", "/v1/models/m"), "Malformed request: PUT /v1/models/m");
    let text = "PUT is not allowed for /v1/models/m; use GET, HEAD";
    assert_eq!(find(&ours, "PUT", "/v1/models/m"), text);
    let text = "GET is not allowed for /v1/models/m:predict; use POST";
    assert_eq!(find(&ours, "GET", "/v1/models/m:predict"), text);
}
