//! HTTP requests: the head, the path parameters, the payload and the client's identity.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use bytes::Bytes;
use smallvec::SmallVec;

use tensorserve_auth::Identity;

use crate::url::{fields, percent_decoded};

/// An HTTP request that was routed, admitted and read.
pub struct RoutedRequest<'a> {
    /// The request line and the headers.
    pub head: RequestHead<'a>,
    /// The parameters in the path.
    pub params: PathParams<'a>,
    /// The payload.
    pub body: Body,
    /// The moment at which the head had arrived.
    pub start: Instant,
    /// The user or key that sent the request.
    pub identity: Identity,
    /// The client's address, if it is known.
    pub peer: Option<IpAddr>,
}

impl RoutedRequest<'_> {
    /// Takes the bytes of the payload; a form has none.
    #[must_use]
    pub fn take_bytes(&mut self) -> Bytes {
        match std::mem::replace(&mut self.body, Body::Bytes(Bytes::new())) {
            Body::Bytes(bytes) => bytes,
            Body::Form(_) => Bytes::new(),
        }
    }
}

/// The request line and the headers of a request.
#[derive(Clone, Copy)]
pub struct RequestHead<'a> {
    /// The method, in capitals.
    pub method: &'a str,
    /// Path and query, as they were sent.
    pub target: &'a str,
    /// The headers.
    pub headers: &'a dyn Headers,
}

/// The headers of a request.
pub trait Headers {
    /// The first value of header `name` (in lower case), if it is text.
    fn get(&self, name: &str) -> Option<&str>;
}

impl Headers for HashMap<&'static str, String> {
    fn get(&self, name: &str) -> Option<&str> {
        HashMap::get(self, name).map(String::as_str)
    }
}

/// A request without headers.
pub struct NoHeaders;

impl Headers for NoHeaders {
    fn get(&self, _name: &str) -> Option<&str> {
        None
    }
}

impl<'a> RequestHead<'a> {
    /// The path, without the query.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.target.split_once('?').map_or(self.target, |(path, _)| path)
    }

    /// The names and values in the query, decoded.
    pub fn query(&self) -> impl Iterator<Item = (String, String)> + use<'a> {
        fields(self.target.split_once('?').map_or("", |(_, query)| query))
    }

    /// The first value of `name` in the query, decoded.
    #[must_use]
    pub fn query_value(&self, name: &str) -> Option<String> {
        self.query().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The first value of header `name` (in lower case), if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)
    }
}

/// The parameters in a path, as they were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathParams<'a>(pub(crate) SmallVec<[(&'a str, &'a str); 2]>);

impl<'a> PathParams<'a> {
    /// The value of `{name}`, as it was sent; empty if the route has no such parameter.
    #[must_use]
    pub fn raw(&self, name: &str) -> &'a str {
        self.0.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| *value)
    }

    /// The value of `{name}`, percent-decoded.
    #[must_use]
    pub fn decoded(&self, name: &str) -> String {
        percent_decoded(self.raw(name))
    }

    /// All of them, as they were sent.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + '_ {
        self.0.iter().copied()
    }
}

/// A payload.
#[derive(Debug)]
pub enum Body {
    /// Its bytes, decompressed.
    Bytes(Bytes),
    /// The parts of a `multipart/form-data` payload.
    Form(MultipartForm),
}

/// A form, split into its parts.
#[derive(Debug, Default)]
pub struct MultipartForm {
    /// Its parts, in order: name and content.
    pub parts: Vec<(String, Bytes)>,
}
