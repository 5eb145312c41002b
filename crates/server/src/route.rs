//! Which route a request takes, and what that asks of whoever sends it.
//!
//! A route is a value. [`Route::of`] finds it without allocating, [`Route::access`] says who may
//! take it, and [`REGISTERED`] lists how each is reached. Both come from one table below, and
//! that is an exhaustive match: a route without a role, or without a line in the list, does not
//! compile.

use tensorserve_auth::Access;
use tensorserve_protocols::console::{self, assets};
use tensorserve_protocols::sagemaker;
use tensorserve_protocols::simple::{self, clients};

/// Where a method and a path lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// What KServe's clients and Knative's probe expect at the root; browsers get the page.
    Alive,
    /// A file of the page.
    PageFile,
    /// The page that describes every route.
    Reference,
    /// Simple TensorFlow Serving's inference: JSON, or a form with images.
    Simple,
    /// A page of Simple TensorFlow Serving, or what its form is sent to.
    Page(simple::Page),
    /// Whether the process lives.
    Live,
    /// The same, in the words of another server.
    Health,
    /// Whether every model can be used.
    Ready,
    /// All metrics.
    Metrics,
    /// TensorFlow Serving's own metrics, whatever the method, as there.
    TfsMetrics,
    /// TensorFlow Serving's REST API: the state and the metadata of models.
    TfsLook,
    /// TensorFlow Serving's REST API: inference, and whatever has another method.
    TfsInfer,
    /// A browser's question before it calls TensorFlow Serving's REST API.
    TfsOptions,
    /// The source of a client for a model.
    Client,
    /// The languages there are clients in.
    Clients,
    /// A part of SageMaker's front.
    Sagemaker(sagemaker::Route),
    /// A part of the console's API.
    Console(console::Route),
    /// A path that has other methods.
    OtherMethod,
    /// No path of ours.
    Nowhere,
}

/// A route and the ways to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registered {
    /// Where they lead.
    pub(super) route: Route,
    /// Methods and paths: `GET|HEAD /v1/models/{model}`. `*` is every method.
    pub(super) ways: &'static [&'static str],
}

impl Registered {
    /// Each method with each path.
    pub(super) fn each(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let ways = self.ways.iter().filter_map(|way| way.split_once(' '));
        ways.flat_map(|(methods, path)| methods.split('|').map(move |method| (method, path)))
    }
}

/// From lines of route, role and ways: who may take each route, and the list of all.
macro_rules! routes {
    ($( { $($route:tt)+ } $access:ident $ways:expr; )+) => {
        impl Route {
            /// What the route asks of whoever takes it.
            pub(super) fn access(self) -> Access {
                match self {
                    $( $($route)+ => Access::$access, )+
                }
            }
        }

        /// Every route there is.
        pub(super) const REGISTERED: &[Registered] = &[
            $( Registered { route: $($route)+, ways: &$ways }, )+
        ];
    };
}

use console::Route as Part;
use sagemaker::Route as Container;
use simple::Page;

