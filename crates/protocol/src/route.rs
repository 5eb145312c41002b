//! Routes: the requests that a protocol handles, the permissions that they require, and their
//! descriptions.

use std::borrow::Cow;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;

use tensorserve_auth::Permission;
use tensorserve_core::engine::ModelHandle;

use crate::reply::{Answer, AnswerStyle};
use crate::request::{PathParams, RequestHead, RoutedRequest};

/// The future answer of a handler.
pub type AnswerFuture<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

/// The methods of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Methods {
    /// GET, and HEAD, whose responses have no body.
    Get,
    /// GET alone.
    GetOnly,
    /// POST.
    Post,
    /// DELETE.
    Delete,
    /// Any method.
    Any,
}

impl Methods {
    /// Whether `method`, in capitals, is one of them.
    #[must_use]
    pub fn include(self, method: &str) -> bool {
        self == Methods::Any || self.names().contains(&method)
    }

    /// Their names; for any method, the names that a description lists.
    #[must_use]
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Methods::Get => &["GET", "HEAD"],
            Methods::GetOnly => &["GET"],
            Methods::Post => &["POST"],
            Methods::Delete => &["DELETE"],
            Methods::Any => &["GET", "HEAD", "POST"],
        }
    }
}

/// Handles the requests of a route. Cheap to clone.
#[derive(Clone)]
pub struct Handler(Arc<dyn HandleRequest>);

trait HandleRequest: Send + Sync {
    fn call<'a>(&'a self, request: RoutedRequest<'a>) -> AnswerFuture<'a>;
}

struct AsyncHandler<S, F>(Arc<S>, F);

impl<S, F> HandleRequest for AsyncHandler<S, F>
where
    S: Send + Sync,
    F: for<'a> Fn(&'a S, RoutedRequest<'a>) -> AnswerFuture<'a> + Send + Sync,
{
    fn call<'a>(&'a self, request: RoutedRequest<'a>) -> AnswerFuture<'a> {
        (self.1)(&self.0, request)
    }
}

struct ImmediateHandler<S, F>(Arc<S>, F);

impl<S, F> HandleRequest for ImmediateHandler<S, F>
where
    S: Send + Sync,
    F: for<'a> Fn(&'a S, RoutedRequest<'a>) -> Answer + Send + Sync,
{
    fn call<'a>(&'a self, request: RoutedRequest<'a>) -> AnswerFuture<'a> {
        Box::pin(ready((self.1)(&self.0, request)))
    }
}

impl Handler {
    /// Calls `function` with `state`.
    pub fn new<S, F>(state: &Arc<S>, function: F) -> Self
    where
        S: Send + Sync + 'static,
        F: for<'a> Fn(&'a S, RoutedRequest<'a>) -> AnswerFuture<'a> + Send + Sync + 'static,
    {
        Handler(Arc::new(AsyncHandler(Arc::clone(state), function)))
    }

    /// Calls `function`, which is not asynchronous, with `state`.
    pub fn immediate<S, F>(state: &Arc<S>, function: F) -> Self
    where
        S: Send + Sync + 'static,
        F: for<'a> Fn(&'a S, RoutedRequest<'a>) -> Answer + Send + Sync + 'static,
    {
        Handler(Arc::new(ImmediateHandler(Arc::clone(state), function)))
    }

    /// Handles a request.
    #[must_use]
    pub fn call<'a>(&'a self, request: RoutedRequest<'a>) -> AnswerFuture<'a> {
        self.0.call(request)
    }
}

/// How a payload is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// As bytes.
    Bytes,
    /// As a `multipart/form-data` form.
    Form,
    /// Not at all: the handler gets none.
    Ignored,
}

