//! Stores that refuse, stall, cut off, lie, or change what is being read.

use std::time::Duration;

use crate::stores::{place_of, put};
use crate::support::fake::Model;
use crate::support::place::Place;
use crate::support::store::{Fault, StoreServer};

/// A server whose one model in the store is served despite a fault, and the store.
fn survives(
    fault: impl FnMut(&crate::support::store::StoreRequest) -> Fault + Send + 'static,
) -> (Place, StoreServer) {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    store.put("models/m/1/weights", (0..20_000_000_u32).map(|n| n as u8).collect::<Vec<u8>>());
    store.fault(fault);
    let place = place_of(&store, |_, _| ());
    place.server.wait_until("the model serves", |_| place.constant("m") == Some(1.0));
    (place, store)
}

/// The content of `weights` in the cache.
fn weights(place: &Place) -> Vec<u8> {
    let units = std::fs::read_dir(place.path("cache/units")).expect("units").flatten();
    let whole: Vec<_> =
        units.filter(|unit| !unit.file_name().to_string_lossy().contains('.')).collect();
    assert_eq!(whole.len(), 1);
    std::fs::read(whole[0].path().join("files/1/weights")).expect("a file")
}

#[test]
fn errors_of_the_store_are_repeated() {
    let (place, _store) = survives(|request| match request.index % 3 {
        0 => Fault::Status(500, "InternalError"),
        1 => Fault::Status(429, "TooManyRequests"),
        _ => Fault::None,
    });
    assert!(weights(&place).iter().enumerate().all(|(at, byte)| *byte == at as u8));
}

#[test]
fn a_content_that_is_cut_off_continues_where_it_ended() {
    let (place, _store) = survives(|request| match request.key.as_deref() {
        Some(key) if key.ends_with("weights") => Fault::Truncate(3_000_000),
        _ => Fault::None,
    });
    assert!(weights(&place).iter().enumerate().all(|(at, byte)| *byte == at as u8));
}

#[test]
fn a_store_that_stalls_delays_the_version_and_nothing_else() {
    let mut stalls = 2;
    let (place, _store) = survives(move |request| {
        if request.key.is_some() && stalls > 0 {
            stalls -= 1;
            return Fault::Stall(Duration::from_secs(10));
        }
        Fault::None
    });
    assert!(weights(&place).iter().enumerate().all(|(at, byte)| *byte == at as u8));
}

#[test]
fn an_object_that_changes_while_it_is_read_is_read_again() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    store.put("models/m/1/weights", vec![1; 40 << 20]);
    let (writer, mut has_changed) = (store.clone(), false);
    store.fault(move |request| {
        let is_weights = request.key.as_deref().is_some_and(|key| key.ends_with("weights"));
        if is_weights && !has_changed {
            has_changed = true;
            writer.put("models/m/1/weights", vec![2; 40 << 20]);
        }
        Fault::None
    });
    let place = place_of(&store, |_, _| ());
    place.server.wait_until("the model serves", |_| place.constant("m") == Some(1.0));
    assert!(weights(&place).iter().all(|byte| *byte == 2), "a mixture of two contents");
}

#[test]
fn a_content_with_a_wrong_checksum_is_not_loaded() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    store.set_etag("models/m/1/fake.json", "00000000000000000000000000000000");
    let place = place_of(&store, |_, _| ());
    place.server.wait_until("it is refused", |_| {
        let state = place.state("m", 1);
        state.is_some_and(|(_, error)| error.contains("does not have the checksum"))
    });
    assert_eq!(place.constant("m"), None);
    // The store gets a whole object: it serves.
    put(&store, "models/m/1", &Model::constant(1.0));
    place.server.wait_until("the model serves", |_| place.constant("m") == Some(1.0));
}

#[test]
fn refusals_say_what_the_store_said() {
    for (status, code, text) in [
        (403, "AccessDenied", "the store refuses access"),
        (400, "ExpiredToken", "the credentials have expired"),
        (404, "NoSuchBucket", "there is no such object or bucket"),
        (429, "SlowDown", "allows no more requests"),
    ] {
        let store = StoreServer::start();
        put(&store, "models/m/1", &Model::constant(1.0));
        store.fault(move |_| Fault::Status(status, code));
        let place = place_of(&store, |_, _| ());
        place.server.wait_until(text, |s| {
            let reasons = s.get("/readyz").text();
            reasons.contains(text) && reasons.contains(code)
        });
        // A store that responds again needs no restart.
        store.fault(|_| Fault::None);
        place.server.wait_until("the model serves", |_| place.constant("m") == Some(1.0));
    }
}

#[test]
fn a_bucket_in_another_region_is_found_or_named() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    let mut is_first = true;
    store.fault(move |_| match std::mem::take(&mut is_first) {
        true => Fault::Region(301, "eu-central-1"),
        false => Fault::None,
    });
    let place = place_of(&store, |_, _| ());
    place.server.wait_until("the model serves", |_| place.constant("m") == Some(1.0));
    let store = StoreServer::start();
    store.fault(|_| Fault::Region(301, "eu-central-1"));
    let place = place_of(&store, |settings, _| {
        settings.server.store_region = Some("us-west-2".to_owned());
    });
    place.server.wait_until("the region is named", |s| {
        s.get("/readyz").text().contains("the bucket is in the region eu-central-1, and us-west-2")
    });
}

#[test]
fn names_that_lead_out_of_the_cache_are_refused() {
    let store = StoreServer::start();
    put(&store, "models/m/1", &Model::constant(1.0));
    let place = place_of(&store, |_, _| ());
    place.server.wait_until_started();
    store.put("models/m/2/../../../../evil", "x");
    place.server.wait_until("it is refused", |s| {
        let status = s.get("/api/v1/status").json();
        let error = status["stores"][0]["error"].as_str().unwrap_or_default().to_owned();
        error.contains("has a name that cannot be a path")
    });
    assert_eq!(place.constant("m"), Some(1.0));
    assert!(!place.path("evil").exists() && !place.path("cache/evil").exists());
}
