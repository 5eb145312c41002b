//! Runs that nothing can end, as of a module of TorchScript: their threads are given up and replaced, up to a
//! number, and then the version refuses requests until it is loaded again.

use std::thread;

use crate::support::fake::{Answer, Model};
use crate::support::place::Place;

/// Runs of a version that may be given up.
const MOST: usize = 2;

/// A model whose runs with 9 do not end, and one whose runs may never end, but do.
fn place() -> Place {
    let hangs = Model { hangs_on: Some(9.0), ..Model::default() };
    let other = Model { hangs_on: Some(-9.0), ..Model::default() };
    let models = [("models/m/1", hangs), ("models/other/1", other)];
    let place = Place::with(&models, |settings, _| {
        settings.server.num_batch_threads = Some(1);
        settings.server.request_timeout = Some("300ms".parse().expect("a duration"));
    });
    place.server.wait_until_started();
    place
}

/// Gives up runs of the model until it refuses requests.
fn hang(place: &Place) {
    place.server.wait_until("requests are refused", |_| {
        let status = place.predict("m", "[[9]]").status;
        assert!([503, 504].contains(&status), "{status}");
        status == 503
    });
}

#[test]
fn a_version_whose_runs_cannot_be_ended_refuses_requests_and_says_so() {
    let place = place();
    assert_eq!(place.predict("m", "[[1]]").status, 200);
    hang(&place);
    assert_eq!(place.fake.runs_gate().waiting(), MOST);
    let why = "2 runs of model \"m\" version 1 have not ended";
    place.predict("m", "[[1]]").assert_refused("refused", 503, why);
    let (state, error) = place.state("m", 1).expect("a version");
    assert!(state == "AVAILABLE" && error.contains(why), "{state} {error}");
    let console = place.server.get("/api/v1/models/m").text();
    assert!(console.contains("have not ended"), "{console}");
    // Other models have their threads, the only one of these, too.
    assert_eq!(place.predict("other", "[[1]]").status, 200);
    assert_eq!(place.server.get("/healthz").status, 200);
    // What was given up ends after all.
    place.fake.runs_gate().open();
    place.server.wait_until("it serves again", |_| place.predict("m", "[[1]]").status == 200);
    assert_eq!(place.state("m", 1), Some(("AVAILABLE".to_owned(), String::new())));
}

#[test]
fn a_version_is_replaced_while_runs_of_it_do_not_end() {
    let place = place();
    hang(&place);
    let alive = place.fake.alive();
    place.write("models/m/2", &Model { answer: Answer::Constant(2.0), ..Model::default() });
    place.server.wait_until("the new version serves", |_| place.constant("m") == Some(2.0));
    let is_gone = || place.state("m", 1).is_none_or(|(state, _)| state == "END");
    place.server.wait_until("the old version is unloaded", |_| is_gone());
    // What the runs use stays until they end.
    assert_eq!(place.fake.alive(), alive + 1);
    place.fake.runs_gate().open();
    place.server.wait_until("it leaves the memory", |_| place.fake.alive() == alive);
}

#[test]
fn a_request_to_another_model_does_not_wait_until_the_deadline_of_one_that_hangs() {
    let hangs = Model { hangs_on: Some(9.0), ..Model::default() };
    let models = [("models/m/1", hangs.clone()), ("models/other/1", hangs)];
    let place = Place::with(&models, |settings, _| {
        settings.server.num_batch_threads = Some(1);
        settings.server.request_timeout = Some("20s".parse().expect("a duration"));
    });
    place.server.wait_until_started();
    thread::scope(|scope| {
        let hanging = scope.spawn(|| place.predict("m", "[[9]]").status);
        place.wait_for_runs_at_gate(1);
        assert_eq!(place.predict("other", "[[1]]").status, 200);
        assert!(!hanging.is_finished());
        place.fake.runs_gate().open();
        assert_eq!(hanging.join().expect("an answer"), 200);
    });
}

#[test]
fn a_warm_up_that_does_not_end_ends_with_its_time() {
    // The warm-up runs on ones.
    let hangs = Model { hangs_on: Some(1.0), ..Model::default() };
    let place = Place::with(&[("models/m/1", hangs)], |_, _| {});
    place.server.wait_until_started();
    place.fake.runs_gate().open();
    assert_eq!(place.predict("m", "[[2]]").status, 200);
}
