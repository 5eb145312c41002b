//! The queue of one model and the requests of another: what waits in one queue holds up no other.

use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::gpu::RUNS_ON_A_GPU;
use super::guards::lock;
use super::lane;
use super::pool::enqueue;
use super::task::BatchTask;
use super::{BatchOutput, BatchQueue, BatchRunner, Batcher, Runaways, SignatureTraits};
use crate::config::{BatchConfig, BatchMode};
use crate::metrics::QueueMetrics;
use tensorserve_platform::RunOptions;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::priority::Priority;
use tensorserve_tensor::{DType, RowDependence, Shape, Signature, Tensor, TensorSpec, aligned_vec};

type Submitted<'q> = Pin<Box<dyn Future<Output = Result<BatchOutput>> + 'q>>;

/// Returns its inputs. Each run begins when the test lets it.
struct Gated {
    begun: Mutex<Sender<usize>>,
    gate: Mutex<Receiver<()>>,
}

impl BatchRunner for Gated {
    fn run(&self, inputs: &[Tensor], _options: RunOptions) -> Result<Vec<Tensor>> {
        let rows = inputs.first().and_then(Tensor::rows).unwrap_or(0);
        lock(&self.begun).send(rows).expect("the test listens");
        // Without a gate it begins at once.
        let _ = lock(&self.gate).recv();
        Ok(inputs.to_vec())
    }
}

struct Place {
    batcher: Batcher,
}

impl Place {
    fn with_threads(threads: usize) -> Self {
        Place { batcher: Batcher::new(threads, Duration::ZERO).expect("threads start") }
    }

    /// A queue, the rows of its runs, and what lets them begin.
    fn queue(&self, name: &str, config: BatchConfig) -> (BatchQueue, Receiver<usize>, Sender<()>) {
        self.queue_of(name, config, traits())
    }

    /// A queue for a signature with these traits.
    fn queue_of(
        &self,
        name: &str,
        config: BatchConfig,
        traits: SignatureTraits,
    ) -> (BatchQueue, Receiver<usize>, Sender<()>) {
        let (begun, runs) = channel();
        let (open, gate) = channel();
        let runner = Gated { begun: Mutex::new(begun), gate: Mutex::new(gate) };
        (self.queue_for(name, config, traits, Arc::new(runner)), runs, open)
    }

    /// A queue for a signature with these traits, whose batches go to `runner`.
    fn queue_for(
        &self,
        name: &str,
        config: BatchConfig,
        traits: SignatureTraits,
        runner: Arc<dyn BatchRunner>,
    ) -> BatchQueue {
        let runaways = Arc::new(Runaways::new(name.to_owned(), self.batcher.threads()));
        let limit = self.batcher.limit(&name.into());
        let metrics = QueueMetrics::unregistered(name);
        self.batcher.queue((&limit, &runaways), config, traits, metrics, runner)
    }
}

/// Those of a signature with one matrix as input and output.
fn traits() -> SignatureTraits {
    let spec = || vec![TensorSpec::new("x", DType::Float, &[-1, -1])];
    SignatureTraits::of(&Signature::only(spec(), spec()))
}

/// Batches of `rows` rows, in a queue that is never full.
fn batches(rows: usize) -> BatchConfig {
    BatchConfig {
        mode: BatchMode::On,
        max_batch_size: rows,
        max_execution_batch_size: rows,
        max_enqueued_batches: 1 << 30,
        ..BatchConfig::default()
    }
}

/// One row of `columns` columns.
fn row(columns: usize) -> Vec<Tensor> {
    row_of(columns, 1.0)
}

fn row_of(columns: usize, value: f32) -> Vec<Tensor> {
    let mut values = aligned_vec::<f32>(0);
    (0..columns).for_each(|_| values.push(value));
    let shape = Shape::new(&[1, i64::try_from(columns).expect("small")]).expect("a shape");
    vec![Tensor::from_vec(shape, values).expect("a tensor")]
}

