//! Rounds of pairs of workers, like those of a tournament.

/// Returns rounds in which every two workers meet once. Within a round, no host has workers in two pairs. `hosts` is the number of each
/// worker's host.
///
/// With one worker on each host there are as few rounds as possible: one fewer than workers, or as many if their number is odd.
pub(super) fn rounds(hosts: &[usize]) -> Vec<Vec<(usize, usize)>> {
    let mut rounds: Vec<Vec<(usize, usize)>> = Vec::new();
    for (first, second) in circle(hosts.len()) {
        let ends = [hosts[first], hosts[second]];
        let is_free = |round: &Vec<(usize, usize)>| {
            !round.iter().any(|&(a, b)| ends.contains(&hosts[a]) || ends.contains(&hosts[b]))
        };
        match rounds.iter_mut().find(|round| is_free(round)) {
            Some(round) => round.push((first, second)),
            None => rounds.push(vec![(first, second)]),
        }
    }
    rounds
}

/// Returns all pairs of `count` workers, round after round of the circle method: one worker stays, the others move on by one place.
fn circle(count: usize) -> impl Iterator<Item = (usize, usize)> {
    // With an odd number, the partner of the worker that stays is left out.
    let places = count.next_multiple_of(2).max(2) - 1;
    (0..places)
        .flat_map(move |turn| {
            let facing = (1..=places / 2).map(move |k| ((turn + k) % places, (turn + places - k) % places));
            std::iter::once((turn, places)).chain(facing)
        })
        .filter(move |&(a, b)| a < count && b < count)
        .map(|(a, b)| (a.min(b), a.max(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_two_workers_meet_once_and_hosts_have_one_pair_at_a_time() {
        for count in 0..12 {
            for on_one_host in [1, 2, 3, 20] {
                let hosts: Vec<usize> = (0..count).map(|rank| rank / on_one_host).collect();
                let rounds = rounds(&hosts);
                let mut met: Vec<(usize, usize)> = rounds.iter().flatten().copied().collect();
                met.sort_unstable();
                let all: Vec<_> = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))).collect();
                assert_eq!(met, all, "{count} workers");
                for round in &rounds {
                    let mut busy: Vec<usize> = Vec::new();
                    for &(a, b) in round {
                        let ends = if hosts[a] == hosts[b] { vec![hosts[a]] } else { vec![hosts[a], hosts[b]] };
                        assert!(!ends.iter().any(|host| busy.contains(host)), "{round:?}");
                        busy.extend(ends);
                    }
                }
                if on_one_host == 1 && count > 1 {
                    assert_eq!(rounds.len(), count - 1 + count % 2, "{count} workers");
                }
            }
        }
    }
}
