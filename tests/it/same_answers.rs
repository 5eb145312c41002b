//! Concurrent requests never change a response: requests that are batched together get the same
//! responses as each one alone from a server without batching.

use std::sync::Barrier;
use std::thread;

use serde_json::{Value, json};

use crate::support::client::{Answer, post};
use crate::support::server::{TestServer, settings};
use crate::support::{alike, project};

const TOGETHER: u32 = 32;

/// The maximum number of rounds until some requests share a batch.
const MOST_ROUNDS: usize = 50;

/// Pseudo-random numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    /// A number from -1 to 1 with three decimals.
    fn fraction(&mut self) -> f64 {
        f64::from(u32::try_from(self.below(2001)).expect("small")) / 1000.0 - 1.0
    }

    fn fractions(&mut self, count: usize) -> Value {
        (0..count).map(|_| self.fraction()).collect()
    }
}

fn text(dice: &mut Dice) -> String {
    const WORDS: [&str; 6] = ["  Hello\t", "WORLD ", "ÉTÉ", "\u{1f600}", "", "x\ny "];
    (0..dice.below(6)).map(|_| WORDS[usize::try_from(dice.below(6)).expect("small")]).collect()
}

/// Request bodies of one to three rows each.
fn requests(row: impl Fn(&mut Dice) -> Value) -> Vec<String> {
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let body = |_| {
        let rows: Vec<Value> = (0..=dice.below(3)).map(|_| row(&mut dice)).collect();
        json!({ "instances": rows }).to_string()
    };
    (0..TOGETHER).map(body).collect()
}

fn serve(model: &str, batching: &str) -> TestServer {
    let mut settings = settings();
    settings.paths.push(project("models").join(model));
    settings.batching.batching = Some(batching.to_owned());
    settings.batching.batch_timeout_micros = Some(2000);
    // All requests meet in the queue of one batch thread.
    settings.server.inline_budget_micros = Some(0);
    settings.server.num_batch_threads = Some(1);
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

/// The sum of all series of a counter.
fn counter(server: &TestServer, name: &str) -> f64 {
    let text = server.get("/metrics").text();
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<f64>().expect(line)).sum()
}

fn compare(model: &str, tolerance: Option<f64>, row: impl Fn(&mut Dice) -> Value) {
    let path = format!("/v1/models/{model}:predict");
    let requests = requests(row);
    let alone: Vec<Answer> = {
        let server = serve(model, "off");
        requests.iter().map(|body| server.post(&path, body)).collect()
    };
    let server = serve(model, "on");
    for round in 0.. {
        assert!(round < MOST_ROUNDS, "{model}: requests never share a batch");
        let start = Barrier::new(requests.len());
        let together: Vec<Answer> = thread::scope(|scope| {
            let ask = |body| {
                let (start, path) = (&start, &path);
                let address = server.address;
                scope.spawn(move || {
                    start.wait();
                    post(address, path, body)
                })
            };
            let asking: Vec<_> = requests.iter().map(ask).collect();
            asking.into_iter().map(|thread| thread.join().expect("an answer")).collect()
        });
        for ((body, got), want) in requests.iter().zip(&together).zip(&alone) {
            assert_eq!((got.status, want.status), (200, 200), "{body}: {}", got.text());
            let same = match tolerance {
                None => got.body == want.body,
                Some(_) => alike(&got.json(), &want.json(), tolerance),
            };
            assert!(same, "{model}: {body}: got {}, not {}", got.text(), want.text());
        }
        let runs = counter(&server, "tensorserve_batch_rows_count");
        let asked = counter(&server, "tensorserve_requests_total");
        assert!(runs > 0.0, "{model}: no run was counted");
        if runs < asked {
            break;
        }
    }
}

#[test]
fn half_plus_two_is_the_same_to_the_last_bit() {
    compare("half_plus_two", None, |dice| json!(dice.fraction() * 1000.0));
}

#[test]
fn text_normalizer_is_the_same_to_the_last_byte() {
    compare("text_normalizer", None, |dice| json!(text(dice)));
}

// The order of the sums in a matrix multiplication depends on the number of rows.

#[test]
fn wide_mlp_is_the_same_but_for_rounding() {
    compare("wide_mlp", Some(1e-5), |dice| dice.fractions(784));
}

#[test]
fn recommender_is_the_same_but_for_rounding() {
    compare("recommender", Some(1e-5), |dice| {
        let (user, item) = (dice.below(1100), dice.below(2100));
        json!({"user_id": user, "item_id": item, "features": dice.fractions(13)})
    });
}
