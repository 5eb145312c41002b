//! The variables that Vertex AI sets in a custom container.
//!
//! Source: *Custom container requirements for inference*, version 1.0.0, of Google Cloud's
//! documentation.

use std::path::PathBuf;

use super::environment::Environment;
use super::units::Port;
use super::{Settings, VertexConfig};

/// The variables whose presence shows that Vertex AI has started the program. Its training jobs set
/// other ones.
const SIGNS: [&str; 4] =
    ["AIP_HTTP_PORT", "AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE", "AIP_STORAGE_URI"];

/// The default of `AIP_HTTP_PORT`.
const HTTP_PORT: u16 = 8080;

/// The values of the variables, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct VertexVariables {
    /// Their settings, with the service's defaults, and mistakes in them.
    pub settings: Settings,
    /// The paths that the service calls.
    pub routes: VertexConfig,
    /// The model: a `gs://` URL, or a path. `None` if it is in the image.
    pub storage: Option<PathBuf>,
}

/// Whether Vertex AI seems to have started the program.
#[must_use]
pub fn is_called_for(environment: &Environment) -> bool {
    SIGNS.iter().any(|name| environment.get(name).is_some())
}

/// Reads the variables; `None` if Vertex AI has set none.
#[must_use]
pub fn read(environment: &Environment) -> Option<VertexVariables> {
    if !is_called_for(environment) {
        return None;
    }
    // The service sets variables without a value to an empty text.
    let text = |name| environment.get(name).map(str::trim).filter(|value: &&str| !value.is_empty());
    let mut settings = Settings::default();
    let mistakes = &mut settings.reading.mistakes;
    let port = text("AIP_HTTP_PORT").map_or(Some(HTTP_PORT), |port| port.parse().ok());
    if port.is_none() {
        let given = text("AIP_HTTP_PORT").unwrap_or_default();
        mistakes.add(format!("AIP_HTTP_PORT: {given:?} is not a port (0 to 65535)"));
    }
    let (predict, health) = default_routes(text("AIP_ENDPOINT_ID"), text("AIP_DEPLOYED_MODEL_ID"));
    let mut route = |name: &'static str, default: String| {
        let path = text(name).map_or(default, str::to_owned);
        if !is_path(&path) {
            mistakes.add(format!(
                "{name}: {path:?} is not the path of a URL, such as /predict: it begins with / and \
                 has no ?, # or white space"
            ));
        }
        path
    };
    let routes = VertexConfig {
        predict_route: route("AIP_PREDICT_ROUTE", predict),
        health_route: route("AIP_HEALTH_ROUTE", health),
    };
    settings.server.host = Some("0.0.0.0".to_owned());
    settings.server.http_port = port.map(Port::Number);
    // The service has no use for gRPC.
    let is_taken = settings.server.http_port == Some(settings.server.grpc_port());
    settings.server.grpc_port = is_taken.then_some(Port::Off);
    let storage = text("AIP_STORAGE_URI").map(PathBuf::from);
    Some(VertexVariables { settings, routes, storage })
}

/// The service's default paths of predictions and of health checks.
fn default_routes(endpoint: Option<&str>, model: Option<&str>) -> (String, String) {
    let (Some(endpoint), Some(model)) = (endpoint, model) else {
        return ("/predict".to_owned(), "/health".to_owned());
    };
    let health = format!("/v1/endpoints/{endpoint}/deployedModels/{model}");
    (format!("{health}:predict"), health)
}

fn is_path(text: &str) -> bool {
    let is_in_path = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#');
    text.starts_with('/') && text.bytes().all(is_in_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> VertexVariables {
        read(&Environment::of(pairs)).expect("Vertex AI's variables")
    }

    fn mistakes(pairs: &[(&str, &str)]) -> String {
        let error = of(pairs).settings.reading.mistakes.result(()).expect_err("a mistake");
        error.message().to_owned()
    }

    #[test]
    fn variables_of_a_deployed_model() {
        let variables = of(&[
            ("AIP_MODE", "PREDICTION"),
            ("AIP_HTTP_PORT", "9090"),
            ("AIP_PREDICT_ROUTE", "/v1/endpoints/1/deployedModels/2:predict"),
            ("AIP_HEALTH_ROUTE", "/v1/endpoints/1/deployedModels/2"),
            ("AIP_STORAGE_URI", "gs://caip-tenant/artifacts"),
        ]);
        let server = &variables.settings.server;
        assert_eq!(server.host.as_deref(), Some("0.0.0.0"));
        assert_eq!((server.http_port, server.grpc_port), (Some(Port::Number(9090)), None));
        assert_eq!(variables.routes.predict_route, "/v1/endpoints/1/deployedModels/2:predict");
        assert_eq!(variables.routes.health_route, "/v1/endpoints/1/deployedModels/2");
        assert_eq!(variables.storage, Some("gs://caip-tenant/artifacts".into()));
    }

    #[test]
    fn missing_variables_have_the_services_defaults() {
        let ids = [("AIP_ENDPOINT_ID", "7"), ("AIP_DEPLOYED_MODEL_ID", "8")];
        let variables = of(&[ids[0], ids[1], ("AIP_STORAGE_URI", "")]);
        assert_eq!(variables.settings.server.http_port, Some(Port::Number(8080)));
        assert_eq!(variables.routes.predict_route, "/v1/endpoints/7/deployedModels/8:predict");
        assert_eq!(variables.routes.health_route, "/v1/endpoints/7/deployedModels/8");
        assert_eq!(variables.storage, None);
        assert_eq!(of(&[("AIP_HTTP_PORT", "1")]).routes.predict_route, "/predict");
        assert_eq!(read(&Environment::of(&ids)), None);
        assert_eq!(read(&Environment::of(&[("AIP_MODEL_DIR", "gs://training")])), None);
    }

    #[test]
    fn the_port_of_grpc_may_be_taken() {
        let server = of(&[("AIP_HTTP_PORT", "8501")]).settings.server;
        assert_eq!(server.grpc_port, Some(Port::Off));
    }

    #[test]
    fn mistakes_name_the_variable() {
        for port in ["http", "80800", "-1"] {
            let error = mistakes(&[("AIP_HTTP_PORT", port)]);
            assert!(error.contains("AIP_HTTP_PORT: ") && error.contains(port), "{error}");
        }
        for path in ["predict", "/a b", "/a?b=c", "/a#b", "/\u{e9}"] {
            let error = mistakes(&[("AIP_PREDICT_ROUTE", path)]);
            assert!(error.contains("AIP_PREDICT_ROUTE: "), "{error}");
        }
    }
}
