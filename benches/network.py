"""Network namespaces as hosts, joined by a link; needs root."""
import os, subprocess, sys, time


def namespaces(count):
    """Creates namespaces joined by a bridge, each with 1 Gbit/s and, if supported, 1 ms. Returns names, link and cleanup."""
    names, done = [f"gnnflow{i}" for i in range(count)], []

    def ip(*words, check=True):
        return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)

    def undo():
        for name in done:
            ip("netns", "del", name, check=False)

    try:
        for name in [*names, "gnnflowhub"]:
            ip("netns", "add", name)
            done.append(name)
        hub = ["netns", "exec", "gnnflowhub", "ip"]
        ip(*hub, "link", "add", "bridge", "type", "bridge")
        ip(*hub, "link", "set", "bridge", "up")
        shaped = []
        for i, name in enumerate(names):
            ip("link", "add", "eth", "netns", name, "type", "veth", "peer", "name", f"port{i}", "netns", "gnnflowhub")
            ip(*hub, "link", "set", f"port{i}", "master", "bridge", "up")
            inside = ["netns", "exec", name]
            ip(*inside, "ip", "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth")
            ip(*inside, "ip", "link", "set", "eth", "up")
            ip(*inside, "ip", "link", "set", "lo", "up")
            tc = [*inside, "tc", "qdisc", "add", "dev", "eth", "root"]
            if ip(*tc, "netem", "delay", "1ms", "rate", "1gbit", check=False).returncode == 0:
                shaped.append("1 Gbit/s, 1 ms")
            elif ip(*tc, "tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms", check=False).returncode == 0:
                shaped.append("1 Gbit/s; no delay: the kernel has no netem")
            else:
                shaped.append("not shaped: the kernel has neither netem nor tbf")
        return names, shaped[0], undo
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        undo()
        print(f"link: left out, no network namespaces: {getattr(error, 'stderr', error)}", file=sys.stderr)
        return None, None, undo


def run_on_hosts(spaces, command, work, deadline, prefixes=None):
    """Runs one process of a run in each namespace, each after its words of `prefixes`. Returns what rank 0 printed."""
    hosts = work / "hosts.txt"
    hosts.write_text("".join(f"10.77.0.{i + 1}:7000\n" for i in range(len(spaces))))
    environment = {**os.environ, "GNNFLOW_SECRET": "of-this-benchmark-alone-0123456789"}
    running = []
    for rank, space in enumerate(spaces):
        words = [*(prefixes[rank] if prefixes else []), *command, "--hosts", hosts, "--rank", str(rank)]
        running.append(subprocess.Popen(["ip", "netns", "exec", space, *words], env=environment, stdout=subprocess.PIPE, text=True))
    try:
        end = time.monotonic() + deadline
        outs = [process.communicate(timeout=max(1, end - time.monotonic()))[0] for process in running]
    except subprocess.TimeoutExpired:
        sys.exit(f"error: a run in network namespaces took more than {deadline} s")
    finally:
        for process in running:
            process.kill()
    if any(process.returncode for process in running):
        sys.exit("error: a run in network namespaces failed")
    return outs[0]