routes! {
    { Route::Alive } Open ["GET|HEAD /"];
    { Route::PageFile } Open ["* /console/{file}"];
    { Route::Reference } Open ["GET|HEAD /reference"];
    { Route::Live } Open ["GET|HEAD /healthz"];
    { Route::Health } Open ["GET|HEAD /health"];
    { Route::Ready } Open ["GET|HEAD /readyz"];
    { Route::Metrics } Metrics ["GET|HEAD /metrics"];
    { Route::TfsMetrics } Metrics ["* /monitoring/prometheus/metrics"];
    { Route::Simple } Infer ["POST /"];
    { Route::Page(Page::JsonForm) } Infer ["GET|HEAD /json_inference"];
    { Route::Page(Page::ImageForm) } Infer ["GET|HEAD /image_inference"];
    { Route::Page(Page::ClientForm) } Infer ["GET|HEAD /generate_clients"];
    { Route::Page(Page::RunClient) } Infer ["POST /run_generate_clients"];
    { Route::Page(Page::RunJson) } Infer ["POST /run_json_inference"];
    { Route::Page(Page::RunImage) } Infer ["POST /run_image_inference"];
    { Route::Page(Page::Asset) } Open [
        "GET|HEAD /static/simple.css",
        "GET|HEAD /static/images/favicon.ico",
    ];
    { Route::TfsLook } Look [
        "GET|HEAD /v1/models",
        "GET|HEAD /v1/models/{model}",
        "GET|HEAD /v1/models/{model}/versions/{version}",
        "GET|HEAD /v1/models/{model}/labels/{label}",
        "GET|HEAD /v1/models/{model}/metadata",
        "GET|HEAD /v1/models/{model}/gen_json",
        "GET|HEAD /v1/models/{model}/versions/{version}/metadata",
        "GET|HEAD /v1/models/{model}/labels/{label}/metadata",
    ];
    { Route::TfsInfer } Infer [
        "POST /v1/models/{model}:predict",
        "POST /v1/models/{model}:classify",
        "POST /v1/models/{model}:regress",
        "POST /v1/models/{model}/versions/{version}:predict",
        "POST /v1/models/{model}/versions/{version}:classify",
        "POST /v1/models/{model}/versions/{version}:regress",
        "POST /v1/models/{model}/labels/{label}:predict",
        "POST /v1/models/{model}/labels/{label}:classify",
        "POST /v1/models/{model}/labels/{label}:regress",
    ];
    // Browsers ask without credentials, and are told nothing of models.
    { Route::TfsOptions } Open ["OPTIONS /v1/models/{model}:predict"];
    { Route::Client } Look ["GET|HEAD /v1/models/{model}/gen_client"];
    { Route::Clients } Look ["GET|HEAD /api/v1/clients"];
    { Route::Sagemaker(Container::Ping) } Open ["* /ping"];
    { Route::Sagemaker(Container::Invocations) } Infer ["* /invocations"];
    { Route::Sagemaker(Container::TfsLook) } Look [
        "GET|HEAD /tfs/v1/models/{model}",
        "GET|HEAD /tfs/v1/models/{model}/metadata",
    ];
    { Route::Sagemaker(Container::TfsInfer) } Infer ["POST /tfs/v1/models/{model}:predict"];
    { Route::Sagemaker(Container::ListModels) } Look ["GET /models"];
    { Route::Sagemaker(Container::ShowModel) } Look ["GET /models/{model}"];
    { Route::Sagemaker(Container::LoadModel) } Admin ["POST /models"];
    { Route::Sagemaker(Container::InvokeModel) } Infer ["POST /models/{model}/invoke"];
    { Route::Sagemaker(Container::UnloadModel) } Admin ["DELETE /models/{model}"];
    { Route::Sagemaker(Container::ModelsOtherwise) } Look ["PUT /models", "PUT /models/{model}"];
    { Route::Sagemaker(Container::Invoke) } Infer ["* /endpoints/{endpoint}/invocations"];
    { Route::Sagemaker(Container::InvokeStream) } Infer [
        "* /endpoints/{endpoint}/invocations-response-stream",
    ];
    { Route::Sagemaker(Container::InvokeLater) } Infer ["* /endpoints/{endpoint}/async-invocations"];
    { Route::Sagemaker(Container::NoOperation) } Look ["* /endpoints/{endpoint}"];
    { Route::Console(Part::Status) } Look ["GET|HEAD /api/v1/status"];
    { Route::Console(Part::Model) } Look ["GET|HEAD /api/v1/models/{model}"];
    { Route::Console(Part::History) } Look ["GET|HEAD /api/v1/history"];
    { Route::Console(Part::Stream) } Look ["GET /api/v1/stream"];
    { Route::Console(Part::Audit) } Admin ["GET|HEAD /api/v1/audit"];
    { Route::Console(Part::Load) } Console ["POST /api/v1/models/{model}/load"];
    { Route::Console(Part::Unload) } Console ["POST /api/v1/models/{model}/unload"];
    { Route::Console(Part::SetLabel) } Console [
        "POST /api/v1/models/{model}/versions/{version}/labels",
    ];
    { Route::Console(Part::RemoveLabel) } Console [
        "DELETE /api/v1/models/{model}/versions/{version}/labels/{label}",
    ];
    { Route::Console(Part::Batching) } Console ["POST /api/v1/models/{model}/batching"];
    { Route::Console(Part::Drain) } Console ["POST /api/v1/drain"];
    { Route::Console(Part::OpenApi) } Look ["GET|HEAD /openapi.json"];
    { Route::Console(Part::Otherwise) } Look ["PUT /api/v1/status", "* /api/v1/nothing"];
    { Route::OtherMethod } Look [
        "PUT /",
        "POST /reference",
        "POST /healthz",
        "POST /health",
        "POST /readyz",
        "POST /metrics",
        "POST /api/v1/clients",
    ];
    { Route::Nowhere } Look ["* /nowhere"];
}

