//! Collectives against plain loops over all workers' values, at 1, 2 and 4 workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gnnflow_data::rng::{Key, Purpose};

use super::*;
use crate::runtime::job::{NoRuntime, Runtime};

/// Partitions: three of the workers host two of them.
pub(crate) const PARTS: usize = 7;
/// Lengths in words: none, one, those around one round, and more than two rounds.
const LENGTHS: [usize; 6] = [0, 1, ROUND_WORDS - 1, ROUND_WORDS, ROUND_WORDS + 1, 2 * ROUND_WORDS + 17];

/// Runs `work` at `workers` workers, and returns their results by rank.
pub(crate) fn at<R: Send + 'static>(
    workers: usize,
    work: impl Fn(&mut Collectives, &mut Driver<'_>) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let run = move |worker: &mut Worker| {
        let placement = Placement::new(PARTS, worker.peers());
        let mut collectives = Collectives::new(placement, worker.index(), Rc::default());
        work(&mut collectives, &mut Driver { worker, runtime: &NoRuntime })
    };
    timely::execute(timely::Config::process(workers), run).unwrap().join().into_iter().map(Result::unwrap).collect()
}

/// The value of a worker or partition: numbers that do not keep their bits in JSON.
fn values(owner: usize, len: usize) -> Vec<f64> {
    let key = Key::new(owner as u64, Purpose::Init);
    (0..len as u64).map(|i| key.normal(i)).collect()
}

fn rows(part: usize, len: usize) -> PartitionRows {
    (part % 3 != 2).then(|| Arc::new(values(part, len).into_iter().map(|x| x as f32).collect()))
}

#[test]
fn all_gather_returns_the_values_of_all_ranks() {
    for workers in [1, 2, 4] {
        for len in LENGTHS {
            // Ranks have values of different lengths.
            let own = move |rank: usize| values(rank, len + rank);
            let expected: Vec<_> = (0..workers).map(own).collect();
            for all in at(workers, move |all, driver| all.all_gather(driver, &own(driver.worker.index())).unwrap()) {
                assert_eq!(all, expected, "{len} words, {workers} workers");
            }
        }
        let texts = at(workers, |all, driver| all.all_gather(driver, &driver.worker.index().to_string()).unwrap());
        assert!(texts.iter().all(|texts| *texts == (0..workers).map(|rank| rank.to_string()).collect::<Vec<_>>()));
    }
}

#[test]
fn all_gather_parts_returns_the_values_of_all_partitions() {
    for workers in [1, 2, 4] {
        for len in LENGTHS {
            let own = move |part: usize| values(part, if part == 3 { 0 } else { len });
            let expected: Vec<_> = (0..PARTS).map(own).collect();
            for all in at(workers, move |all, driver| all.all_gather_parts(driver, own).unwrap()) {
                assert_eq!(all, expected, "{len} words, {workers} workers");
            }
        }
    }
}

#[test]
fn all_reduce_counts_returns_element_wise_sums() {
    let own = |rank: usize, len: usize| (0..len).map(|i| (i * (rank + 1)) as u64).collect::<Vec<_>>();
    for workers in [1, 2, 4] {
        for len in LENGTHS {
            let expected: Vec<u64> = (0..len).map(|i| (0..workers).map(|rank| own(rank, len)[i]).sum()).collect();
            let sums = at(workers, move |all, driver| {
                let own = own(driver.worker.index(), len);
                all.all_reduce_counts(driver, &own).unwrap()
            });
            assert!(sums.iter().all(|sums| *sums == expected), "{len} words, {workers} workers");
        }
    }
}

#[test]
fn all_reduce_rows_adds_in_partition_order() {
    for len in [0, 1, 70_000] {
        let mut expected: Option<Vec<f32>> = None;
        for rows in (0..PARTS).filter_map(|part| rows(part, len)) {
            match &mut expected {
                None => expected = Some(rows.to_vec()),
                Some(sum) => sum.iter_mut().zip(rows.iter()).for_each(|(sum, x)| *sum += x),
            }
        }
        let bits = |rows: &[f32]| rows.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let expected = bits(&expected.unwrap());
        for workers in [1, 2, 4] {
            for (first, again, none, lists) in at(workers, move |all, driver| {
                let first = all.all_reduce_rows(driver, len, |part| rows(part, len)).unwrap();
                // More words than fit into one round.
                let list = |part: usize| values(part, 20_000 * (part % 2));
                let with = all.all_reduce_rows_with(driver, len, |part| (rows(part, len), list(part))).unwrap();
                let none = all.all_reduce_rows(driver, len, |_| None).unwrap();
                (first, with.0, none, with.1)
            }) {
                assert!(bits(&first) == expected && bits(&again) == expected, "{len} numbers, {workers} workers");
                assert_eq!(none, vec![0.0; len]);
                assert!((0..PARTS).all(|part| lists[part] == values(part, 20_000 * (part % 2))));
            }
        }
    }
}

