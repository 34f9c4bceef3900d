//! The measurement of one link in one direction.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::error::{LinkError, silent};
use super::mailbox::{Kind, Mailbox, Silent, wall_clock};
use crate::wire::MESSAGE_BYTES;

/// Longest wait for the answer to a ping, and for the receipt of all blocks.
const SILENCE: Duration = Duration::from_secs(30);
/// Pings that are not counted: the first ones wake threads.
const FIRST_PINGS: usize = 5;
/// Most pings that are counted.
const PINGS: usize = 200;
/// Time after which no more pings are sent.
const LONGEST_PINGS: Duration = Duration::from_millis(500);
/// Most blocks in flight: 16 MiB. There are fewer at the beginning, so that a slow link does not have to carry all of them.
const WINDOW: usize = (16 << 20) / MESSAGE_BYTES;

/// A connection in one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The sending worker.
    pub from: usize,
    /// The receiving worker.
    pub to: usize,
    /// Median time from a small message to its answer, between the workers' loops.
    pub round_trip_seconds: f64,
    /// The rate at which large messages arrive.
    pub bytes_per_second: f64,
    /// By how much the clock of `to` is ahead of that of `from`.
    pub clock_seconds: f64,
    /// The largest error of `clock_seconds`: half of the shortest round trip.
    pub clock_error_seconds: f64,
}

/// Returns the time of [`measure`] on a fast network.
pub(super) fn usual(time: Duration) -> Duration {
    Duration::from_millis(50) + time
}

/// Returns the longest time of [`measure`].
pub(super) fn longest(time: Duration) -> Duration {
    LONGEST_PINGS + SILENCE + time + SILENCE
}

/// A ping and its answer.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    seconds: f64,
    /// By how much the other clock was ahead, if the message and the answer took equally long.
    clock_seconds: f64,
}

/// Measures the link to another worker, which waits for a message from this one. Blocks are sent for `time`.
pub(super) fn measure(mailbox: &mut Mailbox<'_>, to: usize, time: Duration) -> Result<Link, LinkError> {
    let from = mailbox.rank();
    let mut trips = round_trips(mailbox, to).map_err(silent(from, "the answer to a ping"))?;
    trips.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let (fastest, median) = (trips[0], trips[trips.len() / 2]);
    let acks = send_blocks(mailbox, to, time).map_err(silent(from, "the receipt of blocks of 256 KiB"))?;
    Ok(Link {
        from,
        to,
        round_trip_seconds: median.seconds,
        bytes_per_second: blocks_per_second(&acks, time) * MESSAGE_BYTES as f64,
        clock_seconds: fastest.clock_seconds,
        clock_error_seconds: fastest.seconds / 2.0,
    })
}

/// Returns at least one round trip.
fn round_trips(mailbox: &mut Mailbox<'_>, to: usize) -> Result<Vec<RoundTrip>, Silent> {
    let begin = Instant::now();
    let mut trips = Vec::with_capacity(PINGS);
    for number in 0..FIRST_PINGS + PINGS {
        let (sent, clock) = (Instant::now(), wall_clock());
        mailbox.send(to, Kind::Ping, Vec::new());
        let pong = mailbox.receive(Kind::Pong, to, SILENCE)?;
        let seconds = sent.elapsed().as_secs_f64();
        let theirs = pong.words.first().copied().unwrap_or_default();
        let clock_seconds = (i128::from(theirs) - i128::from(clock)) as f64 / 1e9 - seconds / 2.0;
        let late = begin.elapsed() > LONGEST_PINGS;
        if number >= FIRST_PINGS || late {
            trips.push(RoundTrip { seconds, clock_seconds });
        }
        if late {
            break;
        }
    }
    Ok(trips)
}

/// Sends blocks for `time`. Returns the time of each acknowledgment since the beginning.
fn send_blocks(mailbox: &mut Mailbox<'_>, to: usize, time: Duration) -> Result<Vec<Duration>, Silent> {
    let begin = Instant::now();
    let (mut acks, mut sent) = (Vec::new(), 0);
    loop {
        let window = (1 + acks.len()).min(WINDOW);
        while sent == 0 || (sent - acks.len() < window && begin.elapsed() < time) {
            mailbox.send(to, Kind::Block, Vec::new());
            sent += 1;
        }
        if acks.len() == sent {
            return Ok(acks);
        }
        mailbox.receive(Kind::Ack, to, (time + SILENCE).saturating_sub(begin.elapsed()))?;
        acks.push(begin.elapsed());
    }
}

/// Returns the rate of acknowledgments after the first quarter of `time`, in which the window and TCP's own one grow. A link that carries
/// few blocks has the rate of all of them.
fn blocks_per_second(acks: &[Duration], time: Duration) -> f64 {
    let late = &acks[acks.partition_point(|&ack| ack < time / 4)..];
    let (count, seconds) = match late {
        [first, .., last] if late.len() > 4 && last > first => (late.len() - 1, *last - *first),
        _ => (acks.len(), acks.last().copied().unwrap_or_default()),
    };
    count as f64 / seconds.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_that_after_the_first_quarter() {
        let at = |millis: &[u64]| millis.iter().copied().map(Duration::from_millis).collect::<Vec<_>>();
        let rate = |millis: &[u64]| blocks_per_second(&at(millis), Duration::from_millis(400));
        // One block in 50 ms at first, then one in 10 ms.
        let steady: Vec<u64> = [50, 100].into_iter().chain((11..=40).map(|i| 10 * i)).collect();
        assert!((rate(&steady) - 100.0).abs() < 1e-6);
        assert!((rate(&[2000, 4000]) - 0.5).abs() < 1e-9, "a slow link");
        assert!((rate(&[10, 20, 30]) - 100.0).abs() < 1e-6, "a link that stopped");
    }
}