impl Route {
    /// The route of a request. TensorFlow Serving's metrics are at `metrics_path`, if anywhere.
    pub(super) fn of(method: &str, path: &str, metrics_path: Option<&str>) -> Self {
        if metrics_path == Some(path) {
            return Route::TfsMetrics;
        }
        if is_below_v1(path) {
            return match method {
                "GET" | "HEAD" if clients::model_of(path).is_some() => Route::Client,
                "GET" | "HEAD" => Route::TfsLook,
                "OPTIONS" => Route::TfsOptions,
                _ => Route::TfsInfer,
            };
        }
        if let Some(part) = sagemaker::route(method, path) {
            return Route::Sagemaker(part);
        }
        if let Some((page, is_taken)) = simple::page(method, path) {
            return if is_taken { Route::Page(page) } else { Route::OtherMethod };
        }
        let reads = matches!(method, "GET" | "HEAD");
        if path == "/api/v1/clients" {
            return if reads { Route::Clients } else { Route::OtherMethod };
        }
        if let Some(part) = console::route(method, path) {
            return Route::Console(part);
        }
        match path {
            "/" if method == "POST" => Route::Simple,
            "/" if reads => Route::Alive,
            "/healthz" if reads => Route::Live,
            "/health" if reads => Route::Health,
            "/readyz" if reads => Route::Ready,
            "/metrics" if reads => Route::Metrics,
            "/reference" if reads => Route::Reference,
            "/reference" | "/" | "/healthz" | "/health" | "/readyz" | "/metrics" => {
                Route::OtherMethod
            }
            _ if assets::is_asset(path) => Route::PageFile,
            _ => Route::Nowhere,
        }
    }
}

/// Every method and path there is, and what it asks of whoever takes it: the paths with `{model}`
/// and the like in them, `*` for every method. Those that only say that there is nothing are left
/// out.
pub fn registered() -> impl Iterator<Item = (&'static str, &'static str, Access)> {
    let real = |entry: &&Registered| !matches!(entry.route, Route::OtherMethod | Route::Nowhere);
    let entries = REGISTERED.iter().filter(real);
    entries.flat_map(|entry| {
        entry.each().map(move |(method, path)| (method, path, entry.route.access()))
    })
}

/// The methods that `path` takes, for an answer to one that it does not.
pub(super) fn allowed(path: &str) -> String {
    let all = REGISTERED.iter().filter(|entry| entry.route != Route::OtherMethod);
    let here = all.flat_map(Registered::each).filter(|(_, at)| *at == path);
    let methods: Vec<&str> = here.map(|(method, _)| method).collect();
    methods.join(", ")
}

