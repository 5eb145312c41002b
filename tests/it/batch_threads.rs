//! Where requests run: inline on the connection's thread, in a lane of that thread, or on a batch
//! thread. The outputs are the same in each case.

use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use proptest::collection::vec;
use proptest::test_runner::{Config, TestRunner};
use tensorserve::config::Settings;
use tensorserve::config::units::CommaSeparated;
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::Code;

use crate::support::client::Client;
use crate::support::fake::{Model, Run, tensor};
use crate::support::place::{Place, matrix, values};

fn of_run_time(run_millis: u64) -> Model {
    Model { run_millis, ..Model::default() }
}

/// The run of a single request to `model`.
fn run_of_one_request(model: &Model, configure: impl FnOnce(&mut Settings)) -> Run {
    let place = Place::of(model, configure);
    let answer = place.predict("m", "[[1, 2]]");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut runs = place.fake.runs();
    assert_eq!(runs.len(), 1);
    runs.remove(0)
}

#[test]
fn a_cheap_model_runs_on_the_connections_thread() {
    for batching in ["off", "auto"] {
        let run = run_of_one_request(&of_run_time(0), |settings| {
            settings.batching.batching = Some(batching.to_owned());
        });
        assert!(!run.is_on_batch_thread(), "{batching}: {run:?}");
        // A short run needs neither more threads nor a timeout.
        assert_eq!((run.options.threads, run.options.timeout), (1, None), "{batching}");
    }
}

#[test]
fn an_expensive_model_runs_on_a_batch_thread() {
    for batching in ["off", "auto", "on"] {
        let run = run_of_one_request(&of_run_time(5), |settings| {
            settings.batching.batching = Some(batching.to_owned());
        });
        assert!(run.is_on_batch_thread(), "{batching}: {run:?}");
        let cores = thread::available_parallelism().expect("core count").get();
        assert_eq!(run.options.threads, cores, "{batching}");
    }
}

#[test]
fn the_budget_for_connections_threads_is_kept_to() {
    let run = run_of_one_request(&of_run_time(5), |settings| {
        settings.server.inline_budget_micros = Some(60_000_000);
    });
    assert!(!run.is_on_batch_thread(), "{run:?}");
}

#[test]
fn a_model_of_unknown_cost_blocks_no_connection() {
    let run = run_of_one_request(&of_run_time(0), |settings| {
        settings.each.warm_up = Some(false);
        settings.server.request_timeout = Some("20s".parse().expect("a duration"));
    });
    assert!(run.is_on_batch_thread(), "{run:?}");
    // A run of unknown duration gets a timeout.
    assert!(run.options.timeout.is_some_and(|timeout| timeout <= Duration::from_secs(20)));
}

/// A model that gains from batching and is cheap enough for the thread of the request. For requests
/// without HTTP, this is the thread of the test.
fn in_lane(model: Model, max_batch_size: usize) -> Place {
    let model = Model { run_millis: 5, ..model };
    Place::of(&model, |settings| {
        settings.server.inline_budget_micros = Some(60_000_000);
        settings.batching.batching = Some("on".to_owned());
        settings.batching.max_batch_size = Some(max_batch_size);
    })
}

#[tokio::test]
async fn requests_that_arrive_on_one_thread_run_together_there() {
    let place = in_lane(Model::default(), 2);
    let waiting = [1.0, 2.0, 3.0].map(|number| place.enqueue(&[&[number]]));
    for (number, pending) in [1.0, 2.0, 3.0].into_iter().zip(waiting) {
        assert_eq!(values(pending.await), [number]);
    }
    assert_eq!(place.fake.rows(), [2, 1]);
    let here = thread::current().name().map(str::to_owned);
    assert!(place.fake.runs().into_iter().all(|run| Some(run.thread) == here));
}

#[tokio::test]
async fn when_the_first_goes_away_the_next_runs_the_batch() {
    let place = in_lane(Model::default(), 64);
    let [first, second, third] = [1.0, 2.0, 3.0].map(|number| place.enqueue(&[&[number]]));
    drop(first);
    assert_eq!(values(second.await), [2.0]);
    assert_eq!(values(third.await), [3.0]);
    assert_eq!(place.fake.rows(), [2]);
}

#[tokio::test]
async fn who_goes_away_is_left_out_of_the_batch() {
    let place = in_lane(Model::default(), 64);
    let [first, second, third] = [1.0, 2.0, 3.0].map(|number| place.enqueue(&[&[number]]));
    drop(second);
    assert_eq!(values(first.await), [1.0]);
    assert_eq!(values(third.await), [3.0]);
    let runs: Vec<_> = place.fake.runs().into_iter().map(|run| run.values).collect();
    assert_eq!(runs, [[1.0, 3.0]]);
    // The lane accepts new requests.
    assert_eq!(values(place.enqueue(&[&[4.0]]).await), [4.0]);
}

#[tokio::test]
async fn whose_time_is_up_is_left_out_of_the_batch() {
    let place = in_lane(Model::default(), 64);
    let soon = Instant::now() + Duration::from_millis(50);
    let first = place.enqueue_until(&[&[1.0]], soon);
    let second = place.enqueue(&[&[2.0]]);
    let third = place.enqueue_until(&[&[3.0]], soon);
    let fourth = place.enqueue(&[&[4.0]]);
    thread::sleep(Duration::from_millis(60));
    assert_eq!(first.await.expect_err("deadline has passed").code(), Code::DeadlineExceeded);
    assert_eq!(values(second.await), [2.0]);
    assert_eq!(third.await.expect_err("deadline has passed").code(), Code::DeadlineExceeded);
    assert_eq!(values(fourth.await), [4.0]);
    let runs: Vec<_> = place.fake.runs().into_iter().map(|run| run.values).collect();
    assert_eq!(runs, [[2.0, 4.0]]);
}

