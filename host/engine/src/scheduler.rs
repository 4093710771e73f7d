//! The scheduler: batches are packed by all workers and written in PFN order, with a fixed number of batches in flight.
//!
//! There is no writer thread. A worker that finishes the batch whose turn it is writes it, and those behind it that are
//! ready; the others go on packing as long as there are free batches, and sleep when there are none. Batches are taken
//! in order, so the one that everybody waits for always has a worker. With one thread all is done inline.

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

/// Packs and writes all batches.
///
/// # Errors
/// The output is full or fails, or a filter that must not fail failed. What was written before stays.
pub fn run(
    planner: Planner<'_>,
    packing: &Packing<'_>,
    writing: &mut Writing<'_>,
    workers: Vec<Worker>,
    batches: usize,
    pool: Option<&ThreadPool>,
) -> Result<()> {
    let Some(pool) = pool else {
        return workers.into_iter().next().map_or(Ok(()), |worker| inline(planner, packing, writing, worker));
    };
    let free = (0..batches).map(|_| Batch::default()).collect();
    let state = State { planner, free, ready: BTreeMap::new(), turn: 0, writing: Some(writing), failed: None };
    let shared = Shared { state: Mutex::new(state), changed: Condvar::new() };
    pool.scope(|scope| workers.into_iter().for_each(|worker| scope.spawn(|_| shared.work(worker, packing))));
    let state = shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    state.failed.map_or(Ok(()), Err)
}

fn inline(planner: Planner<'_>, packing: &Packing<'_>, writing: &mut Writing<'_>, mut worker: Worker) -> Result<()> {
    let mut batch = Batch::default();
    for plan in planner {
        worker.pack(&mut batch, plan, packing)?;
        writing.batch(&mut batch, &mut worker, packing)?;
        batch.clear();
    }
    Ok(())
}

struct State<'a, 'w> {
    planner: Planner<'a>,
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
    fn lock(&self) -> MutexGuard<'_, State<'a, 'w>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, mut worker: Worker, packing: &Packing<'_>) {
        let mut all = || {
            while let Some((plan, mut batch)) = self.next() {
                let outcome = worker.pack(&mut batch, plan, packing);
                self.done(batch, outcome, &mut worker, packing);
            }
        };
        // A bug in the host itself: the others must not wait for ever for a batch that never comes.
        if catch_unwind(AssertUnwindSafe(&mut all)).is_err() {
            self.lock().failed.get_or_insert_with(|| Error::failed("a worker of coresift panicked").hint("this is a bug: report it"));
            self.changed.notify_all();
        }
    }

    /// The next batch to pack; sleeps until one is free.
    fn next(&self) -> Option<(BatchPlan, Batch)> {
        let mut state = self.lock();
        loop {
            if state.failed.is_some() {
                return None;
            }
            if let Some(batch) = state.free.pop() {
                return state.planner.next().map(|plan| (plan, batch));
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
