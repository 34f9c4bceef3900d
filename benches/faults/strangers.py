#!/usr/bin/env python3
"""Connects to the ports of runs and of tensor workers without the secret, or changes bytes on the way. Results must not change, and memory and logs must be bounded.

    benches/faults/strangers.py [--seed 1] [--count 24] [--minutes 20] [--only CASE] [--connections 10000]

The attacks: connections that are held and say nothing, one byte per second (after the right first bytes, too), garbage, other protocols and connections that are reset, and recorded bytes of another run with the same secret. They reach
both start-up ports of a run on two hosts, its ports in training, a listening tensor worker, and the port at which tensor workers register. A run with a wrong secret calls a tensor worker. A relay between two processes with `cluster.encrypt = true` changes, repeats, inserts or drops bytes:
the run must end with exit code 5, or have the same results. Limits: MEMORY and LOG below. The result is written to benches/runs/<date>-faults-strangers.json.
"""
import random, socket, struct, threading, time

from common import (SCHEDULES, Campaign, Deviation, Started, addresses, generate, listening, must_be_clear, must_equal, must_succeed, options, pipeline, raise_descriptor_limit, run, sets, usage)

SECRET = {"GNNFLOW_SECRET": "a secret of the campaign", "GNNFLOW_LOG": "info"}
# Most that an attack may add to the memory of a process, and to its log.
MEMORY, LOG = 64 << 10, 64 << 10
MAGIC = b"gnnflow\x03"
ATTACKS = ["held", "slow", "garbage", "replay"]
TARGETS = ["start-up", "training", "tensor worker", "tensor registration"]


