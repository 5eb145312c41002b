//! The table of all routes: it matches requests to routes and lists the descriptions.

use std::collections::HashMap;
use std::sync::Arc;

use matchit::Router;
use smallvec::SmallVec;

use tensorserve_auth::Permission;
use tensorserve_tensor::error::{Code, Error, Result};

use crate::reply::{Answer, AnswerStyle, ErrorEncoder, Reply};
use crate::request::{PathParams, RequestHead, RoutedRequest};
use crate::route::{
    AnswerFuture, CorsScope, Handler, Methods, NoRoute, Operation, Route, RouteScope,
};

/// The routes of a server. Of two with the same methods and path, the first wins.
#[derive(Default)]
pub struct RouteTable {
    routes: Vec<Route>,
    scopes: Vec<RouteScope>,
    /// One of the scopes matches the query, too.
    with_query: bool,
    nodes: Vec<RouteNode>,
    /// Case-sensitive paths with the numbers of their nodes.
    exact: Router<usize>,
    /// Lower-case paths of routes that match in any case.
    any_case: Router<usize>,
}

/// The routes with one path, by their numbers.
#[derive(Default)]
struct RouteNode {
    routes: SmallVec<[usize; 2]>,
    /// One of them matches in any case.
    any_case: bool,
}

/// The routes with the path of a request.
struct FoundNode<'t, 'p> {
    node: &'t RouteNode,
    params: PathParams<'p>,
    /// The path matches including its case.
    exact: bool,
}

/// The result of matching a request.
pub enum RouteMatch<'t, 'p> {
    /// A route, and the parameters in the path.
    Route(&'t Route, PathParams<'p>),
    /// No route: the innermost scope, and why no route matches.
    NoRoute(&'t RouteScope, NoRoute),
    /// Neither a route nor a scope.
    Nothing,
}

impl RouteTable {
    /// A table of these routes and scopes.
    ///
    /// # Errors
    /// If two paths differ only in the name of a parameter.
    pub fn new(routes: Routes) -> Result<Self> {
        let Routes { routes, scopes } = routes;
        let mut table = RouteTable { routes, scopes, ..RouteTable::default() };
        let mut nodes: HashMap<String, usize> = HashMap::new();
        for (index, route) in table.routes.iter().enumerate() {
            let at = match nodes.get(&*route.path) {
                Some(at) => *at,
                None => {
                    let at = table.nodes.len();
                    insert(&mut table.exact, &route.path, at)?;
                    table.nodes.push(RouteNode::default());
                    nodes.insert(route.path.clone().into_owned(), at);
                    at
                }
            };
            let Some(node) = table.nodes.get_mut(at) else {
                continue;
            };
            if route.any_case && !node.any_case {
                insert(&mut table.any_case, &route.path.to_ascii_lowercase(), at)?;
                node.any_case = true;
            }
            node.routes.push(index);
        }
        // The innermost first; among equal prefixes, the first that was added.
        table.scopes.sort_by_key(|scope| std::cmp::Reverse(scope.prefix.len()));
        table.with_query = table.scopes.iter().any(|scope| scope.with_query);
        Ok(table)
    }

    /// Matches a request.
    #[must_use]
    pub fn find<'t, 'p>(&'t self, head: &RequestHead<'p>) -> RouteMatch<'t, 'p>
    where
        't: 'p,
    {
        let scope = || self.scopes.iter().find(|scope| scope.covers(head.path()));
        let with_query = self.with_query && scope().is_some_and(|scope| scope.with_query);
        let path = if with_query { head.target } else { head.path() };
        let mut methods = Vec::new();
        if let Some(FoundNode { node, params, exact }) = self.node(path) {
            for route in node.routes.iter().filter_map(|index| self.routes.get(*index)) {
                let is_other_case = !exact && !route.any_case;
                if is_other_case || route.accepts.is_some_and(|accepts| !accepts(&params)) {
                    continue;
                }
                if route.methods.include(head.method) {
                    return RouteMatch::Route(route, params);
                }
                methods.extend_from_slice(route.methods.names());
            }
        }
        methods.sort_unstable();
        methods.dedup();
        let missing = if methods.is_empty() { NoRoute::Path } else { NoRoute::Method(methods) };
        scope().map_or(RouteMatch::Nothing, |scope| RouteMatch::NoRoute(scope, missing))
    }

