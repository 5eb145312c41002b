//! How requests form batches on the batch threads: sizes, timeouts, padding, limits.
//!
//! A gated model blocks the only batch thread while a test fills the queue, so that the same
//! batches form on every machine.

use std::thread;
use std::time::{Duration, Instant};

use tensorserve::config::Settings;
use tensorserve::config::units::CommaSeparated;
use tensorserve_tensor::error::Code;

use crate::support::client::Client;
use crate::support::fake::Model;
use crate::support::place::{Place, values};

/// One batch thread, no inline runs, batching on.
fn pooled(settings: &mut Settings) {
    settings.server.num_batch_threads = Some(1);
    settings.server.inline_budget_micros = Some(0);
    settings.each.warm_up = Some(false);
    settings.batching.batching = Some("on".to_owned());
}

fn gated(configure: impl FnOnce(&mut Settings)) -> Place {
    Place::of(&Model::gated(), |settings| {
        pooled(settings);
        configure(settings);
    })
}

#[tokio::test]
async fn what_waits_runs_together_up_to_max_batch_size() {
    let place = gated(|settings| settings.batching.max_batch_size = Some(4));
    let first = place.enqueue(&[&[0.0, 0.5]]);
    place.wait_for_runs_at_gate(1);
    let numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let waiting: Vec<_> = numbers.iter().map(|&n| place.enqueue(&[&[n, n + 0.5]])).collect();
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0, 0.5]);
    for (number, pending) in numbers.iter().zip(waiting) {
        assert_eq!(values(pending.await), [*number, number + 0.5]);
    }
    assert_eq!(place.fake.rows(), [1, 4, 2]);
    assert!(place.fake.runs().iter().all(|run| run.is_on_batch_thread()));
}

#[tokio::test]
async fn a_request_that_does_not_fit_lets_a_smaller_one_join() {
    let place = gated(|settings| settings.batching.max_batch_size = Some(4));
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    let three = place.enqueue(&[&[1.0], &[2.0], &[3.0]]);
    let two = place.enqueue(&[&[4.0], &[5.0]]);
    let one = place.enqueue(&[&[6.0]]);
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    assert_eq!(values(three.await), [1.0, 2.0, 3.0]);
    assert_eq!(values(two.await), [4.0, 5.0]);
    assert_eq!(values(one.await), [6.0]);
    assert_eq!(place.fake.rows(), [1, 4, 2]);
}

#[test]
fn clients_over_http_share_batches_and_get_their_own_answers() {
    let place = gated(|settings| settings.batching.max_batch_size = Some(4));
    thread::scope(|scope| {
        let predict = |number: i32| {
            let body = format!("[[{number}.0, 0.5]]");
            let answer = place.predict("m", &body);
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.json()["predictions"][0][0], f64::from(number));
        };
        scope.spawn(move || predict(0));
        place.wait_for_runs_at_gate(1);
        (1..=8).for_each(|number| drop(scope.spawn(move || predict(number))));
        place.server.wait_until("all are in flight", |s| s.engine.metrics().in_flight_count() == 9);
        // A request counts as in flight a moment before it is queued.
        thread::sleep(Duration::from_millis(50));
        place.fake.runs_gate().open();
    });
    let rows = place.fake.rows();
    assert_eq!(rows.iter().sum::<i64>(), 9);
    assert!(rows.iter().all(|&rows| rows <= 4), "{rows:?}");
    assert!(rows.len() < 9, "no batch was formed: {rows:?}");
}

#[test]
fn a_quiet_server_answers_at_once_whatever_the_time_out() {
    // Longer than the request timeout, so that a request that waited for it would fail.
    let place = Place::of(&Model::default(), |settings| {
        pooled(settings);
        settings.batching.batch_timeout_micros = Some(600_000_000);
    });
    for _ in 0..3 {
        assert_eq!(place.predict("m", "[[1, 2]]").status, 200);
    }
    assert_eq!(place.fake.rows(), [1, 1, 1]);
}