class Attack(threading.Thread):
    """Connects to ports until it is stopped."""

    def __init__(self, kind, targets, connections, seed, recorded=()):
        super().__init__(daemon=True)
        self.kind, self.targets, self.connections, self.draw, self.recorded = kind, targets, connections, random.Random(seed), recorded
        self.stopped, self.opened, self.refused, self.held = threading.Event(), 0, 0, []

    def connect(self):
        opened = socket.socket()
        opened.settimeout(2)
        try:
            opened.connect(self.draw.choice(self.targets))
            self.opened += 1
            return opened
        except OSError:
            opened.close()
            self.refused += 1
            # Nobody listens, or the queue is full.
            self.stopped.wait(0.005)
            return None

    def say(self, one, words, reset=False):
        try:
            one.sendall(words)
            if reset:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass

    def run(self):
        {"held": self.hold, "slow": self.creep, "garbage": self.garbage, "replay": self.replay}[self.kind]()

    def hold(self):
        while not self.stopped.is_set() and self.opened + self.refused < 20 * self.connections:
            if len(self.held) >= self.connections:
                self.stopped.wait(0.05)
            elif one := self.connect():
                self.held.append(one)

    def creep(self):
        beginnings = [MAGIC + bytes(range(200)), bytes(200), b"GET / HTTP/1.1\r\n" * 20, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(200)]
        said, round_begin = [], time.monotonic()
        while not self.stopped.is_set():
            while len(said) < 300 and not self.stopped.is_set():
                if one := self.connect():
                    said.append([one, self.draw.choice(beginnings), 0])
                else:
                    break
            for entry in said:
                one, words, at = entry
                try:
                    one.send(words[at % len(words):at % len(words) + 1])
                    entry[2] += 1
                except OSError:
                    one.close()
                    entry[0] = None
            said = [entry for entry in said if entry[0]]
            self.stopped.wait(1)
        self.held = [entry[0] for entry in said]

    def garbage(self):
        lines = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), b"SSH-2.0-x\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 9,
                 MAGIC + struct.pack("<II", 1, 0xFFFFFFFF), MAGIC + struct.pack("<II", 1, 48), MAGIC + struct.pack("<II", 0xFFFFFFFF, 53) + bytes(53), b""]
        while not self.stopped.is_set() and self.opened < 5 * self.connections:
            if one := self.connect():
                words = self.draw.choice(lines) + self.draw.randbytes(self.draw.choice([0, 1, 60, 5000]))
                self.say(one, words, self.draw.random() < 0.5)
                if self.draw.random() < 0.1:
                    self.held = [*self.held[-100:], one]
                else:
                    one.close()

    def replay(self):
        while not self.stopped.is_set() and self.opened < self.connections:
            if one := self.connect():
                words = self.draw.choice(self.recorded)
                parts = self.draw.choice([1, 2, 7])
                for part in range(parts):
                    self.say(one, words[part * len(words) // parts:(part + 1) * len(words) // parts])
                    if parts > 1:
                        try:
                            one.settimeout(0.02)
                            one.recv(1 << 16)
                        except OSError:
                            pass
                one.close()

    def stop(self):
        self.stopped.set()
        self.join(20)
        for one in self.held:
            one.close()


class Relay:
    """Forwards connections to an address, records them, and may disturb one direction after a number of bytes."""

    def __init__(self, target, fault=None, after=0, draw=None):
        self.target, self.fault, self.left, self.draw = target, fault, after, draw
        self.recorded, self.lock, self.disturbed = [], threading.Lock(), False
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.address = self.listener.getsockname()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.target, 2)
            except OSError:
                client.close()
                continue
            record = []
            self.recorded.append(record)
            for source, sink, kept in [(client, server, record), (server, client, None)]:
                threading.Thread(target=self.forward, args=(source, sink, kept), daemon=True).start()

    def forward(self, source, sink, kept):
        try:
            source.settimeout(None)
            while words := source.recv(1 << 16):
                if kept is not None and sum(map(len, kept)) < 1 << 16:
                    kept.append(words)
                sink.sendall(self.disturb(words))
        except OSError:
            pass
        for one, how in [(sink, socket.SHUT_WR), (source, socket.SHUT_RD)]:
            try:
                one.shutdown(how)
            except OSError:
                pass

    def disturb(self, words):
        if not self.fault:
            return words
        with self.lock:
            self.left -= len(words)
            if self.left > 0 or self.disturbed:
                return words
            self.disturbed = True
            at = self.draw.randrange(len(words))
            if self.fault == "changes":
                return words[:at] + bytes([words[at] ^ 1 << self.draw.randrange(8)]) + words[at + 1:]
            if self.fault == "inserts":
                return words[:at] + self.draw.randbytes(self.draw.choice([1, 40, 3000])) + words[at:]
            return words + words if self.fault == "repeats" else words[:at]

    def close(self):
        self.listener.close()


class Watch(threading.Thread):
    """Notes the most memory, descriptors and threads of the processes of commands."""

    def __init__(self, started):
        super().__init__(daemon=True)
        self.started, self.most, self.stopped = started, {}, threading.Event()

    def run(self):
        while not self.stopped.wait(0.05):
            for one in self.started:
                if seen := usage(one.pid):
                    self.most = {key: max(value, self.most.get(key, 0)) for key, value in seen.items()}

    def stop(self):
        self.stopped.set()
        self.join()
        return self.most


def main():
    given = options(__doc__, count=24, minutes=20.0, connections=10_000)
    campaign = Campaign("strangers", given)
    limit = raise_descriptor_limit()
    connections = min(given.connections, limit - 1000)
    dump, world = generate(campaign), campaign.folder("world")
    for name, train in [("batch", SCHEDULES["mini-batch"]), ("full", SCHEDULES["full-graph"])]:
        pipeline(world / f"{name}.toml", dump, train, epochs=12 if name == "batch" else 40)
        campaign.succeed(world, "run", f"{name}.toml", "--quiet", "--run-dir", f"run-{name}")

    def members(place, name, lines, settings=(), seen_by_1=None):
        """Starts functions for rank 0 and 1. Rank 1 sees rank 0 at another address if there is a relay."""
        (place / "hosts").write_text("".join(f"{host}:{port}\n" for host, port in lines))
        (place / "hosts-1").write_text("".join(f"{host}:{port}\n" for host, port in [seen_by_1 or lines[0], lines[1]]))
        command = ["run", world / f"{name}.toml", "--run-dir", place / "run", "--quiet", *sets(settings)]
        return [lambda rank=rank, file=file: Started(campaign.binary, place, [*command, "--hosts", place / file, "--rank", rank], env=SECRET) for rank, file in enumerate(["hosts", "hosts-1"])]

    def finish(started, within=120):
        ended = [one.wait(given.deadline + within) for one in started]
        for one in started:
            one.gone()
        return ended

    # Recorded bytes of a run with the same secret.
    place, lines = campaign.folder("recorded"), addresses(random.Random(1), 2)
    relay = Relay(lines[0])
    ended = finish([start() for start in members(place, "batch", lines, seen_by_1=relay.address)])
    if any(end.code for end in ended):
        raise SystemExit(f"error: the recorded run fails: {ended[0]} {ended[1]}")
    recorded = [b"".join(record) for record in relay.recorded]
    relay.close()
    plain = Watch([])
    # The memory of an undisturbed run.
    place, lines = campaign.folder("plain"), addresses(random.Random(2), 2)
    started = [start() for start in members(place, "batch", lines)]
    plain = Watch(started)
    plain.start()
    finish(started)
    base = plain.stop()
    print(f"undisturbed: {base}; limit of descriptors {limit}, {connections} connections", flush=True)
    figures = []
    cases = [(attack, target) for target in TARGETS for attack in ATTACKS] + [("wrong secret", "tensor worker")] + [(fault, "relay") for fault in ["changes", "inserts", "repeats", "drops"]]

    for number, draw in campaign.cases():
        kind, target = cases[number % len(cases)]
        place = campaign.folder("case")

        def check(watched, started, most, base=base):
            growth = most.get("anonymous", 0) - base["anonymous"]
            logged = max(len(one.stderr()) for one in started)
            figures.append({"attack": kind, "target": target, "most": most, "log_bytes": logged} | ({"connections": watched.opened, "refused": watched.refused} if watched else {}))
            if growth > MEMORY:
                raise Deviation(f"the attack takes {growth} KiB of memory: {most}")
            if logged > LOG:
                raise Deviation(f"the attack adds {logged} bytes to the log")

        def against_run():
            lines = addresses(draw, 2)
            epochs = ["train.epochs=12"]
            start = members(place, "batch", lines, ["cluster.start_timeout=60s"])
            attack = Attack(kind, lines, connections, draw.random(), recorded)
            started, watch = [], None
            try:
                started.append(start[0]())
                if target == "start-up":
                    until = time.monotonic() + 30
                    while not listening([lines[0][1]]) and time.monotonic() < until:
                        time.sleep(0.01)
                    attack.start()
                    watch = Watch(started)
                    watch.start()
                    time.sleep(draw.uniform(1, 6))
                    started.append(start[1]())
                else:
                    started.append(start[1]())
                    until = time.monotonic() + 30
                    while not (place / "run" / "metrics.jsonl").exists() and time.monotonic() < until:
                        time.sleep(0.005)
                    if left := listening([port for _, port in lines]):
                        raise Deviation(f"ports are open in training: {left}")
                    attack.start()
                    watch = Watch(started)
                    watch.start()
                ended = finish(started)
            finally:
                if attack.ident:
                    attack.stop()
                for one in started:
                    one.kill()
            most = watch.stop()
            for rank, end in enumerate(ended):
                must_succeed(end, f"rank {rank}")
            must_equal(place / "run", world / "run-batch")
            check(attack, started, most)
            return "equal"

        def with_relay():
            lines = addresses(draw, 2)
            after = int(10 ** draw.uniform(1, 5.5))
            relay = Relay(lines[0], kind, after, draw)
            started = [start() for start in members(place, "batch", lines, ["cluster.encrypt=true", "cluster.start_timeout=10s"], relay.address)]
            try:
                ended = finish(started)
            finally:
                relay.close()
                for one in started:
                    one.kill()
            if all(end.code == 0 for end in ended):
                must_equal(place / "run", world / "run-batch")
                return "equal" if relay.disturbed else "not disturbed"
            for rank, end in enumerate(ended):
                must_be_clear(end, f"rank {rank}")
                if end.code != 5:
                    raise Deviation(f"rank {rank} ends with {end.code} instead of 5: {end}")
            resumed = run(campaign.binary, place, ["run", world / "batch.toml", "--quiet", "--run-dir", place / "run", "--resume"], given.deadline)
            must_succeed(resumed, "the resumed run")
            must_equal(place / "run", world / "run-batch")
            return "ended with 5, then equal"

        def with_tensor_workers():
            [address] = addresses(draw, 1)
            address = ("127.0.0.1", address[1])
            attack = Attack(kind, [address], connections, draw.random(), recorded)
            command = ["run", world / "full.toml", "--run-dir", place / "run", "--quiet"]
            where, registers, worker = f"{address[0]}:{address[1]}", target == "tensor registration", None
            started = []
            try:
                if registers:
                    trains = Started(campaign.binary, place, [*command, *sets([f"train.tensor_workers.accept={where}"])], env=SECRET)
                    started = [trains]
                else:
                    worker = Started(campaign.binary, place, ["tensor-worker", "--listen", where], env=SECRET)
                    started = [worker]
                until = time.monotonic() + 30
                while not listening([address[1]]) and time.monotonic() < until:
                    time.sleep(0.005)
                watch = Watch(started)
                watch.start()
                if kind == "wrong secret":
                    wrong = run(campaign.binary, place, ["run", world / "full.toml", "--run-dir", place / "wrong", "--quiet", *sets([f'train.tensor_workers.hosts=["{where}"]'])], given.deadline,
                                env=SECRET | {"GNNFLOW_SECRET": "another secret of the campaign"})
                    if wrong.code == 0:
                        must_equal(place / "wrong", world / "run-full")
                    else:
                        must_be_clear(wrong, "the run with another secret")
                else:
                    attack.start()
                if registers:
                    time.sleep(draw.uniform(0, 0.5))
                    worker = Started(campaign.binary, place, ["tensor-worker", "--connect", where, "--wait", "20"], env=SECRET)
                else:
                    time.sleep(draw.uniform(1, 4))
                    trains = Started(campaign.binary, place, [*command, *sets([f'train.tensor_workers.hosts=["{where}"]'])], env=SECRET)
                ended = trains.wait(given.deadline + 120)
                if not registers and not worker.running():
                    raise Deviation(f"the tensor worker has ended: {worker.wait(1)}")
            finally:
                if attack.ident:
                    attack.stop()
                most = watch.stop()
                for one in [*started, *([worker] if worker else [])]:
                    one.kill()
            must_succeed(ended, "the run with tensor workers")
            must_equal(place / "run", world / "run-full")
            check(attack if attack.ident else None, started, most)
            return "equal"

        case = {"relay": with_relay, "start-up": against_run, "training": against_run}.get(target, with_tensor_workers)
        campaign.try_case(number, f"{kind} at {target}", case, [place])
    campaign.figures |= {"undisturbed": base, "descriptor_limit": limit, "attacks": figures}
    campaign.finish()


if __name__ == "__main__":
    main()