    /// The routes with this path.
    fn node<'t, 'p>(&'t self, path: &'p str) -> Option<FoundNode<'t, 'p>>
    where
        't: 'p,
    {
        if let Ok(found) = self.exact.at(path) {
            let params = found.params.iter().collect();
            let node = self.nodes.get(*found.value)?;
            return Some(FoundNode { node, params: PathParams(params), exact: true });
        }
        let lower = path.to_ascii_lowercase();
        let found = self.any_case.at(&lower).ok()?;
        let node = self.nodes.get(*found.value)?;
        // ASCII lower case has the same length, so offsets are valid in the path as it was sent.
        let original = |value: &str| {
            let start = value.as_ptr().addr() - lower.as_ptr().addr();
            path.get(start..start + value.len())
        };
        let pattern = self.routes.get(*node.routes.first()?).map(|route| &*route.path)?;
        let names = parameter_names(pattern);
        let params: Option<SmallVec<[(&str, &str); 2]>> = names
            .zip(found.params.iter())
            .map(|(name, (_, value))| Some((name, original(value)?)))
            .collect();
        // A verb after a parameter is case-sensitive.
        verbs_match(pattern, path).then_some(())?;
        Some(FoundNode { node, params: PathParams(params?), exact: false })
    }

    /// The descriptions of all routes, in the order in which they were added.
    pub fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.routes.iter().map(|route| &route.operation)
    }

    /// Every route with its permission, for tests that cover all routes.
    pub fn permissions(&self) -> impl Iterator<Item = (&'static [&'static str], &str, Permission)> {
        self.routes.iter().map(|route| (route.operation.methods, &*route.path, route.permission))
    }
}

fn insert(router: &mut Router<usize>, path: &str, node: usize) -> Result<()> {
    router.insert(path, node).map_err(|error| {
        let message = format!("route {path:?} conflicts with another route: {error}");
        Error::new(Code::AlreadyExists, message)
    })
}

/// The names of the parameters in braces.
fn parameter_names(pattern: &str) -> impl Iterator<Item = &str> {
    pattern.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0))
}

/// Whether the verbs after parameters, such as `:predict`, are the same in `path` as in `pattern`.
fn verbs_match(pattern: &str, path: &str) -> bool {
    let mut pairs = pattern.split('/').zip(path.split('/'));
    pairs.all(|(pattern, segment)| verb_of(pattern).is_none_or(|verb| segment.ends_with(verb)))
}

/// The text after the parameter in a segment of a pattern.
fn verb_of(segment: &str) -> Option<&str> {
    segment.split_once('}').map(|(_, verb)| verb)
}

/// Routes and scopes, as protocols add them.
#[derive(Default)]
pub struct Routes {
    routes: Vec<Route>,
    scopes: Vec<RouteScope>,
}

impl Routes {
    /// Routes that share a tag (the display name of the protocol), a state and `on_error`, which writes errors: those
    /// of the handlers, and those of the server in their place.
    pub fn group<'r, S: Send + Sync + 'static>(
        &'r mut self,
        tag: &'static str,
        state: &'r Arc<S>,
        on_error: ErrorEncoder,
    ) -> RouteGroup<'r, S> {
        RouteGroup { routes: self, tag, state, style: AnswerStyle::new(on_error) }
    }
}

/// Adds routes that share a tag, a state and the style of their answers.
pub struct RouteGroup<'r, S> {
    routes: &'r mut Routes,
    tag: &'static str,
    state: &'r Arc<S>,
    style: AnswerStyle,
}

impl<S: Send + Sync + 'static> RouteGroup<'_, S> {
    /// Changes every response of the routes and scopes that are added from now on, also those that report errors:
    /// `on_reply` may add a header, for example.
    #[must_use]
    pub fn on_reply(mut self, on_reply: fn(&mut Reply)) -> Self {
        self.style.on_reply = Some(on_reply);
        self
    }

    /// Adds a route.
    pub fn route(
        &mut self,
        methods: Methods,
        path: impl Into<std::borrow::Cow<'static, str>>,
        permission: Permission,
        function: impl for<'a> Fn(&'a S, RoutedRequest<'a>) -> AnswerFuture<'a> + Send + Sync + 'static,
    ) -> &mut Route {
        self.add(methods, path.into(), permission, Handler::new(self.state, function))
    }

