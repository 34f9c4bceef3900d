//! Measures the connections between workers, on the channels that training uses.
//!
//! ```text
//! rounds of pairs ─► a: pings, then blocks to b     b: an answer to each     then b to a     ─► barrier ─► next round
//! ```
//!
//! Pairs of one round have no host in common, so they do not disturb each other.

mod error;
mod link;
mod mailbox;
mod rounds;

use std::time::Duration;

use gnnflow_data::group::{Json, ProcessGroup};
use timely::worker::Worker;

use self::error::silent;
use self::link::{longest, measure, usual};
use self::mailbox::{Kind, Mailbox};
use self::rounds::rounds;
use crate::collective::group::{LoopState, WorkerGroup};

pub use self::error::LinkError;
pub use self::link::Link;

/// Measures all links in both directions, and returns them in the order of `from` and `to`. A collective operation.
///
/// `hosts` is the number of each worker's host. The blocks of a link are sent for `time`. `report` is as in [`WorkerGroup::new`].
///
/// # Errors
/// [`LinkError::Silent`] for a link that does not carry a message within half a minute.
pub fn measure_links(
    worker: &mut Worker,
    hosts: &[usize],
    time: Duration,
    report: impl Fn(LoopState),
) -> Result<Vec<Link>, LinkError> {
    let own = measure_own_links(worker, hosts, time, &report)?;
    let all = WorkerGroup::new(worker, 1, &report).all_gather(Json(own))?;
    let mut links: Vec<Link> = all.into_iter().flat_map(|Json(links)| links).collect();
    links.sort_by_key(|link| (link.from, link.to));
    Ok(links)
}

/// Returns about how long [`measure_links`] takes.
pub fn expected_time(hosts: &[usize], time: Duration) -> Duration {
    2 * usual(time) * rounds(hosts).len() as u32
}

/// Measures the links that begin at this worker, while others measure theirs.
fn measure_own_links(
    worker: &mut Worker,
    hosts: &[usize],
    time: Duration,
    report: &dyn Fn(LoopState),
) -> Result<Vec<Link>, LinkError> {
    let me = worker.index();
    let mut mailbox = Mailbox::open(worker, report);
    let mut links = Vec::new();
    let (turn, end) = (silent(me, "the measurement of the other direction"), silent(me, "the end of a round"));
    for pairs in rounds(hosts) {
        if let Some(&(first, second)) = pairs.iter().find(|&&(first, second)| me == first || me == second) {
            if me == second {
                mailbox.receive(Kind::Turn, first, longest(time)).map_err(&turn)?;
            }
            let other = first + second - me;
            links.push(measure(&mut mailbox, other, time)?);
            mailbox.send(other, Kind::Turn, Vec::new());
            if me == first {
                mailbox.receive(Kind::Turn, second, longest(time)).map_err(&turn)?;
            }
        }
        mailbox.barrier(2 * longest(time)).map_err(&end)?;
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_all_links_of_1_2_and_4_workers() {
        for workers in [1, 2, 4] {
            let measured = timely::execute(timely::Config::process(workers), move |worker| {
                let hosts: Vec<usize> = (0..worker.peers()).collect();
                measure_links(worker, &hosts, Duration::from_millis(20), |_| ()).unwrap()
            });
            let all: Vec<Vec<Link>> = measured.unwrap().join().into_iter().map(Result::unwrap).collect();
            let ends: Vec<(usize, usize)> =
                (0..workers).flat_map(|from| (0..workers).map(move |to| (from, to))).filter(|(a, b)| a != b).collect();
            for links in &all {
                assert_eq!(links, &all[0]);
                assert_eq!(links.iter().map(|link| (link.from, link.to)).collect::<Vec<_>>(), ends);
                for link in links {
                    assert!(link.round_trip_seconds > 0.0 && link.bytes_per_second > 0.0, "{link:?}");
                    // All have the same clock.
                    assert!(link.clock_seconds.abs() <= link.clock_error_seconds + 1e-4, "{link:?}");
                }
            }
        }
    }
}
