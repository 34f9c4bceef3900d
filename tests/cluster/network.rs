//! A cut link between two network namespaces, where this machine permits to create them.

use std::process::Command;
use std::time::{Duration, Instant};

use super::harness::{Process, Run, SLACK, end_all};

/// Two network namespaces with a virtual link between them, removed on drop.
struct VirtualLink {
    names: [String; 2],
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|e| format!("ip: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl VirtualLink {
    fn create() -> Result<Self, String> {
        let names = ["a", "b"].map(|end| format!("gnnflow-{}-{end}", std::process::id()));
        let link = VirtualLink { names };
        let [a, b] = [link.names[0].as_str(), link.names[1].as_str()];
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["-n", a, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", b])?;
        for (name, address) in [(a, "10.9.0.1/24"), (b, "10.9.0.2/24")] {
            ip(&["-n", name, "address", "add", address, "dev", "cable"])?;
            ip(&["-n", name, "link", "set", "cable", "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(link)
    }

    fn start(&self, run: &Run, rank: usize) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[rank]]).arg(std::env::current_exe().unwrap());
        run.configure(&mut command, "member");
        command.env("MEMBER_RANK", rank.to_string());
        Process::start(command)
    }
}

impl Drop for VirtualLink {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

#[test]
fn cut_link_is_reported_by_both_ends() {
    let link = match VirtualLink::create() {
        Ok(link) => link,
        Err(problem) => {
            println!("skipped: network namespaces cannot be made here ({problem})");
            return;
        }
    };
    let mut run = Run::new(2).set("EPOCHS", 100000).set("HEARTBEAT_MS", 3000);
    run.addresses = vec!["10.9.0.1:21000".into(), "10.9.0.2:21000".into()];
    let members = vec![link.start(&run, 0), link.start(&run, 1)];
    members.iter().for_each(|member| member.wait_for("joined"));
    std::thread::sleep(Duration::from_millis(500));
    let cut = Instant::now();
    ip(&["-n", &link.names[0], "link", "set", "cable", "down"]).unwrap();
    let ended = end_all(members);
    assert!(cut.elapsed() < Duration::from_secs(5) + SLACK, "{:?}: {ended:#?}", cut.elapsed());
    for (rank, end) in ended.iter().enumerate() {
        assert_eq!(end.code(), Some(5), "{end:#?}");
        assert!(end.error().contains(&format!("lost {}", run.name(1 - rank))), "{end:#?}");
        println!("{}", end.error());
    }
    println!("both ended {:?} after the cut (heartbeat_timeout 3 s)", cut.elapsed());
}
