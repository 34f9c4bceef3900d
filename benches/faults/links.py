#!/usr/bin/env python3
"""Disturbs the link between two hosts, or stops one of them. The run must ride it out, or name the lost rank in the configured time.

    benches/faults/links.py [--seed 1] [--count 60] [--minutes 20] [--only CASE] [--heartbeat 3]

A case is a run of one schedule with two processes by `--hosts`. Rank 1 reaches rank 0 through a relay of this script.

| kind | what happens | what must follow |
|---|---|---|
| slow | 100 ms of delay in each direction; one in ten pieces of 1,448 bytes is lost, and comes 200 ms later, twice that after each further loss | the results of an undisturbed run |
| pause | after some epochs, nothing passes the link for half of `cluster.heartbeat_timeout` | the same |
| silence | after some epochs, nothing passes any more | both end with 5 within the timeout and 5 s, and name the other rank |
| cut | after some epochs, all connections are reset | the same; with `cluster.restarts`, the results of an undisturbed run |
| stopped | after some epochs, one rank gets SIGSTOP for half of the timeout | the results of an undisturbed run |
| frozen | as `stopped`, for longer than the timeout | the other rank ends with 5 within the timeout and 5 s, and names it; with SIGCONT, it ends with 5, too |

The result is written to benches/runs/<date>-faults-links.json.
"""
import asyncio, collections, os, re, shutil, signal, statistics, threading, time

from common import Campaign, Deviation, SCHEDULES, Started, addresses, generate, listening, must_be_clear, must_be_empty, must_be_whole, must_equal, options, pipeline, sets

EPOCHS, SLOW_EPOCHS = 40, 3
KINDS = ["slow", "pause", "silence", "cut", "stopped", "frozen"]
PIECE, IN_FLIGHT = 1448, 1024
DELAY, LOSS, AGAIN = 0.1, 0.1, 0.2
MARGIN = 5.0


class Relay:
    """Forwards connections to an address."""

    def __init__(self, target, draw):
        self.target, self.draw = target, draw
        self.delay, self.loss, self.writers = 0.0, 0.0, set()
        self.loop = asyncio.new_event_loop()
        self.open, self.port = None, None
        begun = threading.Event()
        self.thread = threading.Thread(target=self.run, args=[begun], daemon=True)
        self.thread.start()
        begun.wait()

    def run(self, begun):
        async def serve():
            self.open = asyncio.Event()
            self.open.set()
            server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            begun.set()
            async with server:
                await server.serve_forever()

        try:
            self.loop.run_until_complete(serve())
        except asyncio.CancelledError:
            pass

    async def accept(self, reader, writer):
        try:
            back_reader, back_writer = await asyncio.open_connection(*self.target)
        except OSError:
            # It does not listen yet; the client tries again.
            writer.transport.abort()
            return
        self.writers |= {writer, back_writer}
        await asyncio.gather(self.forward(reader, back_writer), self.forward(back_reader, writer), return_exceptions=True)
        self.writers -= {writer, back_writer}
        for side in (writer, back_writer):
            side.close()

    async def forward(self, reader, writer):
        queue = asyncio.Queue(IN_FLIGHT)

        async def send():
            while True:
                due, data = await queue.get()
                if (wait := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                await self.open.wait()
                if not data:
                    # The other direction goes on.
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()

        sender, due = asyncio.ensure_future(send()), 0.0
        try:
            while True:
                try:
                    data = await reader.read(PIECE if self.loss else 1 << 16)
                except OSError:
                    data = b""
                late, again = 0.0, AGAIN
                while data and self.draw.random() < self.loss:
                    late, again = late + again, 2 * again
                # Later pieces wait for a lost one.
                due = max(due, time.monotonic() + self.delay + late)
                await queue.put((due, data))
                if not data:
                    break
            await sender
        except OSError:
            pass
            writer.transport.abort()
        finally:
            sender.cancel()

    def call(self, work):
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (work(), done.set()))
        done.wait()

    def silence(self):
        self.call(self.open.clear)

    def resume(self):
        self.call(self.open.set)

    def cut(self):
        self.call(lambda: [writer.transport.abort() for writer in list(self.writers)])

    def end(self):
        self.cut()
        self.call(lambda: [task.cancel() for task in asyncio.all_tasks(self.loop)])
        self.thread.join(10)


