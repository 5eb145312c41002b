//! Large batches, spread over cores that nobody else needs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};
use tensorserve_os::lower_priority;
use tensorserve_platform::{Executable, Profiled, RunOptions};
use tensorserve_tensor::budget::{self, RequestBudget};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Signature, Tensor, concat};

/// A run that is expected to be shorter stays on its thread: waking others takes tens of microseconds.
const SHORTEST_SPREAD: Duration = Duration::from_millis(1);

/// About how long a piece of a run takes: few enough that the places are no matter, and so short that nobody
/// waits long for the last one.
const PIECE: Duration = Duration::from_micros(500);

/// Pieces have a multiple of this many rows, however long that takes: evaluators compare values of 128 rows at a time,
/// and go through all trees for each piece. With pieces of 16 rows a forest of 1,000 trees took 3.4 times the CPU
/// time of a whole run, and CatBoost's models 14 times.
const ROWS_AT_A_TIME: usize = 128;

/// Shorter runs do not tell the time of a row.
const LEAST_MEASURED: usize = 8;

/// How many times as long a row may take in a piece. All pieces go through all trees of a forest, which a whole run keeps
/// in the caches of one core, one tree after the other: with large forests, two cores gain little and pay twice.
const MOST_OVERHEAD: f64 = 1.25;

/// Of so many batches that would be spread and pay more than that, one is.
const TRIED_AGAIN: u64 = 64;

/// An executable whose rows are independent, which runs the rows of a large batch on several threads.
pub(crate) struct SpreadRows {
    inner: Arc<dyn Executable>,
    /// By signature; `None` where rows depend on each other.
    costs: Vec<Option<RowCosts>>,
}

/// The time of a row in nanoseconds; 0 if it is unknown.
#[derive(Default)]
struct RowCosts {
    /// In runs on one thread.
    whole: AtomicU64,
    /// In pieces of runs on several threads.
    piece: AtomicU64,
    /// Batches that were large enough to be spread.
    large: AtomicU64,
}

impl RowCosts {
    /// Whether pieces take little longer than whole runs, or that is to be found out.
    fn is_worth_spreading(&self) -> bool {
        let (whole, piece) = (self.whole.load(Relaxed), self.piece.load(Relaxed));
        let number = self.large.fetch_add(1, Relaxed);
        #[allow(clippy::cast_precision_loss)]
        let is_cheap = piece as f64 <= whole as f64 * MOST_OVERHEAD;
        is_cheap || number.is_multiple_of(TRIED_AGAIN)
    }
}

/// Follows the time of a row.
fn note(nanos: &AtomicU64, rows: usize, took: Duration) {
    if rows < LEAST_MEASURED {
        return;
    }
    let each = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / rows as u64;
    let before = nanos.load(Relaxed);
    // Threads that had to wait for a core count little.
    let smoothed =
        if before == 0 { each } else { (before / 4).saturating_mul(3).saturating_add(each / 4) };
    nanos.store(smoothed.max(1), Relaxed);
}

impl SpreadRows {
    pub(crate) fn new(inner: Arc<dyn Executable>, signatures: &[Signature]) -> Self {
        let costs = |it: &Signature| it.rows.is_independent().then(RowCosts::default);
        SpreadRows { inner, costs: signatures.iter().map(costs).collect() }
    }

    fn costs(&self, signature: usize) -> Option<&RowCosts> {
        self.costs.get(signature)?.as_ref()
    }

    /// The rows of a piece of such a run; `None` if it stays on its thread.
    fn piece(&self, signature: usize, rows: Option<usize>) -> Option<usize> {
        let costs = self.costs(signature)?;
        let nanos = usize::try_from(costs.whole.load(Relaxed)).ok()?;
        let expected = Duration::from_nanos(nanos.checked_mul(rows?)?.try_into().ok()?);
        if nanos == 0 || expected < SHORTEST_SPREAD || !costs.is_worth_spreading() {
            return None;
        }
        let rows = PIECE.as_nanos() as usize / nanos;
        Some((rows / ROWS_AT_A_TIME).max(1) * ROWS_AT_A_TIME)
    }
}