/// A request that has not been submitted.
fn request(queue: &BatchQueue, columns: usize) -> Submitted<'_> {
    request_of(queue, row(columns))
}

fn request_of(queue: &BatchQueue, inputs: Vec<Tensor>) -> Submitted<'_> {
    Box::pin(queue.submit(inputs, None, Priority::Normal))
}

/// Submits a request, which then waits.
fn submit(queue: &BatchQueue, columns: usize) -> Submitted<'_> {
    submit_inputs(queue, row(columns))
}

fn submit_inputs(queue: &BatchQueue, inputs: Vec<Tensor>) -> Submitted<'_> {
    let mut submitted = request_of(queue, inputs);
    let mut context = Context::from_waker(Waker::noop());
    assert!(submitted.as_mut().poll(&mut context).is_pending(), "it waits");
    submitted
}

/// Waits for the response.
fn answer(mut submitted: Submitted<'_>) -> Result<BatchOutput> {
    let mut context = Context::from_waker(Waker::noop());
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Poll::Ready(answer) = submitted.as_mut().poll(&mut context) {
            return answer;
        }
        assert!(Instant::now() < end, "there is no response");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn next(runs: &Receiver<usize>) -> usize {
    runs.recv_timeout(Duration::from_secs(60)).expect("a run begins")
}

#[test]
fn a_thread_that_looks_at_one_queue_keeps_no_other_one_waiting() {
    let place = Place::with_threads(2);
    let (queue, runs, open) = place.queue("a", batches(1));
    let (other, other_runs, other_open) = place.queue("b", batches(1));
    drop(other_open);
    let running = submit(&queue, 1);
    assert_eq!(next(&runs), 1);
    // The thread that has run it waits for this lock, and so does the one of another request.
    let state = queue.0.requests.waiting.locked();
    drop(open);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| answer(request(&queue, 1)));
        for _ in 0..100 {
            answer(request(&other, 1)).expect("it has a thread and a lock of its own");
            assert_eq!(next(&other_runs), 1);
        }
        drop(state);
        waiting.join().expect("no panic").expect("an answer");
    });
    answer(running).expect("an answer");
}

#[test]
fn a_batch_is_chosen_from_a_bounded_number_of_requests() {
    let place = Place::with_threads(1);
    let (queue, runs, open) = place.queue("a", batches(64));
    let running = submit(&queue, 1);
    assert_eq!(next(&runs), 1);
    // One request, many that cannot join it, two that could.
    let first = submit(&queue, 2);
    let others: Vec<_> = (0..10_000).map(|_| submit(&queue, 3)).collect();
    let last = [submit(&queue, 2), submit(&queue, 2)];
    open.send(()).expect("it runs");
    assert_eq!(next(&runs), 1, "those behind so many others are not seen");
    // Clients that leave are gone at once.
    assert_eq!(queue.0.requests.waiting.waiting_tasks().1, 10_002);
    drop(others);
    assert_eq!(queue.0.requests.waiting.waiting_tasks().1, 2);
    open.send(()).expect("it runs");
    assert_eq!(next(&runs), 2);
    drop(open);
    for submitted in [running, first].into_iter().chain(last) {
        answer(submitted).expect("an answer");
    }
}

#[test]
fn a_batch_that_grows_is_taken_as_soon_as_it_is_due() {
    const TIMEOUT: Duration = Duration::from_secs(3600);
    let place = Place::with_threads(2);
    let config = BatchConfig { batch_timeout: TIMEOUT, ..batches(64) };
    let (queue, runs, open) = place.queue("a", config);
    let running = submit(&queue, 1);
    assert_eq!(next(&runs), 1);
    let first = submit(&queue, 1);
    // With this one the batch is due, whose time would have been an hour from now.
    let queued = Instant::now().checked_sub(TIMEOUT).expect("a time");
    let (inputs, priority) = (row(1), Priority::Low);
    let task = BatchTask { inputs, rows: 1, deadline: None, queued, priority, trace: None };
    let late = enqueue(&queue.0, task).expect("there is room");
    assert_eq!(next(&runs), 2);
    drop(open);
    for submitted in [running, first, Box::pin(late.answer())] {
        answer(submitted).expect("an answer");
    }
}