#[tokio::test]
async fn while_a_batch_runs_the_next_grows_until_it_is_full() {
    let place = gated(|settings| {
        settings.server.num_batch_threads = Some(2);
        settings.batching.max_batch_size = Some(4);
        settings.batching.batch_timeout_micros = Some(600_000_000);
    });
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    let mut waiting = Vec::new();
    for number in [1.0, 2.0, 3.0] {
        waiting.push(place.enqueue(&[&[number]]));
        // Time in which the idle batch thread could wrongly take the batch.
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(place.fake.rows(), [1]);
    waiting.push(place.enqueue(&[&[4.0]]));
    place.wait_for_runs_at_gate(2);
    assert_eq!(place.fake.rows(), [1, 4]);
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    for (number, pending) in [1.0, 2.0, 3.0, 4.0].into_iter().zip(waiting) {
        assert_eq!(values(pending.await), [number]);
    }
}

#[tokio::test]
async fn while_a_batch_runs_the_next_is_taken_when_its_time_is_over() {
    let place = gated(|settings| {
        settings.server.num_batch_threads = Some(2);
        settings.batching.batch_timeout_micros = Some(300_000);
    });
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    let (second, third) = (place.enqueue(&[&[1.0]]), place.enqueue(&[&[2.0]]));
    // The first run continues, and the next batch is not full.
    place.wait_for_runs_at_gate(2);
    assert_eq!(place.fake.rows(), [1, 2]);
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    assert_eq!(values(second.await), [1.0]);
    assert_eq!(values(third.await), [2.0]);
}

#[tokio::test]
async fn a_batch_that_waits_to_grow_is_taken_when_the_running_one_ends() {
    let place = gated(|settings| settings.batching.batch_timeout_micros = Some(600_000_000));
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    let second = place.enqueue(&[&[1.0]]);
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    assert_eq!(values(second.await), [1.0]);
}

#[tokio::test]
async fn batches_are_filled_up_to_an_allowed_size_and_cut_again() {
    let place = gated(|settings| {
        settings.batching.max_batch_size = Some(4);
        settings.batching.allowed_batch_sizes = Some(CommaSeparated(vec![2, 4]));
    });
    let first = place.enqueue(&[&[0.0, 0.5]]);
    place.wait_for_runs_at_gate(1);
    let one = place.enqueue(&[&[1.0, 1.5]]);
    let two = place.enqueue(&[&[2.0, 2.5], &[3.0, 3.5]]);
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0, 0.5]);
    assert_eq!(values(one.await), [1.0, 1.5]);
    assert_eq!(values(two.await), [2.0, 2.5, 3.0, 3.5]);
    let runs = place.fake.runs();
    assert_eq!((runs[0].rows(), runs[1].rows()), (2, 4));
    // Padded with the first row of the last request.
    assert_eq!(runs[0].values, [0.0, 0.5, 0.0, 0.5]);
    assert_eq!(runs[1].values, [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 2.0, 2.5]);
}

#[tokio::test]
async fn rows_of_different_lengths_are_padded_where_that_is_asked_for() {
    let place = gated(|settings| settings.batching.pad_variable_length_inputs = Some(true));
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    let (short, long) = (place.enqueue(&[&[1.0]]), place.enqueue(&[&[2.0, 2.5, 2.75]]));
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    // As in TensorFlow Serving, padded with the request's first value, also in the output.
    assert_eq!(values(short.await), [1.0, 1.0, 1.0]);
    assert_eq!(values(long.await), [2.0, 2.5, 2.75]);
    assert_eq!(place.fake.runs()[1].shape, [2, 3]);
}