def main():
    given = options(__doc__, count=60, minutes=20.0, heartbeat=3.0)
    campaign = Campaign("links", given)
    dump = generate(campaign)
    references = {}
    for schedule, train in SCHEDULES.items():
        for slow in (False, True):
            place = campaign.folder(f"reference-{schedule}" + "-slow" * slow)
            # A step takes several round trips.
            train_slow = re.sub(r"batch = \d+", "batch = 500", train)
            pipeline(place / "p.toml", dump, (train_slow if slow else train) + "checkpoint_every = 2\n", epochs=SLOW_EPOCHS if slow else EPOCHS)
            campaign.succeed(place, "run", "p.toml", "--quiet", "--run-dir", "run")
            references[schedule, slow] = place
    named = collections.defaultdict(list)

    for number, draw in campaign.cases():
        kind, schedule = draw.choice(KINDS), draw.choice([*SCHEDULES])
        restarts = draw.choice([0, 2]) if kind == "cut" else 0
        victim, epochs, reference = draw.randrange(2), draw.randrange(1, EPOCHS // 2), references[schedule, kind == "slow"]
        place = campaign.folder("case")
        what = f"{kind}, {schedule}, {restarts} restarts, rank {victim}, after {epochs} epochs"

        def case():
            (place / "tmp").mkdir()
            shutil.copy(reference / "p.toml", place)
            shutil.copytree(reference / "dataset", place / "dataset")
            first, second = addresses(draw, 2)
            relay = Relay(first, draw)
            if kind == "slow":
                relay.delay, relay.loss = DELAY, LOSS
            line = lambda address: f"{address[0]}:{address[1]}\n"
            (place / "hosts-0").write_text(line(first) + line(second))
            (place / "hosts-1").write_text(line(("127.0.0.1", relay.port)) + line(second))
            settings = sets([f"cluster.heartbeat_timeout={given.heartbeat}s", f"cluster.restarts={restarts}", "cluster.start_timeout=20s"])
            command = ["run", place / "p.toml", "--quiet", "--run-dir", place / "run", *settings]
            members = [
                Started(campaign.binary, place, [*command, "--hosts", place / f"hosts-{rank}", "--rank", rank], temporary=place / "tmp", env={"GNNFLOW_SECRET": "a secret of the campaign"})
                for rank in range(2)
            ]
            stopped, lost = None, []
            try:
                if kind != "slow":
                    metrics, until = place / "run" / "metrics.jsonl", time.monotonic() + given.deadline
                    while not metrics.exists() or metrics.read_text().count("\n") < epochs:
                        if not all(member.running() for member in members):
                            return "ended before"
                        if time.monotonic() > until:
                            raise Deviation(f"hangs: not {epochs} epochs within {given.deadline:.0f} s")
                        time.sleep(0.001)
                begin = time.monotonic()
                if kind == "pause":
                    relay.silence()
                    time.sleep(given.heartbeat / 2)
                    relay.resume()
                elif kind == "silence":
                    relay.silence()
                    lost = [0, 1]
                elif kind == "cut":
                    relay.cut()
                    lost = [] if restarts else [0, 1]
                elif kind in ("stopped", "frozen"):
                    stopped = [members[victim].pid, *members[victim].others()]
                    for pid in stopped:
                        os.kill(pid, signal.SIGSTOP)
                    if kind == "stopped":
                        time.sleep(given.heartbeat / 2)
                        resume(stopped)
                        stopped = None
                    else:
                        lost = [1 - victim]
                ended = {}
                for rank in lost:
                    ended[rank] = members[rank].wait(given.heartbeat + MARGIN + 10)
                    if ended[rank].code != 0:
                        seconds = time.monotonic() - begin
                        named[kind].append(round(seconds, 2))
                        if seconds > given.heartbeat + MARGIN:
                            raise Deviation(f"rank {rank} names the other one only after {seconds:.1f} s: {ended[rank]}")
                if stopped:
                    resume(stopped)
                    stopped = None
                for rank, member in enumerate(members):
                    if rank not in ended:
                        ended[rank] = member.wait(given.deadline + 60 * (restarts > 0))
                for member in members:
                    member.gone()
            finally:
                if stopped:
                    resume(stopped)
                for member in members:
                    member.kill()
                relay.end()
            if left := listening([first[1], second[1]]):
                raise Deviation(f"ports are open after the end: {left}")
            must_be_empty(place / "tmp", "the temporary folder")
            must_be_whole(place / "run")
            if lost and any(end.code != 0 for end in ended.values()):
                for rank, end in ended.items():
                    # A rank that is done before the others notice has ended well.
                    if end.code == 0:
                        continue
                    must_be_clear(end, f"rank {rank}", 1)
                    if end.code != 5:
                        raise Deviation(f"rank {rank} ends with {end.code} instead of 5: {end}")
                    if rank in lost and f"rank {1 - rank}" not in end.stderr:
                        raise Deviation(f"rank {rank} does not name the other one: {end}")
                return "named"
            if any(end.code != 0 for end in ended.values()):
                raise Deviation("; ".join(f"rank {rank}: {end}" for rank, end in sorted(ended.items())))
            must_equal(place / "run", reference / "run")
            return "equal"

        outcome = campaign.try_case(number, what, case, [place])
        named[f"outcomes of {kind}"].append(outcome)
    campaign.figures["outcomes_by_kind"] = {key.removeprefix("outcomes of "): dict(collections.Counter(found)) for key, found in sorted(named.items()) if key.startswith("outcomes")}
    campaign.figures["seconds_until_named"] = {
        kind: {"cases": len(found), "median": statistics.median(found), "most": max(found)} for kind, found in sorted(named.items()) if not kind.startswith("outcomes")
    }
    campaign.figures["heartbeat_timeout"] = given.heartbeat
    campaign.finish()


def resume(pids):
    """Sends SIGCONT to processes that may have ended."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    main()
