//! The inverses of link functions, with the bounds that H2O puts on them.
//!
//! Source: `GenModel` and `LinkFunctionType` of h2o-genmodel 3.46.0.6.

use super::numeric::{java_max, java_min};
use tensorserve_tabular::numeric::Link;

/// H2O's bound on exponentials.
const MAX_EXPONENTIAL: f64 = 1e19;

/// The mean of a tree model or a network.
pub(super) fn bounded_mean(link: Link, x: f64) -> f64 {
    match link {
        Link::Log => bounded_exp(x),
        Link::Logit => 1.0 / (1.0 + bounded_exp(-x)),
        // The lower bound for positive numbers is not one: so it is in H2O.
        Link::Inverse => bounded_inverse(x, -1e-5),
        Link::Identity | Link::Probit | Link::CLogLog | Link::Sqrt | Link::Power(_) => link.mean(x),
    }
}

/// The mean of a generalized linear model.
pub(super) fn linear_mean(link: Link, x: f64) -> f64 {
    match link {
        Link::Inverse => bounded_inverse(x, 1e-5),
        Link::Power(0.0) => java_max(2e-16, x.exp()),
        Link::Identity
        | Link::Log
        | Link::Logit
        | Link::Probit
        | Link::CLogLog
        | Link::Sqrt
        | Link::Power(_) => link.mean(x),
    }
}

fn bounded_inverse(x: f64, least_positive: f64) -> f64 {
    match x < 0.0 {
        true => 1.0 / java_min(-1e-5, x),
        false => 1.0 / java_max(least_positive, x),
    }
}

fn bounded_exp(x: f64) -> f64 {
    java_min(MAX_EXPONENTIAL, x.exp())
}