#[tokio::test]
async fn a_batch_is_not_padded_to_many_times_its_size() {
    let place = gated(|settings| settings.batching.pad_variable_length_inputs = Some(true));
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    let row = vec![2.0; 300_000];
    let long = place.enqueue(&[&row]);
    let short: Vec<_> = (0..8).map(|_| place.enqueue(&[&[1.0]])).collect();
    place.fake.runs_gate().open();
    first.await.expect("the first");
    assert_eq!(values(long.await), row);
    for pending in short {
        assert_eq!(values(pending.await)[0], 1.0);
    }
    let shapes: Vec<_> = place.fake.runs().into_iter().map(|run| run.shape).collect();
    assert_eq!(shapes, [[1, 1], [4, 300_000], [5, 1]]);
}

#[tokio::test]
async fn without_padding_each_shape_has_its_own_batch() {
    let place = gated(|_| ());
    let first = place.enqueue(&[&[0.0, 0.5]]);
    place.wait_for_runs_at_gate(1);
    let usual = place.enqueue(&[&[1.0, 1.5]]);
    let odd = place.enqueue(&[&[2.0, 2.5, 2.75]]);
    let mate = place.enqueue(&[&[3.0, 3.5]]);
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0, 0.5]);
    assert_eq!(values(usual.await), [1.0, 1.5]);
    assert_eq!(values(odd.await), [2.0, 2.5, 2.75]);
    assert_eq!(values(mate.await), [3.0, 3.5]);
    let shapes: Vec<_> = place.fake.runs().into_iter().map(|run| run.shape).collect();
    assert_eq!(shapes, [[1, 2], [2, 2], [1, 3]]);
}

#[test]
fn a_request_larger_than_a_batch_is_refused() {
    let place = Place::of(&Model::default(), |settings| {
        pooled(settings);
        settings.batching.max_batch_size = Some(2);
    });
    let answer = place.predict("m", "[[1], [2], [3]]");
    assert_eq!(answer.status, 400);
    assert_eq!(answer.error(), "Task size 3 is larger than maximum input batch size 2");
    assert!(place.fake.runs().is_empty());
    assert_eq!(place.predict("m", "[[1], [2]]").status, 200);
}

fn splitting(settings: &mut Settings) {
    pooled(settings);
    settings.batching.max_batch_size = Some(16);
    settings.batching.max_execution_batch_size = Some(4);
    settings.batching.enable_large_batch_splitting = Some(true);
}

