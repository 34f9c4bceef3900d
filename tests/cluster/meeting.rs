//! Start-up: who meets, who does not, who is not wanted.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::harness::{HANGS, Run, SLACK, addresses, end_all};

fn sum_of(printed: &str) -> u64 {
    printed.lines().filter_map(|line| line.strip_prefix("sum ")).map(|sum| sum.parse::<u64>().unwrap()).sum()
}

#[test]
fn one_two_and_four_processes_finish() {
    for size in [1, 2, 4] {
        let ended = end_all(Run::new(size).start_all());
        assert!(ended.iter().all(|end| end.code() == Some(0)), "{ended:#?}");
        let sum: u64 = ended.iter().map(|end| sum_of(&end.printed)).sum();
        assert_eq!(sum, 30 * 4950 * size as u64);
        let slowest = ended.iter().map(|end| end.after).max().unwrap();
        println!("{size} processes: sum {sum}, at most {slowest:?}");
    }
}

#[test]
fn who_never_starts_is_named_while_waiting_and_at_the_deadline() {
    let run = Run::new(3).set("START_MS", 2500);
    let ended = end_all(vec![run.start(0), run.start(2)]);
    for end in &ended {
        assert_eq!(end.code(), Some(5), "{end:#?}");
        let error = end.error();
        assert!(error.contains(&format!("lost {}: did not join within 2.5 s", run.name(1))), "{error}");
        assert!(end.after < Duration::from_millis(2500) + SLACK, "{end:#?}");
        assert!(end.said.contains("waits for 1 of 3 processes") && end.said.contains(&run.name(1)), "{end:#?}");
        println!("{:?}: {error}", end.after);
    }
}

#[test]
fn another_secret_is_refused_by_both_sides() {
    let run = Run::new(2).set("START_MS", 2500);
    let first = run.start(0);
    let second = run.clone().set("SECRET", "not the secret of the tests").start(1).end();
    assert_eq!(second.code(), Some(5), "{second:#?}");
    assert!(second.error().contains(&format!("{} has another shared secret", run.name(0))), "{second:#?}");
    assert!(second.after < SLACK, "at once: {second:#?}");
    // To the listener it may be a stranger's trick: it waits for the true rank 1, and tells what it saw.
    let first = first.end();
    assert_eq!(first.code(), Some(5), "{first:#?}");
    let error = first.error();
    assert!(error.contains(&run.name(1)) && error.contains("rank 1, but showed a wrong secret"), "{error}");
    println!("{error}\n{}", second.error());
}

#[test]
fn another_build_or_pipeline_is_named_by_both_sides() {
    for (key, word) in [("BUILD", "build of gnnflow"), ("PIPELINE", "pipeline")] {
        let run = Run::new(2).set(key, "one");
        let other = run.clone().set(key, "two");
        let ended = end_all(vec![run.start(0), other.start(1)]);
        for (end, (peer, words)) in ended.iter().zip([(1, "two there, one here"), (0, "one there, two here")]) {
            assert_eq!(end.code(), Some(5), "{end:#?}");
            let error = end.error();
            assert!(error.contains(&format!("{} has another {word}: {words}", run.name(peer))), "{error}");
            assert!(end.after < SLACK, "{end:#?}");
            println!("{error}");
        }
    }
}

#[test]
fn another_dataset_found_after_the_start_is_named() {
    let run = Run::new(3).event(2, "other dataset");
    for end in end_all(run.start_all()) {
        assert_eq!(end.code(), Some(5), "{end:#?}");
        assert!(end.error().contains("another prepared dataset"), "{end:#?}");
        println!("{}", end.error());
    }
}

#[test]
fn two_processes_of_one_rank_are_told_apart() {
    let run = Run::new(3).set("START_MS", 4000);
    let (first, second) = (run.start(0), run.start(1));
    // Once it waits for rank 2 only, rank 1 has both connections.
    first.hear("waits for 1 of 3");
    let twin = run.clone();
    let mut twin_run = twin.clone();
    // The twin has an address of its own, lest it fail of the port.
    twin_run.addresses[1] = addresses(1)[0].clone();
    let twin = twin_run.start(1).end();
    assert_eq!(twin.code(), Some(5), "{twin:#?}");
    assert!(twin.error().contains("rank 1 is taken"), "{twin:#?}");
    assert!(twin.error().contains("--rank"), "{twin:#?}");
    let third = run.start(2);
    let ended = end_all(vec![first, second, third]);
    assert!(ended.iter().all(|end| end.code() == Some(0)), "the others go on: {ended:#?}");
}

#[test]
fn a_taken_port_is_this_machines_fault() {
    let run = Run::new(2).set("START_MS", 2000);
    let _holder = TcpListener::bind(&run.addresses[0]).unwrap();
    let end = run.start(0).end();
    assert_eq!(end.code(), Some(4), "{end:#?}");
    let error = end.error();
    assert!(
        error.contains(&run.addresses[0]) && error.contains("os error 98") && error.contains("hosts file"),
        "{error}"
    );
    println!("{error}");
}

#[test]
fn another_program_at_a_peers_address_is_described() {
    let run = Run::new(2).set("START_MS", 2500);
    let server = TcpListener::bind(&run.addresses[0]).unwrap();
    let address = server.local_addr().unwrap();
    let web = std::thread::spawn(move || {
        for stream in server.incoming() {
            let mut stream = stream.unwrap();
            let mut byte = [0];
            if !matches!(stream.read(&mut byte), Ok(1)) || byte[0] == b'Q' {
                return;
            }
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let end = run.start(1).end();
    assert_eq!(end.code(), Some(5), "{end:#?}");
    let error = end.error();
    assert!(error.contains(&run.name(0)) && error.contains("does not speak gnnflow's protocol"), "{error}");
    println!("{error}");
    TcpStream::connect(address).unwrap().write_all(b"Q").unwrap();
    web.join().unwrap();
}

#[test]
fn strangers_do_no_harm() {
    let run = Run::new(2);
    let first = run.start(0);
    let address = &run.addresses[0];
    let since = Instant::now();
    let connect = || loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(error) => assert!(since.elapsed() < HANGS, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let silent: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
    let mut http = connect();
    http.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut impostor = connect();
    impostor.write_all(&[&b"gnnflow\0"[..], &[1, 0, 0, 0, 1, 0, 0, 0], &[7; 64]].concat()).unwrap();
    let mut megabyte = connect();
    let _ = megabyte.write_all(&vec![0xa5; 1 << 20]);
    for _ in 0..100 {
        drop(connect());
    }
    let second = run.start(1);
    let ended = end_all(vec![first, second]);
    assert!(ended.iter().all(|end| end.code() == Some(0)), "{ended:#?}");
    let said = &ended[0].said;
    assert!(said.contains("does not speak gnnflow's protocol (it sent `GET / HT`") && said.contains("WARN"), "{said}");
    assert!(said.contains("connections in all"), "counted, not all logged: {said}");
    assert!(said.lines().count() < 40, "{said}");
    println!("{said}");
    drop((silent, http, impostor, megabyte));
}

#[test]
fn meeting_and_parting_twenty_times() {
    let rounds = std::env::var("GNNFLOW_SOAK").map_or(20, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        let ended = end_all(Run::new(2).set("EPOCHS", 1).start_all());
        assert!(ended.iter().all(|end| end.code() == Some(0)), "round {round}: {ended:#?}");
    }
    println!("{rounds} rounds");
}
