//! The scheduler: batches are packed by all workers and written in PFN order, with a fixed number of batches in flight.
//!
//! There is no writer thread. A worker that finishes the batch whose turn it is writes it, and those behind it that are
//! ready; the others go on packing as long as there are free batches, and sleep when there are none. Batches are taken
//! in order, so the one that everybody waits for always has a worker. With one thread all is done inline.
//!
//! The parts of a split dump are lanes: workers spread over them, and whoever has finished one helps with another.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

use coresift_sdk::{ErrorKind, PackedBatch, Writer};

use crate::batch::{BatchPlan, Planner};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::pack::{Batch, Packing, Worker};
use crate::progress::Progress;
use crate::sink::Output;

/// The writing end.
pub struct Writing<'a> {
    /// the writer plugin's object
    pub writer: &'a mut dyn Writer,
    /// its kind and name
    pub title: &'a str,
    /// where it writes
    pub output: &'a mut dyn Output,
    /// told of every batch
    pub progress: &'a dyn Progress,
    /// pages given to the writer so far
    pub pages: u64,
}

/// Pages that are not tried in smaller pieces when the output is full.
const PIECE_MIN: usize = 8;

impl Writing<'_> {
    /// Writes a batch; `worker` packs it again if the input breaks under the windows that are written from.
    fn batch(&mut self, batch: &mut Batch, worker: &mut Worker, packing: &Packing<'_>) -> Result<()> {
        let mut done = 0;
        let mut written = self.piece(batch, 0..batch.pfns().len(), &mut done, packing);
        if written.as_ref().is_err_and(|e| e.errno == libc::EFAULT) {
            worker.pack_again(batch, packing)?;
            written = self.piece(batch, done..batch.pfns().len(), &mut done, packing);
        }
        let mut counts = packing.tally.local();
        counts.bytes_read = batch.bytes_read();
        packing.tally.add(&counts);
        written.map_err(|e| Error::plugin(self.title, &e))
    }

    /// Writes some pages of a batch; when the output is full, as many of them as still fit. Only what was written counts.
    fn piece(&mut self, batch: &Batch, part: Range<usize>, done: &mut usize, packing: &Packing<'_>) -> coresift_sdk::Result<()> {
        let pages = batch.pages();
        let mut parts = vec![part];
        while let Some(part) = parts.pop() {
            let (pfns, contents) = (batch.pfns().get(part.clone()).unwrap_or_default(), pages.get(part.clone()).unwrap_or_default());
            match self.writer.write(&PackedBatch::new(pfns, contents), self.output) {
                Ok(()) => {
                    let mut counts = packing.tally.local();
                    batch.count(part.clone(), &mut counts);
                    packing.tally.add(&counts);
                    *done = part.end;
                    self.pages += part.len() as u64;
                    self.progress.advance(part.len() as u64);
                }
                Err(e) if e.kind == ErrorKind::NoSpace && part.len() > PIECE_MIN => {
                    let middle = part.start + part.len() / 2;
                    parts.extend([middle..part.end, part.start..middle]);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// The workers of a run; `None` if everything is to run inline: one thread is enough, or no more can be had.
pub fn pool(budget: Budget) -> Option<ThreadPool> {
    let pool = || ThreadPoolBuilder::new().num_threads(budget.threads).thread_name(|i| format!("worker-{i}")).build();
    if budget.threads > 1 { pool().ok() } else { None }
}

/// Makes the workers, each with a compressor of its own; one that cannot start is an error of the run, before anything
/// is written.
///
/// # Errors
/// The compressor cannot be made.
pub fn workers(packing: &Packing<'_>, pool: Option<&ThreadPool>) -> Result<Vec<Worker>> {
    (0..pool.map_or(1, ThreadPool::current_num_threads)).map(|_| Worker::start(packing)).collect()
}

/// Pages that go into one output.
pub struct Lane<'a, 'w> {
    /// cuts them into batches
    pub planner: Planner<'a>,
    /// where they go
    pub writing: &'a mut Writing<'w>,
}

/// Packs and writes all batches of all lanes, with so many batches in flight.
///
/// For each lane an error if its output is full or fails, or a filter that must not fail failed. What was written before
/// stays, and the other lanes go on.
pub fn run(
    lanes: Vec<Lane<'_, '_>>,
    packing: &Packing<'_>,
    mut workers: Vec<Worker>,
    batches: usize,
    pool: Option<&ThreadPool>,
) -> Vec<Result<()>> {
    let Some(pool) = pool else {
        let Some(worker) = workers.first_mut() else { return lanes.iter().map(|_| Ok(())).collect() };
        return lanes.into_iter().map(|lane| inline(lane, packing, worker)).collect();
    };
    let lanes: Vec<Shared<'_, '_>> = lanes.into_iter().map(Shared::new).collect();
    let (count, each) = (workers.len(), batches.div_ceil(workers.len().max(1)));
    pool.scope(|scope| {
        for (i, worker) in workers.into_iter().enumerate() {
            // Workers begin far from each other, so that no more of them than must write to the same output.
            let (later, first) = lanes.split_at(i * lanes.len() / count);
            scope.spawn(move |_| help(first.iter().chain(later), worker, each, batches, packing));
        }
    });
    let outcome = |lane: Shared<'_, '_>| lane.state.into_inner().unwrap_or_else(PoisonError::into_inner).failed.map_or(Ok(()), Err);
    lanes.into_iter().map(outcome).collect()
}

fn inline(lane: Lane<'_, '_>, packing: &Packing<'_>, worker: &mut Worker) -> Result<()> {
    let mut batch = Batch::default();
    for plan in lane.planner {
        worker.pack(&mut batch, plan, packing)?;
        lane.writing.batch(&mut batch, worker, packing)?;
        batch.clear();
    }
    Ok(())
}

/// Works on one lane after the other. Batches go along with the workers: memory is that of the batches in flight, however
/// many lanes there are.
fn help<'l, 'a: 'l, 'w: 'a>(
    lanes: impl Iterator<Item = &'l Shared<'a, 'w>>,
    mut worker: Worker,
    own: usize,
    most: usize,
    packing: &Packing<'_>,
) {
    let mut free: Vec<Batch> = (0..own).map(|_| Batch::default()).collect();
    for lane in lanes {
        // Others may have all of them, in a lane that is about to end.
        if free.is_empty() {
            free.push(Batch::default());
        }
        lane.enter(free);
        lane.work(&mut worker, packing);
        free = lane.leave();
        free.truncate(most);
    }
}

struct State<'a, 'w> {
    planner: Planner<'a>,
    /// the planner has no more batches
    all_taken: bool,
    free: Vec<Batch>,
    /// packed, waiting for their turn
    ready: BTreeMap<u64, Batch>,
    /// number of the batch to write next
    turn: u64,
    /// taken out by the worker that writes
    writing: Option<&'a mut Writing<'w>>,
    failed: Option<Error>,
}

struct Shared<'a, 'w> {
    state: Mutex<State<'a, 'w>>,
    changed: Condvar,
}

impl<'a, 'w> Shared<'a, 'w> {
    fn new(lane: Lane<'a, 'w>) -> Self {
        let Lane { planner, writing } = lane;
        let state =
            State { planner, all_taken: false, free: Vec::new(), ready: BTreeMap::new(), turn: 0, writing: Some(writing), failed: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Brings batches along.
    fn enter(&self, batches: Vec<Batch>) {
        self.lock().free.extend(batches);
        self.changed.notify_all();
    }

    /// Takes all batches that nobody uses: no more of them are needed here.
    fn leave(&self) -> Vec<Batch> {
        std::mem::take(&mut self.lock().free)
    }

    fn lock(&self) -> MutexGuard<'_, State<'a, 'w>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, worker: &mut Worker, packing: &Packing<'_>) {
        let mut all = || {
            while let Some((plan, mut batch)) = self.next() {
                let outcome = worker.pack(&mut batch, plan, packing);
                self.done(batch, outcome, worker, packing);
            }
        };
        // A bug in the host itself: the others must not wait for ever for a batch that never comes.
        if catch_unwind(AssertUnwindSafe(&mut all)).is_err() {
            self.lock().failed.get_or_insert_with(|| Error::failed("a worker of coresift panicked").hint("this is a bug: report it"));
            self.changed.notify_all();
        }
    }

    /// The next batch to pack; sleeps until one is free. None when all are taken, or the lane has failed.
    fn next(&self) -> Option<(BatchPlan, Batch)> {
        let mut state = self.lock();
        loop {
            if state.failed.is_some() || state.all_taken {
                return None;
            }
            if let Some(batch) = state.free.pop() {
                if let Some(plan) = state.planner.next() {
                    return Some((plan, batch));
                }
                state.free.push(batch);
                state.all_taken = true;
                self.changed.notify_all();
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Hands a packed batch in, and writes what is due if nobody does.
    fn done(&self, batch: Batch, outcome: Result<()>, worker: &mut Worker, packing: &Packing<'_>) {
        let mut state = self.lock();
        if let Err(e) = outcome {
            state.failed.get_or_insert(e);
            packing.cancel.store(true, Ordering::Relaxed);
            drop(state);
            return self.changed.notify_all();
        }
        state.ready.insert(batch.number(), batch);
        let Some(writing) = state.writing.take() else { return };
        while state.failed.is_none() {
            let turn = state.turn;
            let Some(mut batch) = state.ready.remove(&turn) else { break };
            drop(state);
            let written = writing.batch(&mut batch, worker, packing);
            batch.clear();
            state = self.lock();
            state.turn += 1;
            state.free.push(batch);
            if let Err(e) = written {
                state.failed.get_or_insert(e);
                packing.cancel.store(true, Ordering::Relaxed);
                self.changed.notify_all();
            }
            self.changed.notify_one();
        }
        state.writing = Some(writing);
    }
}