/// Whether TensorFlow Serving would take the path for its REST API: `/v1/` in any case.
pub(super) fn is_below_v1(path: &str) -> bool {
    let bytes = path.as_bytes();
    matches!(bytes, [b'/', b'v' | b'V', b'1', b'/', ..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TFS_METRICS_PATH;

    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"];

    fn of(method: &str, path: &str) -> Route {
        Route::of(method, path, Some(TFS_METRICS_PATH))
    }

    /// A path with something in the place of `{model}` and the like.
    fn example(path: &str) -> String {
        let parts = path.split('/').map(|part| match part.split_once('}') {
            Some((_, verb)) => format!("7{verb}"),
            None => part.to_owned(),
        });
        parts.collect::<Vec<_>>().join("/")
    }

    /// Every method and path of the list, each with its route.
    fn ways() -> impl Iterator<Item = (&'static str, String, Route)> {
        REGISTERED.iter().flat_map(|entry| {
            entry.each().flat_map(move |(listed, path)| {
                let methods = METHODS.into_iter().filter(move |m| listed == "*" || listed == *m);
                methods.map(move |method| (method, example(path), entry.route))
            })
        })
    }

    #[test]
    fn every_way_in_the_list_leads_to_its_route() {
        for (method, path, route) in ways() {
            assert_eq!(of(method, &path), route, "{method} {path}");
        }
    }

    /// Whether `path` is of the form of `listed`. SageMaker's container takes what its paths begin
    /// with.
    fn is_of_form(path: &str, listed: &str) -> bool {
        if ["/ping", "/invocations"].contains(&listed) && path.starts_with(listed) {
            return true;
        }
        let (path, listed) = (path.trim_end_matches('/'), listed.trim_end_matches('/'));
        let is_same = |(part, listed): (&str, &str)| match listed.split_once('}') {
            Some((_, verb)) => part.strip_suffix(verb).is_some_and(|name| !name.is_empty()),
            None => part == listed,
        };
        path.split('/').count() == listed.split('/').count()
            && path.split('/').zip(listed.split('/')).all(is_same)
    }

    /// Whether a route only says that there is nothing, or is a front's catch-all, which asks for
    /// no less than what it has.
    fn may_be_unlisted(route: Route) -> bool {
        match route {
            Route::OtherMethod | Route::Nowhere => true,
            Route::Console(part) => part == Part::Otherwise,
            Route::TfsLook | Route::TfsInfer | Route::TfsOptions => true,
            Route::Sagemaker(part) => matches!(
                part,
                Container::TfsLook
                    | Container::TfsInfer
                    | Container::ModelsOtherwise
                    | Container::ShowModel
                    | Container::InvokeModel
                    | Container::UnloadModel
                    | Container::NoOperation
            ),
            Route::Alive | Route::Simple | Route::Live | Route::Health | Route::Ready => false,
            Route::Metrics | Route::TfsMetrics => false,
            Route::PageFile | Route::Reference | Route::Page(_) => false,
            Route::Client | Route::Clients => false,
        }
    }

    /// The words between quotes in the code that finds routes.
    fn words() -> Vec<&'static str> {
        let sources = [
            include_str!("route.rs"),
            include_str!("../../protocols/src/simple/route.rs"),
            include_str!("../../protocols/src/sagemaker/mod.rs"),
            include_str!("../../protocols/src/sagemaker/models.rs"),
            include_str!("../../protocols/src/sagemaker/service.rs"),
        ];
        let code = sources.map(|source| source.split("#[cfg(test)]").next().expect("code"));
        let quoted = code.into_iter().flat_map(|code| code.split('"').skip(1).step_by(2));
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let words = quoted.flat_map(|quoted| quoted.split(['/', ' ']));
        let mut words: Vec<_> = words.filter(|word| word.bytes().all(is_word)).collect();
        words.sort_unstable();
        words.dedup();
        words
    }

    #[test]
    fn no_way_beside_the_list_leads_anywhere() {
        let words = words();
        for known in ["healthz", "metrics", "models", "async-invocations", "ping", "endpoints"] {
            assert!(words.contains(&known), "{known} is not in {words:?}");
        }
        let mut paths: Vec<String> = words.iter().map(|word| format!("/{word}")).collect();
        let pairs = words.iter().flat_map(|a| words.iter().map(move |b| format!("/{a}/{b}")));
        let triples = ["endpoints", "models", "v1", "tfs", "x"].into_iter().flat_map(|first| {
            let words = &words;
            words.iter().map(move |last| format!("/{first}/x/{last}"))
        });
        paths.extend(pairs.chain(triples).collect::<Vec<_>>());
        for path in &paths {
            for method in METHODS {
                let route = of(method, path);
                let entry = REGISTERED.iter().find(|entry| entry.route == route).expect("listed");
                let is_listed = entry.each().any(|(listed, form)| {
                    (listed == "*" || listed == method) && is_of_form(path, form)
                });
                assert!(
                    is_listed || may_be_unlisted(route),
                    "{method} {path} leads to {route:?}; add that way to the list"
                );
            }
        }
    }

    #[test]
    fn tensorflow_servings_paths_match_in_any_case() {
        assert_eq!(of("GET", "/V1/models/m"), Route::TfsLook);
        assert_eq!(of("POST", "/V1/Models/m:predict"), Route::TfsInfer);
        assert_eq!(of("PUT", "/v1/models/m"), Route::TfsInfer);
        assert_eq!(of("GET", "/v1"), Route::Nowhere);
        assert_eq!(of("GET", "/v2/models"), Route::Nowhere);
    }

    #[test]
    fn metrics_are_where_they_are_configured() {
        assert_eq!(Route::of("GET", "/v1/metrics", Some("/v1/metrics")), Route::TfsMetrics);
        assert_eq!(Route::of("GET", TFS_METRICS_PATH, None), Route::Nowhere);
    }

    #[test]
    fn methods_that_are_allowed_come_from_the_list() {
        assert_eq!(allowed("/"), "GET, HEAD, POST");
        assert_eq!(allowed("/healthz"), "GET, HEAD");
    }
}
