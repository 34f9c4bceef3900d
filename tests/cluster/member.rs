//! The program of a member: a dataflow of exchanges and barriers, with the event of the test at epoch 10.

use std::time::{Duration, Instant};

use gnnflow::cluster::{
    ClusterConfig, ClusterError, Failure, Launcher, Liveness, Membership, Secret, config_from_launcher, execute,
    is_supervised,
};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::{Input, Operator, Probe};
use timely::dataflow::{InputHandle, ProbeHandle};
use timely::worker::Worker;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

type Builder = CapacityContainerBuilder<Vec<u64>>;

fn setting(key: &str) -> Option<String> {
    std::env::var(format!("MEMBER_{key}")).ok()
}

fn number(key: &str) -> Option<u64> {
    setting(key).map(|text| text.parse().unwrap())
}

/// Writes each event of `tracing` on stderr.
struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        eprintln!("{} {event:?}", event.metadata().level());
    }
}

/// The entry point of the processes that the tests start. Does nothing without a role in the environment.
#[test]
fn process() {
    let Some(role) = setting("ROLE") else { return };
    let _ = Registry::default().with(Lines.with_filter(LevelFilter::INFO)).try_init();
    let code = match (role.as_str(), config_from_launcher()) {
        (_, Ok(Some(config))) => report(member(limits(config))),
        ("supervised", Ok(None)) if !is_supervised() => {
            let mut launch = Launcher::this_rank();
            launch.restarts = number("RESTARTS").unwrap_or(0) as usize;
            launch.resume = "resume".into();
            report(launch.run().map(|code| std::process::exit(code.into())))
        }
        ("launch", Ok(None)) => {
            let mut launch = Launcher::new(number("PROCESSES").unwrap() as usize);
            launch.restarts = number("RESTARTS").unwrap_or(0) as usize;
            // The test runner does not accept `--resume`. A filter that matches no test has no effect.
            launch.resume = "resume".into();
            report(launch.run().map(|code| std::process::exit(code.into())))
        }
        (_, Ok(None)) => {
            let addresses = setting("ADDRESSES").unwrap().split(',').map(str::to_string).collect();
            let mut config = limits(ClusterConfig::new(number("RANK").unwrap() as usize, addresses));
            config.secret = setting("SECRET").map(|text| Secret::from_text(&text, "test").unwrap());
            config.fingerprints.pipeline = setting("PIPELINE").unwrap_or_default();
            config.fingerprints.build = setting("BUILD").unwrap_or_default();
            report(member(config))
        }
        (_, Err(error)) => report(Err(error)),
    };
    std::process::exit(code)
}

fn limits(mut config: ClusterConfig) -> ClusterConfig {
    let time = |key| Duration::from_millis(number(key).unwrap());
    config.start_timeout = time("START_MS");
    config.heartbeat_timeout = time("HEARTBEAT_MS");
    config.stall_timeout = time("STALL_MS");
    config
}

/// Prints one error line and returns the exit code, like the `main` of the program.
fn report(result: Result<(), ClusterError>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {error}");
            error.exit_code().into()
        }
    }
}

fn member(config: ClusterConfig) -> Result<(), ClusterError> {
    let mine = |rank: usize| number("EVENT_RANK") == Some(rank as u64);
    let rank = config.rank;
    let event = setting("EVENT").filter(|_| mine(rank)).unwrap_or_default();
    let resumed = std::env::args().any(|argument| argument == "resume");
    if resumed {
        eprintln!("resuming as rank {rank}");
    }
    let event = if resumed { String::new() } else { event };
    if event == "vanish" {
        std::process::exit(0);
    }
    let member = Membership::join(config)?;
    eprintln!("joined");
    let dataset = if event == "other dataset" { "other" } else { "same" };
    member.agree("prepared dataset", dataset, None)?;
    match event.as_str() {
        "fail early" => return Err(member.fail(Failure::new(4, "no space left on device: runs/x"))),
        "panic early" => panic!("a panic before the dataflow"),
        "hang early" => {
            // The monitor must end this process although its main thread is blocked.
            std::thread::sleep(Duration::from_secs(600));
        }
        _ => {}
    }
    let (liveness, epochs) = (member.liveness(), number("EPOCHS").unwrap());
    let since = Instant::now();
    let sum = execute(member, move |worker| epochs_of_barriers(worker, &liveness, epochs, &event))?;
    eprintln!("finished rank {rank} after {:?}", since.elapsed());
    println!("sum {sum}");
    Ok(())
}

/// Sends 100 numbers per epoch. Returns the sum of the numbers that arrive at this worker.
fn epochs_of_barriers(worker: &mut Worker, liveness: &Liveness, epochs: u64, event: &str) -> Result<u64, Failure> {
    let mut input: InputHandle<u64, Builder> = InputHandle::new();
    let (probe, sum) = (ProbeHandle::new(), std::rc::Rc::new(std::cell::Cell::new(0)));
    let received = sum.clone();
    worker.dataflow(|scope| {
        scope
            .input_from(&mut input)
            .unary::<Builder, _, _, _>(Exchange::new(|x: &u64| *x), "sum", |_, _| {
                move |input, output| {
                    input.for_each_stamp(|time, data| {
                        let add = |batch: &&mut Vec<u64>| received.set(received.get() + batch.iter().sum::<u64>());
                        output.session(&time).give_containers(data.inspect(add));
                    });
                }
            })
            .probe_with(&probe);
    });
    for epoch in 0..epochs {
        if epoch == 10 {
            run_event(event, liveness)?;
        }
        (0..100).for_each(|x| input.send(x));
        input.advance_to(epoch + 1);
        while probe.less_than(input.time()) {
            liveness.turned();
            worker.step_or_park(Some(Duration::from_millis(20)));
        }
        liveness.progressed();
        std::thread::sleep(Duration::from_millis(number("PAUSE_MS").unwrap_or(5)));
    }
    if event == "finish late" {
        let _busy = liveness.busy("last words");
        std::thread::sleep(Duration::from_secs(4));
    }
    Ok(sum.get())
}

fn run_event(event: &str, liveness: &Liveness) -> Result<(), Failure> {
    let raise = |signal| {
        // SAFETY: a system call on integers, to this process.
        unsafe { libc::kill(libc::getpid(), signal) };
    };
    match event {
        "kill" => raise(libc::SIGKILL),
        "stop" => raise(libc::SIGSTOP),
        "abort" => std::process::abort(),
        "panic" => panic!("a bug of the worker"),
        "panic elsewhere" => {
            let _ = std::thread::Builder::new().name("compute".into()).spawn(|| panic!("a bug of the compute thread"));
            std::thread::sleep(Duration::from_secs(600));
        }
        "fail" => return Err(Failure::new(3, "nodes.parquet: row 7: label 9 is out of range")),
        "sleep" => std::thread::sleep(Duration::from_secs(600)),
        "busy" => {
            let _busy = liveness.busy("inference of partition 3");
            std::thread::sleep(Duration::from_secs(4));
        }
        "wait for ever" => loop {
            liveness.turned();
            std::thread::sleep(Duration::from_millis(10));
        },
        _ => {}
    }
    Ok(())
}