/// The time of requests to one model while 100,000 wait for another one, whose batch grows.
#[test]
#[ignore = "measures"]
#[allow(clippy::print_stdout)]
fn time_beside_a_long_queue() {
    let place = Place::with_threads(2);
    let config = BatchConfig { batch_timeout: Duration::from_secs(3600), ..batches(1 << 20) };
    let (queue, runs, _open) = place.queue("a", config);
    let (other, _other_runs, other_open) = place.queue("b", batches(1));
    drop(other_open);
    let _running = submit(&queue, 1);
    assert_eq!(next(&runs), 1);
    for count in [0, 1_000, 10_000, 100_000] {
        let started = Instant::now();
        let waiting: Vec<_> = (0..count).map(|_| submit(&queue, 1)).collect();
        let filled = started.elapsed();
        let mut times: Vec<_> = (0..200)
            .map(|_| {
                let mut submitted = request(&other, 1);
                let mut context = Context::from_waker(Waker::noop());
                let started = Instant::now();
                let is_pending = submitted.as_mut().poll(&mut context).is_pending();
                let time = started.elapsed();
                if is_pending {
                    answer(submitted).expect("an answer");
                }
                time
            })
            .collect();
        times.sort();
        println!(
            "{count}: filled in {filled:?}; submit {:?}, at most {:?}",
            times[100], times[199]
        );
        drop(waiting);
    }
}

/// A request in the lane of this thread, which waits.
fn submit_to_lane(queue: &BatchQueue) -> Submitted<'_> {
    let (queued, priority) = (Instant::now(), Priority::Normal);
    let task = BatchTask { inputs: row(1), rows: 1, deadline: None, queued, priority, trace: None };
    let mut submitted: Submitted<'_> = Box::pin(lane::submit(&queue.0, task));
    let mut context = Context::from_waker(Waker::noop());
    assert!(submitted.as_mut().poll(&mut context).is_pending(), "it waits");
    submitted
}

#[test]
fn a_client_that_leaves_when_its_request_is_handed_the_lead_stops_no_other() {
    let place = Place::with_threads(1);
    let (queue, _runs, open) = place.queue("a", batches(1));
    drop(open);
    let leader = submit_to_lane(&queue);
    let [next, after_it, last] = [(); 3].map(|()| submit_to_lane(&queue));
    // It runs alone, and hands the lead to the next one, whose client has left before it is polled.
    answer(leader).expect("an answer");
    drop(next);
    drop(after_it);
    answer(last).expect("an answer");
    answer(submit_to_lane(&queue)).expect("the lane has no leader");
}

#[test]
fn a_client_that_leaves_while_its_request_leads_stops_no_other() {
    let place = Place::with_threads(1);
    let (queue, _runs, open) = place.queue("a", batches(1));
    drop(open);
    let leader = submit_to_lane(&queue);
    let [gone, last] = [(); 2].map(|()| submit_to_lane(&queue));
    drop(gone);
    drop(leader);
    answer(last).expect("an answer");
    answer(submit_to_lane(&queue)).expect("the lane has no leader");
}

/// Submits a request of one row, whose run begins.
fn begin<'q>(queue: &'q BatchQueue, runs: &Receiver<usize>) -> Submitted<'q> {
    let submitted = submit(queue, 1);
    assert_eq!(next(runs), 1);
    submitted
}