/// A route: one path pattern with its methods.
pub struct Route {
    pub(crate) methods: Methods,
    pub(crate) path: Cow<'static, str>,
    pub(crate) any_case: bool,
    pub(crate) accepts: Option<fn(&PathParams<'_>) -> bool>,
    pub(crate) permission: Permission,
    pub(crate) style: AnswerStyle,
    pub(crate) body: fn(&RequestHead<'_>) -> BodyKind,
    pub(crate) body_limit: Option<usize>,
    pub(crate) tensors_at: Option<fn(&RequestHead<'_>) -> usize>,
    pub(crate) own_host: bool,
    pub(crate) cors: CorsScope,
    pub(crate) operation: Operation,
    pub(crate) handler: Handler,
}

/// The reference servers whose setting for pages of other origins (CORS) applies to a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorsScope {
    /// The route is part of TensorFlow Serving's REST API.
    pub rest_api: bool,
    /// The route is one of Simple TensorFlow Serving's.
    pub simple: bool,
}

/// The description of a parameter in the query.
#[derive(Clone, Debug)]
pub struct QueryParameter {
    /// Its name.
    pub name: &'static str,
    /// What it selects, and its default.
    pub description: &'static str,
    /// Its JSON Schema.
    pub schema: Value,
}

/// Describes an operation for one model; `None` if that says no more than the description for all.
pub type DescribeModel = fn(&ModelHandle) -> Option<Value>;

/// The description of a route for its users.
#[derive(Clone, Debug, Default)]
pub struct Operation {
    /// The display name of its protocol.
    pub tag: &'static str,
    /// What it does, in a phrase without a full stop.
    pub summary: &'static str,
    /// Its path, with parameters in braces.
    pub path: Cow<'static, str>,
    /// Its methods.
    pub methods: &'static [&'static str],
    /// The permission that it requires.
    pub permission: Option<Permission>,
    /// The parameters in the query.
    pub query: Vec<QueryParameter>,
    /// The media type of a request's payload, and its JSON Schema.
    pub request: Option<(&'static str, Value)>,
    /// The media type of a response, and its JSON Schema.
    pub response: Option<(&'static str, Value)>,
    /// The statuses of its errors; empty if they are not listed.
    pub errors: &'static [u16],
    /// What OpenAPI has beyond that.
    pub members: Option<Value>,
    /// The description of the route with the path of one model.
    pub of_model: Option<DescribeModel>,
    /// The route is an alias for clients of a reference server and left out of descriptions.
    pub hidden: bool,
}

fn as_bytes(_: &RequestHead<'_>) -> BodyKind {
    BodyKind::Bytes
}

fn ignored(_: &RequestHead<'_>) -> BodyKind {
    BodyKind::Ignored
}

impl Route {
    /// A route with a handler. The payload of a GET request is ignored.
    pub fn new(
        methods: Methods,
        path: impl Into<Cow<'static, str>>,
        permission: Permission,
        style: AnswerStyle,
        handler: Handler,
    ) -> Self {
        let path = path.into();
        let operation = Operation {
            path: path.clone(),
            methods: methods.names(),
            permission: Some(permission),
            ..Operation::default()
        };
        Route {
            methods,
            path,
            any_case: false,
            accepts: None,
            permission,
            style,
            body: match methods {
                Methods::Get | Methods::GetOnly => ignored,
                Methods::Post | Methods::Delete | Methods::Any => as_bytes,
            },
            body_limit: None,
            tensors_at: None,
            own_host: false,
            cors: CorsScope::default(),
            operation,
            handler,
        }
    }

    /// What it does, in a phrase without a full stop.
    pub fn summary(&mut self, summary: &'static str) -> &mut Self {
        self.operation.summary = summary;
        self
    }

    /// Adds a parameter in the query, with its JSON Schema.
    pub fn query(
        &mut self,
        name: &'static str,
        description: &'static str,
        schema: Value,
    ) -> &mut Self {
        self.operation.query.push(QueryParameter { name, description, schema });
        self
    }

    /// The media type and the JSON Schema of its payload.
    pub fn request(&mut self, media_type: &'static str, schema: Value) -> &mut Self {
        self.operation.request = Some((media_type, schema));
        self
    }

    /// The media type and the JSON Schema of its response.
    pub fn response(&mut self, media_type: &'static str, schema: Value) -> &mut Self {
        self.operation.response = Some((media_type, schema));
        self
    }

    /// The statuses of its errors.
    pub fn errors(&mut self, statuses: &'static [u16]) -> &mut Self {
        self.operation.errors = statuses;
        self
    }

    /// An object whose members are added to the operation's in OpenAPI, and replace those of the same
    /// name; null leaves one out. `responses` are added to those for errors, in the same way.
    pub fn members(&mut self, members: Value) -> &mut Self {
        self.operation.members = Some(members);
        self
    }

    /// Describes the operation for each ready model apart, with its name in place of `{model}`: with the
    /// [`members`](Route::members) that `describe` returns.
    pub fn of_model(&mut self, describe: DescribeModel) -> &mut Self {
        self.operation.of_model = Some(describe);
        self
    }

    /// Leaves it out of descriptions.
    pub fn hidden(&mut self) -> &mut Self {
        self.operation.hidden = true;
        self
    }

    /// Matches the letters of whole path segments in any case.
    pub fn any_case(&mut self) -> &mut Self {
        self.any_case = true;
        self
    }

    /// Matches only where `accepts` accepts the parameters.
    pub fn accepts(&mut self, accepts: fn(&PathParams<'_>) -> bool) -> &mut Self {
        self.accepts = Some(accepts);
        self
    }

    /// How its payload is read, which may depend on the headers.
    pub fn body(&mut self, kind: fn(&RequestHead<'_>) -> BodyKind) -> &mut Self {
        self.body = kind;
        self
    }

    /// Ignores its payload.
    pub fn without_body(&mut self) -> &mut Self {
        self.body = ignored;
        self
    }

    /// The most bytes of a payload, if that is less than the server's limit.
    pub fn body_limit(&mut self, bytes: usize) -> &mut Self {
        self.body_limit = Some(bytes);
        self
    }

    /// Where the tensors of a payload begin, in bytes: what arrives in pieces is put together so that they
    /// are aligned, and can be used without a copy.
    pub fn tensors_at(&mut self, place: fn(&RequestHead<'_>) -> usize) -> &mut Self {
        self.tensors_at = Some(place);
        self
    }

    /// Without authentication, refuses requests to a host name that is not known as this server's:
    /// a page of another server could have made it resolve to this one (DNS rebinding).
    pub fn own_host(&mut self) -> &mut Self {
        self.own_host = true;
        self
    }

    /// Makes it part of TensorFlow Serving's REST API, which pages of other origins may call (CORS).
    pub fn cors(&mut self) -> &mut Self {
        self.cors.rest_api = true;
        self
    }

    /// Makes it one of Simple TensorFlow Serving's routes, which pages of other origins may call
    /// (CORS).
    pub fn simple_cors(&mut self) -> &mut Self {
        self.cors.simple = true;
        self
    }

    /// Its path, with parameters in braces.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The permission that it requires.
    #[must_use]
    pub fn permission(&self) -> Permission {
        self.permission
    }

    /// What its responses have in common with those of its group.
    #[must_use]
    pub fn style(&self) -> AnswerStyle {
        self.style
    }

    /// How the payload of a request with this head is read.
    #[must_use]
    pub fn body_kind(&self, head: &RequestHead<'_>) -> BodyKind {
        (self.body)(head)
    }

    /// The most bytes of a payload, by the route and by the server's limit.
    #[must_use]
    pub fn max_body_bytes(&self, limit: usize) -> usize {
        self.body_limit.map_or(limit, |own| own.min(limit))
    }

    /// Where the tensors of a payload begin, in bytes; 0 if there is nothing to align.
    #[must_use]
    pub fn where_tensors_begin(&self, head: &RequestHead<'_>) -> usize {
        self.tensors_at.map_or(0, |place| place(head))
    }

    /// Whether it refuses requests to unknown host names without authentication.
    #[must_use]
    pub fn has_own_host(&self) -> bool {
        self.own_host
    }

    /// Which settings let pages of other origins call it (CORS).
    #[must_use]
    pub fn allowed_cors(&self) -> CorsScope {
        self.cors
    }

    /// Handles a request.
    #[must_use]
    pub fn answer<'a>(&'a self, request: RoutedRequest<'a>) -> AnswerFuture<'a> {
        self.handler.call(request)
    }
}

/// Why no route matches a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// The path has only these methods, sorted.
    Method(Vec<&'static str>),
    /// There is no such path.
    Path,
}

/// Handles requests below a path prefix that no route matches.
pub(crate) type NoRouteHandler = Box<dyn Fn(&RequestHead<'_>, &NoRoute) -> Answer + Send + Sync>;

/// A path prefix with the handler of requests that no route matches.
pub struct RouteScope {
    pub(crate) prefix: &'static str,
    pub(crate) any_case: bool,
    pub(crate) with_query: bool,
    pub(crate) cors: CorsScope,
    pub(crate) permission: fn(&str) -> Permission,
    pub(crate) style: AnswerStyle,
    pub(crate) missing: NoRouteHandler,
}

impl RouteScope {
    /// The prefix matches in any case.
    pub fn any_case(&mut self) -> &mut Self {
        self.any_case = true;
        self
    }

    /// The query is part of what routes below the prefix match.
    pub fn with_query(&mut self) -> &mut Self {
        self.with_query = true;
        self
    }

    /// Its responses are part of TensorFlow Serving's REST API, which pages of other origins may
    /// call (CORS).
    pub fn cors(&mut self) -> &mut Self {
        self.cors.rest_api = true;
        self
    }

    /// Its responses are Simple TensorFlow Serving's, which pages of other origins may read (CORS).
    pub fn simple_cors(&mut self) -> &mut Self {
        self.cors.simple = true;
        self
    }

    /// The permission that a request requires, by its method; the default is [`Permission::Read`].
    pub fn permission(&mut self, permission: fn(&str) -> Permission) -> &mut Self {
        self.permission = permission;
        self
    }

    /// Whether `path` is the prefix, or below it. A prefix ends with a whole segment.
    pub(crate) fn covers(&self, path: &str) -> bool {
        let Some((start, rest)) = path.split_at_checked(self.prefix.len()) else {
            return false;
        };
        let is_prefix = match self.any_case {
            true => start.eq_ignore_ascii_case(self.prefix),
            false => start == self.prefix,
        };
        is_prefix && (self.prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/'))
    }

    /// Handles a request that no route matches.
    ///
    /// # Errors
    /// Those of its handler.
    pub fn answer(&self, head: &RequestHead<'_>, missing: &NoRoute) -> Answer {
        (self.missing)(head, missing)
    }

    /// The permission that a request with this method requires.
    #[must_use]
    pub fn permission_for(&self, method: &str) -> Permission {
        (self.permission)(method)
    }

    /// What its responses have in common with those of its group.
    #[must_use]
    pub fn style(&self) -> AnswerStyle {
        self.style
    }

    /// Which settings let pages of other origins read its responses (CORS).
    #[must_use]
    pub fn allowed_cors(&self) -> CorsScope {
        self.cors
    }
}