    /// Adds a route whose handler is not asynchronous.
    pub fn immediate<A: Into<Answer> + 'static>(
        &mut self,
        methods: Methods,
        path: impl Into<std::borrow::Cow<'static, str>>,
        permission: Permission,
        function: impl for<'a> Fn(&'a S, RoutedRequest<'a>) -> A + Send + Sync + 'static,
    ) -> &mut Route {
        let handler =
            Handler::immediate(self.state, move |state, request| function(state, request).into());
        self.add(methods, path.into(), permission, handler)
    }

    fn add(
        &mut self,
        methods: Methods,
        path: std::borrow::Cow<'static, str>,
        permission: Permission,
        handler: Handler,
    ) -> &mut Route {
        let mut route = Route::new(methods, path, permission, self.style, handler);
        route.operation.tag = self.tag;
        let at = self.routes.routes.len();
        self.routes.routes.push(route);
        #[allow(clippy::indexing_slicing)] // It was just pushed.
        &mut self.routes.routes[at]
    }

    /// Sets the handler of requests below a path prefix that no route matches.
    pub fn scope<A: Into<Answer>>(
        &mut self,
        prefix: &'static str,
        missing: impl Fn(&S, &RequestHead<'_>, &NoRoute) -> A + Send + Sync + 'static,
    ) -> &mut RouteScope {
        let state = Arc::clone(self.state);
        let answer = move |head: &RequestHead<'_>, why: &NoRoute| missing(&state, head, why).into();
        let scope = RouteScope {
            prefix,
            any_case: false,
            with_query: false,
            cors: CorsScope::default(),
            permission: |_| Permission::Read,
            style: self.style,
            missing: Box::new(answer),
        };
        let at = self.routes.scopes.len();
        self.routes.scopes.push(scope);
        #[allow(clippy::indexing_slicing)] // It was just pushed.
        &mut self.routes.scopes[at]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use bytes::Bytes;
    use futures_util::FutureExt;
    use tensorserve_auth::Identity;

    use super::*;
    use crate::reply::Failure;
    use crate::request::{Body, NoHeaders};

    fn refuse(error: Error, status: u16) -> Reply {
        Reply::ok("text/plain", error.message().to_owned()).with_status(status)
    }

    fn no_colon(params: &PathParams<'_>) -> bool {
        params.iter().all(|(_, value)| !value.contains(':'))
    }

    fn table() -> RouteTable {
        let (mut routes, state) = (Routes::default(), Arc::new(()));
        let mut group = routes.group("test", &state, refuse);
        let get = |group: &mut RouteGroup<'_, ()>, path: &'static str| {
            let route =
                group.immediate(Methods::Get, path, Permission::Read, |(), _| Reply::ok("", ""));
            route.any_case().accepts(no_colon).summary("a summary");
        };
        get(&mut group, "/v1/models");
        get(&mut group, "/v1/models/{model}");
        get(&mut group, "/v1/models/{model}/versions/{version}");
        let predict = "/v1/models/{model}:predict";
        let route =
            group.immediate(Methods::Post, predict, Permission::Infer, |(), _| Reply::ok("", ""));
        route.any_case().accepts(no_colon);
        group.immediate(Methods::Get, "/healthz", Permission::Public, |(), _| Reply::ok("", ""));
        group
            .immediate(Methods::Any, "/ping{*rest}", Permission::Public, |(), _| Reply::ok("", ""));
        group.immediate(Methods::Any, "/ping", Permission::Public, |(), _| Reply::ok("", ""));
        group.scope("/", |(), _, _| Reply::ok("outer", ""));
        group.scope("/v1/", |(), _, _| Reply::ok("inner", "")).any_case();
        group.scope("/whole", |(), _, _| Reply::ok("inner", ""));
        RouteTable::new(routes).expect("no conflict")
    }

    /// The path of the matching route with its parameters, or the scope and the reason.
    fn find(table: &RouteTable, method: &str, target: &str) -> String {
        let head = RequestHead { method, target, headers: &NoHeaders };
        match table.find(&head) {
            RouteMatch::Route(route, params) => {
                let params: Vec<String> = params.iter().map(|(k, v)| format!("{k}={v}")).collect();
                format!("{} {}", route.path, params.join(" ")).trim().to_owned()
            }
            RouteMatch::NoRoute(scope, NoRoute::Path) => format!("{} missing", scope.prefix),
            RouteMatch::NoRoute(scope, NoRoute::Method(methods)) => {
                format!("{} allows {}", scope.prefix, methods.join(", "))
            }
            RouteMatch::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn paths_lead_to_their_routes() {
        let table = table();
        for (method, target, want) in [
            ("GET", "/v1/models", "/v1/models"),
            ("HEAD", "/v1/models/m?x=1", "/v1/models/{model} model=m"),
            ("POST", "/v1/models/m%20n:predict", "/v1/models/{model}:predict model=m%20n"),
            ("POST", "/V1/Models/mN:predict", "/v1/models/{model}:predict model=mN"),
            (
                "GET",
                "/v1/MODELS/M/Versions/7",
                "/v1/models/{model}/versions/{version} model=M version=7",
            ),
            ("DELETE", "/ping", "/ping"),
            ("GET", "/pingpong/x", "/ping{*rest} rest=pong/x"),
        ] {
            assert_eq!(find(&table, method, target), want, "{method} {target}");
        }
    }

    #[test]
    fn what_no_route_matches_is_the_innermost_scopes() {
        let table = table();
        for (method, target, want) in [
            ("POST", "/v1/models/m:Predict", "/v1/ missing"),
            ("POST", "/V1/models/m:Predict", "/v1/ missing"),
            ("POST", "/v1/models/a:b:predict", "/v1/ missing"),
            ("POST", "/v1/models/:predict", "/v1/ missing"),
            ("PUT", "/v1/models/m", "/v1/ allows GET, HEAD"),
            ("GET", "/v1/models/m:predict", "/v1/ allows POST"),
            ("GET", "/v1/models/m/", "/v1/ missing"),
            ("GET", "/V1/x", "/v1/ missing"),
            ("POST", "/healthz", "/ allows GET, HEAD"),
            ("GET", "/HEALTHZ", "/ missing"),
            ("GET", "/v1", "/ missing"),
            ("GET", "/whole", "/whole missing"),
            ("GET", "/whole/x", "/whole missing"),
            ("GET", "/wholesome", "/ missing"),
            ("GET", "", "nothing"),
        ] {
            assert_eq!(find(&table, method, target), want, "{method} {target}");
        }
    }

    #[test]
    fn routes_of_one_path_may_differ_in_how_they_match() {
        let (mut routes, state) = (Routes::default(), Arc::new(()));
        let mut group = routes.group("test", &state, refuse);
        group.immediate(Methods::Get, "/x/{a}", Permission::Admin, |(), _| Reply::ok("", ""));
        group
            .immediate(Methods::Get, "/x/{a}", Permission::Public, |(), _| Reply::ok("", ""))
            .any_case();
        let table = RouteTable::new(routes).expect("no conflict");
        for (target, want) in [("/x/1", Permission::Admin), ("/X/1", Permission::Public)] {
            let head = RequestHead { method: "GET", target, headers: &NoHeaders };
            let RouteMatch::Route(route, _) = table.find(&head) else { panic!("no route") };
            assert_eq!(route.permission(), want, "{target}");
        }
    }

    #[test]
    fn the_first_of_equal_routes_counts() {
        let (mut routes, state) = (Routes::default(), Arc::new(()));
        let mut group = routes.group("test", &state, refuse);
        group.immediate(Methods::Any, "/x", Permission::Admin, |(), _| Reply::ok("", ""));
        group.immediate(Methods::Get, "/x", Permission::Public, |(), _| Reply::ok("", ""));
        let table = RouteTable::new(routes).expect("no conflict");
        let head = RequestHead { method: "GET", target: "/x", headers: &NoHeaders };
        let RouteMatch::Route(route, _) = table.find(&head) else { panic!("no route") };
        assert_eq!(route.permission(), Permission::Admin);
    }

    #[test]
    fn names_of_parameters_must_agree() {
        let (mut routes, state) = (Routes::default(), Arc::new(()));
        let mut group = routes.group("test", &state, refuse);
        for path in ["/x/{a}/y", "/x/{b}/y"] {
            group.immediate(Methods::Get, path, Permission::Read, |(), _| Reply::ok("", ""));
        }
        let error = RouteTable::new(routes).err().expect("a conflict");
        assert!(error.message().contains("/x/{b}/y"), "{error}");
    }

    #[test]
    fn a_group_writes_the_errors_of_its_answers_and_their_headers() {
        let (mut routes, state) = (Routes::default(), Arc::new(()));
        let mut group = routes.group("test", &state, refuse).on_reply(|reply| {
            reply.headers.push(("x-group", "1".to_owned()));
        });
        group.immediate(Methods::Get, "/good", Permission::Read, |(), _| Reply::ok("", "fine"));
        group.immediate(Methods::Get, "/bad", Permission::Read, |(), _| {
            Failure::from(Error::invalid("bad")).with_header("x-own", "2")
        });
        group.scope("/", |(), _, _| Failure::new(Error::invalid("missing"), 404));
        let table = RouteTable::new(routes).expect("no conflict");
        let own = || ("x-own", "2".to_owned());
        let of_group = || ("x-group", "1".to_owned());
        for (target, status, body, headers) in [
            ("/good", 200, "fine", vec![of_group()]),
            ("/bad", 400, "bad", vec![own(), of_group()]),
            ("/missing", 404, "missing", vec![of_group()]),
        ] {
            let head = RequestHead { method: "GET", target, headers: &NoHeaders };
            let (style, answer) = match table.find(&head) {
                RouteMatch::Route(route, params) => {
                    let (body, identity) = (Body::Bytes(Bytes::new()), Identity::anonymous());
                    let start = Instant::now();
                    let request = RoutedRequest { head, params, body, start, identity, peer: None };
                    (route.style(), route.answer(request).now_or_never().expect("at once"))
                }
                RouteMatch::NoRoute(scope, missing) => {
                    (scope.style(), scope.answer(&head, &missing))
                }
                RouteMatch::Nothing => panic!("there is a scope"),
            };
            let mut reply = style.render(answer);
            style.finish(&mut reply);
            assert_eq!((reply.status, &reply.body[..]), (status, body.as_bytes()));
            assert_eq!(reply.headers, headers, "{target}");
        }
    }
}