#[tokio::test]
async fn a_failure_there_is_the_one_requests_own() {
    let place = in_lane(Model { fails_on: Some(9.0), ..Model::default() }, 64);
    let [first, second, third] = [1.0, 9.0, 3.0].map(|number| place.enqueue(&[&[number]]));
    assert_eq!(values(first.await), [1.0]);
    assert_eq!(second.await.expect_err("run must fail").code(), Code::InvalidArgument);
    assert_eq!(values(third.await), [3.0]);
    assert_eq!(place.fake.rows(), [3, 1, 1, 1]);
}

#[tokio::test]
async fn a_panic_there_costs_its_own_batch_only() {
    let place = in_lane(Model { panics_on: Some(9.0), ..Model::default() }, 64);
    let [first, second] = [9.0, 2.0].map(|number| place.enqueue(&[&[number]]));
    assert_eq!(first.await.expect_err("run must panic").code(), Code::Internal);
    assert_eq!(second.await.expect_err("run must fail").code(), Code::Internal);
    let [third, fourth] = [3.0, 4.0].map(|number| place.enqueue(&[&[number]]));
    assert_eq!(values(third.await), [3.0]);
    assert_eq!(values(fourth.await), [4.0]);
}

#[test]
fn many_clients_get_their_own_answers() {
    // A cheap model, and a model that runs on batch threads.
    for run_millis in [0, 2] {
        let place = Place::of(&of_run_time(run_millis), |_| ());
        thread::scope(|scope| {
            for number in 0..8 {
                let address = place.server.address;
                scope.spawn(move || {
                    let mut client = Client::connect(address).expect("connects");
                    for step in 0..40 {
                        let value = f64::from(number * 1000 + step);
                        let body = format!("{{\"instances\": [[{value}, 1], [{value}, 2]]}}");
                        let path = "/v1/models/m:predict";
                        let answer = client.request("POST", path, &[], body.as_bytes());
                        let answer = answer.expect("an answer");
                        assert_eq!(answer.status, 200, "{}", answer.text());
                        let want = serde_json::json!({"predictions": [[value, 1.0], [value, 2.0]]});
                        assert_eq!(answer.json(), want);
                    }
                });
            }
        });
    }
}

/// Inputs with these numbers of rows and columns and arbitrary bits, including those of NaNs.
fn requests(sizes: &[(usize, usize)], seed: u32) -> Vec<Tensor> {
    let mut bits = seed;
    let mut next = || {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from_bits(bits)
    };
    let request = |&(rows, columns): &(usize, usize)| {
        let values: Vec<f32> = (0..rows * columns).map(|_| next()).collect();
        tensor(&[rows, columns], values).expect("a tensor")
    };
    sizes.iter().map(request).collect()
}

/// Sends concurrent random requests to an echo model and compares every bit of the outputs.
fn assert_exact_echo(place: &Place, hold_up: bool) {
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let strategy = (vec((1usize..=4, 1usize..=3), 1..12), proptest::num::u32::ANY);
    let check = |(sizes, seed): (Vec<(usize, usize)>, u32)| {
        let deadline = Instant::now() + Duration::from_secs(30);
        let inputs = requests(&sizes, seed);
        let pending = inputs.iter().map(|input| place.ask(input.clone(), deadline));
        let answers = runtime.block_on(async {
            if !hold_up {
                return join_all(pending).await;
            }
            place.fake.runs_gate().close();
            let first = place.ask(matrix(&[&[0.0]]), deadline);
            let all: Vec<_> = std::iter::once(first).chain(pending).collect();
            let mut all = join_all(all);
            assert!((&mut all).now_or_never().is_none(), "nothing was queued");
            place.wait_for_runs_at_gate(1);
            place.fake.runs_gate().open();
            all.await.split_off(1)
        });
        for (input, answer) in inputs.iter().zip(answers) {
            let answer = answer.expect("an answer");
            assert_eq!(answer[0].shape(), input.shape());
            assert_eq!(answer[0].bytes(), input.bytes());
        }
        Ok(())
    };
    TestRunner::new(config).run(&strategy, check).expect("property holds");
    // A single request has at most 8 rows, with padding.
    let joined = place.fake.rows().into_iter().filter(|&rows| rows > 8).count();
    assert!(joined > 0, "no batch was formed: the test proves nothing");
}

#[test]
fn batches_on_batch_threads_leave_every_bit_as_it_is() {
    let place = Place::of(&Model::gated(), |settings| {
        settings.server.num_batch_threads = Some(1);
        settings.server.inline_budget_micros = Some(0);
        settings.each.warm_up = Some(false);
        settings.batching.batching = Some("on".to_owned());
        settings.batching.max_batch_size = Some(16);
        settings.batching.allowed_batch_sizes = Some(CommaSeparated(vec![3, 8, 16]));
    });
    assert_exact_echo(&place, true);
}

#[test]
fn batches_on_the_threads_they_arrive_on_leave_every_bit_as_it_is() {
    let model = of_run_time(1);
    let place = Place::of(&model, |settings| {
        settings.server.inline_budget_micros = Some(60_000_000);
        settings.batching.batching = Some("auto".to_owned());
    });
    assert_exact_echo(&place, false);
}