impl Executable for SpreadRows {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        let rows = common_rows(inputs);
        let whole = || {
            let Some(rows) = rows.filter(|rows| *rows >= LEAST_MEASURED) else {
                return self.inner.run(signature, inputs, options);
            };
            let start = Instant::now();
            let outputs = self.inner.run(signature, inputs, options)?;
            if let Some(costs) = self.costs(signature) {
                note(&costs.whole, rows, start.elapsed());
            }
            Ok(outputs)
        };
        let Some((piece, rows)) = self.piece(signature, rows).zip(rows) else {
            return whole();
        };
        let Some(helpers) = helpers().filter(|_| rows > piece) else {
            return whole();
        };
        let run = Arc::new(SpreadRun {
            executable: Arc::clone(&self.inner),
            signature,
            inputs: inputs.to_vec(),
            options,
            rows,
            piece,
            next: AtomicUsize::new(0),
            outputs: Mutex::new(vec![None; rows.div_ceil(piece)]),
            changed: Condvar::new(),
            budget: budget::current(),
        });
        for _ in 0..helpers.current_num_threads().min(rows.div_ceil(piece) - 1) {
            let run = Arc::clone(&run);
            helpers.spawn(move || run.help());
        }
        let costs = self.costs(signature);
        let noted = |rows, took| costs.iter().for_each(|costs| note(&costs.piece, rows, took));
        match run.finish(noted)? {
            Some(outputs) => Ok(outputs),
            // The message of an error may have the number of a row.
            None => whole(),
        }
    }

    fn waits(&self) -> bool {
        self.inner.waits()
    }

    fn obstacle(&self) -> Option<Error> {
        self.inner.obstacle()
    }

    fn profile(
        &self,
        signature: usize,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<Profiled> {
        self.inner.profile(signature, inputs, options)
    }
}

/// The number of rows that all inputs have.
fn common_rows(inputs: &[Tensor]) -> Option<usize> {
    let rows = inputs.first()?.rows()?;
    inputs.iter().all(|input| input.rows() == Some(rows)).then_some(rows)
}

/// The threads that help: one for each core but that of the thread that has the batch, with low priority, so that
/// they have the time that nobody else needs. `None` if there are none.
fn helpers() -> Option<&'static ThreadPool> {
    static HELPERS: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let pool = HELPERS.get_or_init(|| {
        let threads = thread::available_parallelism().map_or(1, usize::from) - 1;
        let builder = ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(|index| format!("rows {index}"))
            .start_handler(|_| lower_priority());
        let report = |error: &_| log::warn!("large batches run on one thread each: {error}");
        (threads > 0).then(|| builder.build().inspect_err(report).ok())?
    });
    pool.as_ref()
}

/// The outputs of a piece.
type PieceOutputs = Result<Vec<Tensor>, SpreadFailed>;

/// A run whose pieces several threads take.
struct SpreadRun {
    executable: Arc<dyn Executable>,
    signature: usize,
    inputs: Vec<Tensor>,
    options: RunOptions,
    rows: usize,
    piece: usize,
    /// The next piece that nobody has taken.
    next: AtomicUsize,
    /// The outputs of each piece; `None` until they are there.
    outputs: Mutex<Vec<Option<PieceOutputs>>>,
    changed: Condvar,
    budget: Option<RequestBudget>,
}

/// The batch is to be run again on one thread, for its error.
#[derive(Clone, Copy)]
struct SpreadFailed;

impl SpreadRun {
    fn run_piece(&self, piece: usize) -> PieceOutputs {
        let start = piece * self.piece;
        let rows = start..(start + self.piece).min(self.rows);
        let inputs: Vec<Tensor> =
            self.inputs.iter().map(|input| input.slice_rows(rows.clone())).collect();
        let run = || self.executable.run(self.signature, &inputs, self.options);
        let outputs = match &self.budget {
            Some(budget) => budget.enter(run),
            None => run(),
        };
        outputs.map_err(|_| SpreadFailed)
    }