#[test]
fn requests_wait_for_a_gpu_that_has_enough_runs_and_join() {
    let place = Place::with_threads(8);
    let proven = SignatureTraits { rows: RowDependence::Proven, ..traits() };
    let on_gpu = SignatureTraits { on_gpu: true, ..proven.clone() };
    let config = BatchConfig { mode: BatchMode::Auto, ..batches(4) };
    let (queue, runs, open) = place.queue_of("gpu", config.clone(), on_gpu);
    let begun: Vec<_> = (0..RUNS_ON_A_GPU).map(|_| begin(&queue, &runs)).collect();
    let values = [2.0, 3.0, 4.0].map(|value| row_of(1, value));
    let waiting: Vec<_> = values.iter().map(|it| submit_inputs(&queue, it.clone())).collect();
    assert!(runs.try_recv().is_err(), "the GPU has enough to do");
    open.send(()).expect("a run goes on");
    assert_eq!(next(&runs), 4, "those that waited run together, padded to a power of two");
    // A full batch does not wait: it cannot grow.
    let full: Vec<_> = (0..4).map(|_| submit(&queue, 1)).collect();
    assert_eq!(next(&runs), 4);
    drop(open);
    for submitted in begun.into_iter().chain(full) {
        answer(submitted).expect("an answer");
    }
    for (submitted, inputs) in waiting.into_iter().zip(values) {
        let outputs = answer(submitted).expect("an answer").outputs;
        assert_eq!(outputs[0].values::<f32>(), inputs[0].values::<f32>(), "its own row");
    }
    // Elsewhere runs do not take turns, and nobody waits for one that may never end.
    let endless = SignatureTraits { on_gpu: true, unbounded: true, ..proven.clone() };
    for (name, traits) in [("cpu", proven), ("endless", endless)] {
        let (queue, runs, open) = place.queue_of(name, config.clone(), traits);
        let begun: Vec<_> = (0..8).map(|_| begin(&queue, &runs)).collect();
        drop(open);
        for submitted in begun {
            answer(submitted).expect("an answer");
        }
    }
}

/// Keeps the thread and the timeout of its run.
struct Noted(Mutex<Option<(ThreadId, Option<Duration>)>>);

impl BatchRunner for Noted {
    fn run(&self, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        *lock(&self.0) = Some((thread::current().id(), options.timeout));
        Ok(inputs.to_vec())
    }
}

#[test]
fn what_nobody_waits_for_runs_with_the_priority_of_its_thread_if_it_surely_ends() {
    let place = Place::with_threads(1);
    let here = thread::current().id();
    let run = |traits: SignatureTraits, deadline: Duration| {
        let noted = Arc::new(Noted(Mutex::new(None)));
        let runner = Arc::clone(&noted) as Arc<dyn BatchRunner>;
        let queue = place.queue_for("a", batches(4), traits, runner);
        queue.run_aside(&row(1), Instant::now() + deadline).expect("outputs");
        lock(&noted.0).take().expect("it ran")
    };
    let minute = Duration::from_secs(60);
    // With a timeout, libtensorflow runs a graph on a thread of its own, with its own priority.
    assert_eq!(run(traits(), minute), (here, None));
    assert!(run(traits(), Duration::ZERO).1.is_some(), "its time is over");
    let endless = run(SignatureTraits { unbounded: true, ..traits() }, minute);
    assert!(endless.1.is_some(), "it may never end");
    assert_ne!(endless.0, here);
}

#[test]
fn the_few_that_would_be_left_join_the_batch() {
    let place = Place::with_threads(1);
    let rows_now = |allowed: &[usize], waiting| {
        let config = BatchConfig { allowed_batch_sizes: allowed.to_vec(), ..batches(64) };
        let (queue, _, _) = place.queue("model", config);
        // A row costs 100, 50, 45 and 45 µs: eight rows do not pay, so that the limit is seven.
        for (rows, micros) in [(1, 100), (2, 100), (4, 180), (8, 360)].repeat(4) {
            queue.0.cost.record(rows, Duration::from_micros(micros));
        }
        queue.0.rows_now(waiting, false)
    };
    assert_eq!(rows_now(&[], 5), 7);
    assert_eq!(rows_now(&[], 8), 8);
    assert_eq!(rows_now(&[], 9), 7, "more than a quarter above the limit");
    assert_eq!(rows_now(&[4, 8, 64], 8), 8);
    assert_eq!(rows_now(&[4, 64], 8), 7, "it would be padded to 64 rows");
}