#[test]
fn broadcast_returns_the_value_of_the_first_worker() {
    for workers in [1, 2, 4] {
        for len in LENGTHS {
            for received in at(workers, move |all, driver| {
                let rank = driver.worker.index();
                all.broadcast(driver, (rank == 0).then(|| Some(Json("x".repeat(8 * len))))).unwrap()
            }) {
                assert_eq!(received.unwrap().0.len(), 8 * len, "{workers} workers");
            }
        }
        let none = at(workers, |all, driver| all.broadcast(driver, Some(None::<u64>)).unwrap());
        assert_eq!(none, vec![None; workers]);
    }
    assert!(at(1, |all, driver| all.broadcast::<u64>(driver, None).is_err())[0]);
}

#[test]
fn barrier_returns_after_all_workers_have_called_it() {
    for workers in [1, 2, 4] {
        let calls = Arc::new(AtomicUsize::new(0));
        let counts = at(workers, move |all, driver| {
            std::thread::sleep(Duration::from_millis(20 * driver.worker.index() as u64));
            calls.fetch_add(1, Ordering::SeqCst);
            all.barrier(driver).unwrap();
            calls.load(Ordering::SeqCst)
        });
        assert_eq!(counts, vec![workers; workers]);
    }
}

#[test]
fn all_to_all_delivers_all_values() {
    // With messages of 32 Ki pairs: no pair, one pair, one message, and more messages to one worker than fit in flight.
    let message = MESSAGE_BYTES / 8;
    for workers in [1, 2, 4] {
        for len in [0, 1, message, (WINDOW as usize + 3) * message + 5] {
            // Worker 0 receives most values.
            let to = move |rank: usize, i: usize| if i.is_multiple_of(10) { (rank + i / 10) % workers } else { 0 };
            let found = at(workers, move |all, driver| {
                let rank = driver.worker.index();
                let mut lists = vec![Vec::new(); workers];
                all.all_to_all(
                    driver,
                    |sender| (0..len).try_for_each(|i| sender.send(to(rank, i), [rank as u32, i as u32])),
                    |from, pairs: &[[u32; 2]]| {
                        lists[from].extend_from_slice(pairs);
                        Ok(())
                    },
                )
                .unwrap();
                lists.iter_mut().for_each(|list| list.sort_unstable());
                lists
            });
            for (rank, lists) in found.into_iter().enumerate() {
                for (from, list) in lists.into_iter().enumerate() {
                    let sent = (0..len).filter(|&i| to(from, i) == rank).map(|i| [from as u32, i as u32]);
                    assert!(sent.eq(list), "{len} pairs, {from} to {rank} of {workers}");
                }
            }
        }
    }
}

/// Ends waiting workers after another one has failed, as the program around a worker does.
struct FailureWatch<'a> {
    failed: &'a AtomicBool,
}

impl Runtime for FailureWatch<'_> {
    fn turned(&self) {
        assert!(!self.failed.load(Ordering::SeqCst), "another worker has failed");
    }
}

#[test]
fn an_error_of_one_worker_ends_all_workers() {
    for workers in [2, 4] {
        let (failed, begin) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let ends = timely::execute(timely::Config::process(workers), move |worker| {
            let runtime = FailureWatch { failed: &failed };
            let rank = worker.index();
            let placement = Placement::new(PARTS, workers);
            let mut all = Collectives::new(placement, rank, Rc::default());
            let driver = &mut Driver { worker, runtime: &runtime };
            all.barrier(driver).unwrap();
            let send = |sender: &mut Sender<'_, '_, u32>| (0..3_000_000).try_for_each(|i| sender.send(1, i));
            let end = all.all_to_all(driver, send, |_, _| match rank {
                1 => Err(Error::Machine("the disk is full".into())),
                _ => Ok(()),
            });
            failed.store(true, Ordering::SeqCst);
            // The dataflows cannot complete. In the program, the process ends.
            worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
            end.unwrap_err().to_string()
        });
        let ends = ends.unwrap().join();
        for (rank, end) in ends.into_iter().enumerate() {
            match end {
                Ok(error) => assert!(rank == 1 && error.contains("the disk is full"), "worker {rank}: {error}"),
                Err(_) => assert_ne!(rank, 1, "the worker with the error returns it"),
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}
