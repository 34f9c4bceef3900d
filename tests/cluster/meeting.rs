//! Start-up: missing, duplicate, different and foreign processes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::harness::{Run, SLACK, TIME_LIMIT, addresses, end_all};

fn sum_of(stdout: &str) -> u64 {
    stdout.lines().filter_map(|line| line.strip_prefix("sum ")).map(|sum| sum.parse::<u64>().unwrap()).sum()
}

#[test]
fn runs_of_1_2_4_processes_finish() {
    for size in [1, 2, 4] {
        let ended = end_all(Run::new(size).start_all());
        assert!(ended.iter().all(|end| end.code() == Some(0)), "{ended:#?}");
        let sum: u64 = ended.iter().map(|end| sum_of(&end.stdout)).sum();
        assert_eq!(sum, 30 * 4950 * size as u64);
        let slowest = ended.iter().map(|end| end.elapsed).max().unwrap();
        println!("{size} processes: sum {sum}, at most {slowest:?}");
    }
}

#[test]
fn absent_rank_is_named_while_waiting_and_at_the_deadline() {
    let run = Run::new(3).set("START_MS", 2500);
    let ended = end_all(vec![run.start(0), run.start(2)]);
    for end in &ended {
        assert_eq!(end.code(), Some(5), "{end:#?}");
        let error = end.error();
        assert!(error.contains(&format!("lost {}: did not join within 2.5 s", run.name(1))), "{error}");
        assert!(end.elapsed < Duration::from_millis(2500) + SLACK, "{end:#?}");
        assert!(end.stderr.contains("waits for 1 of 3 processes") && end.stderr.contains(&run.name(1)), "{end:#?}");
        println!("{:?}: {error}", end.elapsed);
    }
}

#[test]
fn different_secret_is_refused_by_both_sides() {
    let run = Run::new(2).set("START_MS", 2500);
    let first = run.start(0);
    let second = run.clone().set("SECRET", "not the secret of the tests").start(1).end();
    assert_eq!(second.code(), Some(5), "{second:#?}");
    assert!(second.error().contains(&format!("{} has another shared secret", run.name(0))), "{second:#?}");
    assert!(second.elapsed < SLACK, "ended late: {second:#?}");
    // The connection may be foreign, so rank 0 waits for rank 1 until the deadline and then reports the wrong secret.
    let first = first.end();
    assert_eq!(first.code(), Some(5), "{first:#?}");
    let error = first.error();
    assert!(error.contains(&run.name(1)) && error.contains("rank 1, but showed a wrong secret"), "{error}");
    println!("{error}\n{}", second.error());
}

#[test]
fn different_build_or_pipeline_is_reported_by_both_sides() {
    for (key, word) in [("BUILD", "build of gnnflow"), ("PIPELINE", "pipeline")] {
        let run = Run::new(2).set(key, "one");
        let other = run.clone().set(key, "two");
        let ended = end_all(vec![run.start(0), other.start(1)]);
        for (end, (peer, words)) in ended.iter().zip([(1, "two there, one here"), (0, "one there, two here")]) {
            assert_eq!(end.code(), Some(5), "{end:#?}");
            let error = end.error();
            assert!(error.contains(&format!("{} has another {word}: {words}", run.name(peer))), "{error}");
            assert!(end.elapsed < SLACK, "{end:#?}");
            println!("{error}");
        }
    }
}

#[test]
fn different_dataset_is_reported_by_all() {
    let run = Run::new(3).event(2, "other dataset");
    for end in end_all(run.start_all()) {
        assert_eq!(end.code(), Some(5), "{end:#?}");
        assert!(end.error().contains("another prepared dataset"), "{end:#?}");
        println!("{}", end.error());
    }
}

#[test]
fn second_process_of_a_rank_is_refused() {
    let run = Run::new(3).set("START_MS", 4000);
    let (first, second) = (run.start(0), run.start(1));
    // Rank 1 is connected once rank 0 waits for rank 2 only.
    first.wait_for("waits for 1 of 3");
    let mut twin_run = run.clone();
    // The second process of rank 1 gets another address, because the port is in use.
    twin_run.addresses[1] = addresses(1)[0].clone();
    let twin = twin_run.start(1).end();
    assert_eq!(twin.code(), Some(5), "{twin:#?}");
    assert!(twin.error().contains("rank 1 is taken"), "{twin:#?}");
    assert!(twin.error().contains("--rank"), "{twin:#?}");
    let third = run.start(2);
    let ended = end_all(vec![first, second, third]);
    assert!(ended.iter().all(|end| end.code() == Some(0)), "the other ranks continue: {ended:#?}");
}

#[test]
fn port_in_use_exits_with_4() {
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
fn other_program_at_the_address_of_a_peer_is_described() {
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
fn foreign_connections_do_not_disturb_the_start() {
    let run = Run::new(2);
    let first = run.start(0);
    let address = &run.addresses[0];
    let since = Instant::now();
    let connect = || loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(error) => assert!(since.elapsed() < TIME_LIMIT, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let silent: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
    let mut http = connect();
    http.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut impostor = connect();
    impostor.write_all(&[&b"gnnflow\x03"[..], &[1, 0, 0, 0, 64, 0, 0, 0], &[7; 64]].concat()).unwrap();
    let mut megabyte = connect();
    let _ = megabyte.write_all(&vec![0xa5; 1 << 20]);
    for _ in 0..100 {
        drop(connect());
    }
    let second = run.start(1);
    let ended = end_all(vec![first, second]);
    assert!(ended.iter().all(|end| end.code() == Some(0)), "{ended:#?}");
    let stderr = &ended[0].stderr;
    assert!(
        stderr.contains("does not speak gnnflow's protocol (it sent `GET / HT`") && stderr.contains("WARN"),
        "{stderr}"
    );
    assert!(stderr.contains("connections in all"), "repeated connections are counted, not logged: {stderr}");
    assert!(stderr.lines().count() < 40, "{stderr}");
    println!("{stderr}");
    drop((silent, http, impostor, megabyte));
}

#[test]
fn silent_connections_do_not_delay_the_start() {
    // A member that waited for the time limit of every silent connection would be late.
    let run = Run::new(2).set("START_MS", 10_000);
    let first = run.start(0);
    let since = Instant::now();
    let mut silent = Vec::new();
    while silent.len() < 800 {
        match TcpStream::connect(&run.addresses[0]) {
            Ok(stream) => silent.push(stream),
            Err(error) => assert!(since.elapsed() < TIME_LIMIT, "{error}"),
        }
    }
    // The first ones are closed long before the time limit of a handshake.
    silent[0].set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
    let second = run.start(1);
    let ended = end_all(vec![first, second]);
    assert!(ended.iter().all(|end| end.code() == Some(0)), "{ended:#?}");
    assert!(ended[0].stderr.lines().count() < 40, "{}", ended[0].stderr);
}

#[test]
fn repeated_runs_start_and_finish() {
    let rounds = std::env::var("GNNFLOW_SOAK").map_or(20, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        let ended = end_all(Run::new(2).set("EPOCHS", 1).start_all());
        assert!(ended.iter().all(|end| end.code() == Some(0)), "round {round}: {ended:#?}");
    }
    println!("{rounds} rounds");
}
