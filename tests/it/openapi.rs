//! `/openapi.json` describes every operation completely.

use serde_json::Value;

use crate::support::fake::Model;
use crate::support::place::Place;

const ROLES: [&str; 3] = ["infer", "metrics", "admin"];

/// Whether an operation belongs to this server's own API, and not to that of a reference server.
fn is_own(path: &str, operation: &Value) -> bool {
    path.starts_with("/api/v1/")
        || matches!(operation["tags"][0].as_str(), Some("console" | "server"))
}

fn assert_parameter(context: &str, parameter: &Value) {
    assert!(parameter["schema"].is_object(), "{context}: a parameter has no schema: {parameter}");
    let description = parameter["description"].as_str().unwrap_or_default();
    let name = parameter["name"].as_str().expect("a name");
    let is_described = description.contains(' ') && description != name;
    assert!(is_described, "{context}: a parameter has no description: {parameter}");
}

/// The names of the path parameters in braces.
fn names_in(path: &str) -> Vec<&str> {
    path.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0)).collect()
}

fn assert_content(context: &str, what: &Value) {
    let content = what["content"].as_object();
    let content = content.unwrap_or_else(|| panic!("{context}: no content: {what}"));
    assert!(!content.is_empty(), "{context}: no media type: {what}");
    for (media_type, content) in content {
        assert!(content["schema"].is_object(), "{context}: no schema of {media_type}: {what}");
    }
}

fn assert_described(path: &str, method: &str, operation: &Value) {
    let context = &format!("{} {path}", method.to_uppercase());
    let summary = operation["summary"].as_str().unwrap_or_default();
    let is_sentence = summary.contains(' ') && summary.starts_with(char::is_uppercase);
    assert!(is_sentence && !summary.ends_with('.'), "{context}: summary {summary:?}");
    assert!(!summary.contains("docs/"), "{context}: summary {summary:?}");
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        assert_parameter(context, parameter);
    }
    let roles: Vec<&str> =
        operation["x-roles"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let is_public = operation["security"].as_array().is_some_and(Vec::is_empty);
    assert_ne!(is_public, !roles.is_empty(), "{context}: must be public or have roles, not both");
    assert!(roles.iter().all(|role| ROLES.contains(role)), "{context}: roles {roles:?}");
    if path.starts_with("/v2") {
        return assert_statuses(context, &operation["responses"]);
    }
    let error = &operation["responses"]["default"];
    assert_content(context, error);
    if !is_own(path, operation) {
        return;
    }
    assert_content(context, &operation["responses"]["200"]);
    if method == "post" {
        assert_content(context, &operation["requestBody"]);
    }
}

/// Every status is listed, with its meaning and the schema of its content.
fn assert_statuses(context: &str, responses: &Value) {
    let responses = responses.as_object().expect("responses");
    assert!(responses.len() > 2, "{context}: {responses:?}");
    for (status, response) in responses {
        let number: u16 = status.parse().unwrap_or_else(|_| panic!("{context}: status {status}"));
        let meaning = response["description"].as_str().unwrap_or_default();
        assert!(!meaning.is_empty() && meaning != "Error", "{context}: {status} {meaning:?}");
        assert!((200..600).contains(&number), "{context}: status {status}");
        assert_content(context, response);
    }
}

#[test]
fn every_operation_has_a_summary_parameters_schemas_and_roles() {
    let place = Place::of(&Model::default(), |_| ());
    let api = place.server.get("/openapi.json").json();
    let paths = api["paths"].as_object().expect("paths");
    let mut count = 0;
    for (path, item) in paths {
        let parameters = item["parameters"].as_array().map_or(&[][..], Vec::as_slice);
        let names: Vec<&str> = parameters.iter().filter_map(|p| p["name"].as_str()).collect();
        assert_eq!(names, names_in(path), "{path}");
        parameters.iter().for_each(|parameter| assert_parameter(path, parameter));
        for (method, operation) in item.as_object().expect("operations") {
            if method != "parameters" {
                assert_described(path, method, operation);
                count += 1;
            }
        }
    }
    assert!(count > 50, "{count} operations");
    for path in ["/healthz", "/readyz", "/metrics", "/api/v1/clients", "/api/v1/drain"] {
        assert!(paths.contains_key(path), "{path}");
    }
}