    /// Takes pieces until none is left.
    fn take_pieces(&self, mut took: impl FnMut(usize, Duration)) {
        loop {
            let piece = self.next.fetch_add(1, Relaxed);
            if piece >= self.rows.div_ceil(self.piece) {
                return;
            }
            let start = Instant::now();
            let outputs = self.run_piece(piece);
            took(self.piece.min(self.rows - piece * self.piece), start.elapsed());
            let is_failed = outputs.is_err();
            self.keep(piece, outputs);
            if is_failed {
                self.next.store(self.rows, Relaxed);
            }
        }
    }

    fn keep(&self, piece: usize, outputs: PieceOutputs) {
        let mut all = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = all.get_mut(piece) {
            *place = Some(outputs);
        }
        self.changed.notify_one();
    }

    fn help(&self) {
        // A piece that panics stays open: the thread that has the batch runs it again, and reports that.
        let _ = catch_unwind(AssertUnwindSafe(|| self.take_pieces(|_, _| ())));
    }

    /// Takes pieces, then waits for those of the helpers, and takes over what they do not finish in time: others may
    /// need their cores now. Returns the outputs; `None` if a piece has failed.
    ///
    /// # Errors
    /// If there is no memory for the outputs.
    fn finish(&self, mut note: impl FnMut(usize, Duration)) -> Result<Option<Vec<Tensor>>> {
        let mut longest = PIECE;
        self.take_pieces(|rows, took| {
            longest = longest.max(took);
            note(rows, took);
        });
        let until = Instant::now() + 2 * longest;
        let mut all = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if all.iter().flatten().any(Result::is_err) {
                return Ok(None);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || all.iter().all(Option::is_some) {
                break;
            }
            let waited = self.changed.wait_timeout(all, left);
            all = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let open: Vec<usize> =
            all.iter().enumerate().filter(|(_, it)| it.is_none()).map(|(index, _)| index).collect();
        drop(all);
        for piece in open {
            self.keep(piece, self.run_piece(piece));
        }
        let mut all = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        let pieces: Option<Vec<_>> =
            std::mem::take(&mut *all).into_iter().map(|piece| piece?.ok()).collect();
        drop(all);
        pieces.map(|pieces| joined(&pieces)).transpose()
    }
}

/// The outputs of all pieces, one after the other.
fn joined(pieces: &[Vec<Tensor>]) -> Result<Vec<Tensor>> {
    let count = pieces.first().map_or(0, Vec::len);
    let mut outputs = Vec::with_capacity(count);
    for index in 0..count {
        let parts: Option<Vec<&Tensor>> = pieces.iter().map(|piece| piece.get(index)).collect();
        let parts = parts.ok_or_else(|| Error::internal("the pieces of a batch differ"))?;
        let bytes = parts.iter().map(|part| part.byte_len()).sum();
        let _pieces_and_outputs = budget::scratch(bytes)?;
        outputs.push(concat(&parts, 0)?);
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{DType, Shape, TensorSpec, aligned_vec};

    /// Doubles each row, in about 20 microseconds; fails at a value below 0, and panics at NaN on a helper.
    struct Doubles {
        threads: Mutex<Vec<thread::ThreadId>>,
    }

    impl Executable for Doubles {
        fn run(&self, _: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
            let values = inputs[0].values::<f32>().expect("floats");
            let helps = thread::current().name().is_some_and(|name| name.starts_with("rows "));
            self.threads.lock().expect("no panic").push(thread::current().id());
            let mut doubled = aligned_vec(values.len());
            for (row, value) in values.iter().enumerate() {
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(20) {}
                if *value < 0.0 {
                    return Err(Error::invalid(format!("row {row} is negative")));
                }
                assert!(!(value.is_nan() && helps), "on a helper");
                doubled.push(value * 2.0);
            }
            Ok(vec![Tensor::from_vec(Shape::vector(values.len()), doubled)?])
        }
    }

    impl Doubles {
        /// Whether it has run on another thread than this one.
        fn has_helped(&self) -> bool {
            let threads = self.threads.lock().expect("no panic");
            threads.iter().any(|id| *id != thread::current().id())
        }
    }

    fn spread() -> (Arc<Doubles>, SpreadRows) {
        let spec = |alias: &str| TensorSpec::new(alias, DType::Float, &[-1]);
        let signature = Signature::row_by_row(vec![spec("x")], vec![spec("y")]);
        let doubles = Arc::new(Doubles { threads: Mutex::default() });
        let inner = Arc::clone(&doubles) as Arc<dyn Executable>;
        let spread = SpreadRows::new(inner, &[signature]);
        spread.costs[0].as_ref().expect("independent").whole.store(20_000, Relaxed);
        (doubles, spread)
    }

    fn rows(count: usize, change: impl FnOnce(&mut [f32])) -> Tensor {
        let mut values = aligned_vec(count);
        (0..count).for_each(|row| values.push(row as f32));
        change(&mut values);
        Tensor::from_vec(Shape::vector(count), values).expect("a tensor")
    }

    fn run(spread: &SpreadRows, input: Tensor) -> Result<Vec<f32>> {
        let outputs = spread.run(0, &[input], RunOptions::default())?;
        Ok(outputs[0].values::<f32>().expect("floats").to_vec())
    }

    #[test]
    fn rows_of_a_large_batch_are_spread_and_stay_in_order() {
        let (doubles, spread) = spread();
        let has_helpers = thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        let start = Instant::now();
        loop {
            for count in [16, 999, 1000, 1001] {
                let expected: Vec<f32> = (0..count).map(|row| row as f32 * 2.0).collect();
                assert_eq!(run(&spread, rows(count, |_| ())).expect("runs"), expected);
            }
            // Helpers get the time that nobody else needs, on a busy machine none for a while.
            if doubles.has_helped() || !has_helpers {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "nobody helps");
        }
    }

    #[test]
    fn pieces_have_as_many_rows_as_evaluators_take_at_a_time() {
        let (_, spread) = spread();
        for (nanos, piece) in [(78_000, 128), (20_000, 128), (1_300, 384), (1_000, 0)] {
            spread.costs[0].as_ref().expect("independent").whole.store(nanos, Relaxed);
            let found = spread.piece(0, Some(999)).unwrap_or(0);
            assert_eq!(found, piece, "{nanos} ns for each row");
        }
    }

    #[test]
    fn what_costs_more_in_pieces_is_seldom_spread() {
        let (_, spread) = spread();
        let costs = spread.costs[0].as_ref().expect("independent");
        let spread_of =
            |count: u64| (0..count).filter(|_| spread.piece(0, Some(999)).is_some()).count() as u64;
        assert_eq!(spread_of(TRIED_AGAIN), TRIED_AGAIN, "not known yet");
        costs.piece.store(24_000, Relaxed);
        assert_eq!(spread_of(TRIED_AGAIN), TRIED_AGAIN);
        costs.piece.store(30_000, Relaxed);
        assert_eq!(spread_of(TRIED_AGAIN * 3), 3);
    }

    #[test]
    fn the_error_of_a_spread_batch_is_that_of_the_whole() {
        let (_, spread) = spread();
        let error = run(&spread, rows(1000, |values| values[777] = -1.0)).expect_err("refused");
        assert_eq!(error.message(), "row 777 is negative");
    }

    #[test]
    fn what_panics_on_a_helper_is_run_by_the_thread_of_the_batch() {
        let (_, spread) = spread();
        let outputs = run(&spread, rows(1000, |values| values[1..].fill(f32::NAN))).expect("runs");
        assert_eq!((outputs.len(), outputs[0]), (1000, 0.0));
        assert!(outputs[1..].iter().all(|value| value.is_nan()));
    }

    #[test]
    fn small_batches_and_dependent_rows_stay_on_their_thread() {
        let (doubles, mut spread) = spread();
        run(&spread, rows(32, |_| ())).expect("runs");
        spread.costs = vec![None];
        run(&spread, rows(500, |_| ())).expect("runs");
        assert!(!doubles.has_helped());
    }
}
