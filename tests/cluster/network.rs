//! A link that is cut between two network namespaces, where this machine lets us make them.

use std::process::Command;
use std::time::{Duration, Instant};

use super::harness::{Process, Run, SLACK, end_all};

/// Two namespaces with one cable between them, removed at the end.
struct Cable {
    names: [String; 2],
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|e| format!("ip: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl Cable {
    fn lay() -> Result<Self, String> {
        let names = ["a", "b"].map(|end| format!("gnnflow-{}-{end}", std::process::id()));
        let cable = Cable { names };
        let [a, b] = [cable.names[0].as_str(), cable.names[1].as_str()];
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["-n", a, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", b])?;
        for (name, address) in [(a, "10.9.0.1/24"), (b, "10.9.0.2/24")] {
            ip(&["-n", name, "address", "add", address, "dev", "cable"])?;
            ip(&["-n", name, "link", "set", "cable", "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(cable)
    }

    fn start(&self, run: &Run, rank: usize) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[rank]]).arg(std::env::current_exe().unwrap());
        run.equip(&mut command, "member");
        command.env("MEMBER_RANK", rank.to_string());
        Process::start(command)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

#[test]
fn a_cut_link_is_noticed_by_both_ends() {
    let cable = match Cable::lay() {
        Ok(cable) => cable,
        Err(problem) => {
            println!("skipped: network namespaces cannot be made here ({problem})");
            return;
        }
    };
    let mut run = Run::new(2).set("EPOCHS", 100000).set("HEARTBEAT_MS", 3000);
    run.addresses = vec!["10.9.0.1:21000".into(), "10.9.0.2:21000".into()];
    let members = vec![cable.start(&run, 0), cable.start(&run, 1)];
    members.iter().for_each(|member| member.hear("joined"));
    std::thread::sleep(Duration::from_millis(500));
    let cut = Instant::now();
    ip(&["-n", &cable.names[0], "link", "set", "cable", "down"]).unwrap();
    let ended = end_all(members);
    assert!(cut.elapsed() < Duration::from_secs(5) + SLACK, "{:?}: {ended:#?}", cut.elapsed());
    for (rank, end) in ended.iter().enumerate() {
        assert_eq!(end.code(), Some(5), "{end:#?}");
        assert!(end.error().contains(&format!("lost {}", run.name(1 - rank))), "{end:#?}");
        println!("{}", end.error());
    }
    println!("both ended {:?} after the cut (heartbeat_timeout 3 s)", cut.elapsed());
}