#[test]
fn a_large_request_runs_in_pieces_and_is_answered_in_order() {
    let place = Place::of(&Model::default(), splitting);
    let answer = place.predict("m", "[[0],[1],[2],[3],[4],[5],[6],[7],[8],[9]]");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let rows = answer.json()["predictions"].as_array().expect("a list").clone();
    let numbers: Vec<f64> = rows.iter().map(|row| row[0].as_f64().expect("a number")).collect();
    assert_eq!(numbers, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    assert_eq!(place.fake.rows(), [4, 4, 2]);
    let too_large = format!("[{}[0]]", "[0],".repeat(16));
    let answer = place.predict("m", &too_large);
    assert_eq!(answer.status, 400);
    assert_eq!(answer.error(), "Task size 17 is larger than maximum input batch size 16");
}

#[test]
fn a_large_request_fails_with_any_of_its_pieces() {
    let model = Model { fails_on: Some(9.0), ..Model::default() };
    let place = Place::of(&model, splitting);
    let answer = place.predict("m", "[[0],[1],[2],[3],[4],[9]]");
    assert_eq!(answer.status, 400);
    assert_eq!(answer.error(), "this model fails on that value");
}

#[tokio::test]
async fn a_full_queue_refuses_and_recovers() {
    let place = gated(|settings| {
        settings.batching.max_batch_size = Some(2);
        settings.batching.max_enqueued_batches = Some(1);
    });
    let running = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    let waiting = place.enqueue(&[&[1.0], &[2.0]]);
    let answer = place.predict("m", "[[3]]");
    assert_eq!(answer.status, 503);
    assert_eq!(
        answer.error(),
        "The batch scheduling queue to which this task was submitted is full; currently 1 \
         batches enqueued and max_enqueued_batches is 1"
    );
    place.fake.runs_gate().open();
    assert_eq!(values(running.await), [0.0]);
    assert_eq!(values(waiting.await), [1.0, 2.0]);
    assert_eq!(place.predict("m", "[[3]]").status, 200);
}

#[tokio::test]
async fn what_nobody_waits_for_takes_no_room_in_the_queue() {
    let place = gated(|settings| {
        settings.batching.max_batch_size = Some(1);
        settings.batching.max_enqueued_batches = Some(1);
    });
    let running = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    drop(place.enqueue(&[&[1.0]]));
    let waiting = place.enqueue(&[&[2.0]]);
    place.fake.runs_gate().open();
    assert_eq!(values(running.await), [0.0]);
    assert_eq!(values(waiting.await), [2.0]);
    assert_eq!(place.fake.rows(), [1, 1]);
}

#[tokio::test]
async fn requests_whose_time_is_up_are_answered_so_and_never_run() {
    let place = gated(|_| ());
    let first = place.enqueue(&[&[0.0]]);
    place.wait_for_runs_at_gate(1);
    let soon = Instant::now() + Duration::from_millis(50);
    let (late, later) =
        (place.enqueue_until(&[&[1.0]], soon), place.enqueue_until(&[&[2.0]], soon));
    let patient = place.enqueue(&[&[3.0]]);
    // One request is answered while the batch thread is busy, …
    let error = late.await.expect_err("deadline has passed");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    place.fake.runs_gate().open();
    assert_eq!(values(first.await), [0.0]);
    assert_eq!(values(patient.await), [3.0]);
    // … the other one by the batch thread.
    let error = later.await.expect_err("deadline has passed");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert_eq!(place.fake.rows(), [1, 1]);
}

#[test]
fn a_client_gets_a_504_when_its_time_is_up() {
    let place = gated(|settings| {
        settings.server.request_timeout = Some("200ms".parse().expect("a duration"));
    });
    let expire = |why: &str| {
        let answer = place.predict("m", "[[1]]");
        assert_eq!(answer.status, 504);
        assert!(answer.error().contains(why), "{}", answer.error());
    };
    // One request runs, the other waits in the queue.
    thread::scope(|scope| {
        scope.spawn(|| expire("deadline passed while its batch ran"));
        place.wait_for_runs_at_gate(1);
        scope.spawn(|| expire("deadline passed while it waited"));
    });
    let runs = place.fake.runs();
    assert_eq!(runs.len(), 1);
    // The runtime gets the same limit.
    let timeout = runs[0].options.timeout.expect("a timeout");
    assert!(timeout <= Duration::from_millis(200), "{timeout:?}");
    place.fake.runs_gate().open();
}

#[test]
fn a_request_whose_client_has_gone_away_never_runs() {
    let place = gated(|_| ());
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(place.predict("m", "[[0]]").status, 200));
        place.wait_for_runs_at_gate(1);
        let mut client = Client::connect(place.server.address).expect("connects");
        let body = "{\"instances\": [[1]]}";
        let head = format!("Content-Length: {}\r\n\r\n", body.len());
        let request = format!("POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\n{head}{body}");
        client.send(request.as_bytes()).expect("sent");
        place.server.wait_until("two in flight", |s| s.engine.metrics().in_flight_count() == 2);
        thread::sleep(Duration::from_millis(20));
        drop(client);
        place.server.wait_until("one in flight", |s| s.engine.metrics().in_flight_count() == 1);
        place.fake.runs_gate().open();
    });
    assert_eq!(place.predict("m", "[[2]]").status, 200);
    let values: Vec<_> = place.fake.runs().into_iter().map(|run| run.values).collect();
    assert_eq!(values, [[0.0], [2.0]]);
}
