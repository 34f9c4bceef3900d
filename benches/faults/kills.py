#!/usr/bin/env python3
"""Kills processes of runs with SIGKILL at random moments. The results must be those of an uninterrupted run.

    benches/faults/kills.py [--seed 1] [--count 100] [--minutes 20] [--only CASE]

A case is a run of one schedule (or with learned rows), with 2 or 4 processes by `--processes` or `--hosts`, with or without `cluster.restarts`, with
checkpoints after each epoch or after 5 steps. It has one to three lives. In each, a rank, a parent or a supervisor is killed: at the start,
while the dataset is prepared, after a number of epochs, while a checkpoint is written, in inference, or at any time. A command with restarts must succeed if a rank is killed; any other one
must end with exit code 5 and one error. Then the run is resumed with another number of processes. At the end, its results, its files and those of the dataset must be those of an uninterrupted run, and
no process, listening port, temporary file or half-written file may be left. The result is written to benches/runs/<date>-faults-kills.json.
"""
import collections, os, random, shutil, signal, time

from common import (Campaign, Deviation, SCHEDULES, Started, addresses, generate, listening, must_be_clear, must_be_empty, must_be_same_dataset, must_be_whole, must_equal,
                    must_have_names, must_succeed, options, pipeline, run, sets)

EPOCHS = 10
# Kinds with checkpoints within epochs.
WITHIN = ("mini-batch", "learned rows")
MOMENTS = ["any time", "start", "epoch", "checkpoint", "inference"]


class Life:
    """One start of a run: a command for all processes, or one for each host."""

    def __init__(self, campaign, place, settings, processes, hosts, resume, draw):
        self.hosts, self.members, self.victims, self.place = hosts, [], [], place
        arguments = ["run", place / "p.toml", "--quiet", "--run-dir", place / "run", *sets(settings)] + ["--resume"] * resume
        more = {"temporary": place / "tmp"}
        if not hosts:
            self.ports = []
            self.members.append(Started(campaign.binary, place, [*arguments, "--processes", processes], **more))
            return
        lines = addresses(draw, processes)
        self.ports = [port for _, port in lines]
        (place / "hosts").write_text("".join(f"{host}:{port}\n" for host, port in lines))
        for rank in range(processes):
            # Members do not start at the same moment.
            time.sleep(draw.choice([0, 0, 0.02, 0.1]))
            more["env"] = {"GNNFLOW_SECRET": "a secret of the campaign"}
            self.members.append(Started(campaign.binary, place, [*arguments, "--hosts", place / "hosts", "--rank", rank], **more))

    def running(self):
        return any(member.running() for member in self.members)

    def wait_for(self, done, within):
        """Waits until `done` returns true. Returns false when the run ends before."""
        until = time.monotonic() + within
        while not done():
            if not self.running():
                return False
            if time.monotonic() > until:
                raise Deviation(f"hangs: no such moment within {within:.0f} s")
            time.sleep(0.0005)
        return True

    def kill(self, kind, draw):
        """Kills a command, or a process that it has started. Returns what was killed, or nothing if it has ended."""
        member = draw.choice(self.members)
        children = member.others()
        if kind == "rank" and children:
            victim, kind = draw.choice(children), "rank"
        else:
            victim, kind = member.pid, "member" if self.hosts and not children else "supervisor" if self.hosts else "parent"
        if not member.running():
            return None
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return None
        self.victims.append(member if victim == member.pid else None)
        return kind

    def end(self, restarts, killed, deadline):
        """Waits for the end and checks exit codes and errors. Returns whether the run is complete."""
        ended = [member.wait(deadline) for member in self.members]
        for member in self.members:
            member.gone()
        if left := listening(self.ports):
            raise Deviation(f"ports are open after the end: {left}")
        for rank, (member, end) in enumerate(zip(self.members, ended)):
            if member in self.victims:
                continue
            if end.code == 0:
                continue
            must_be_clear(end, f"command {rank}", 1 + restarts)
            if not killed:
                raise Deviation(f"command {rank} fails without a kill: {end}")
            if end.code != 5:
                raise Deviation(f"command {rank} ends with {end.code} instead of 5 after the kill of a {killed}: {end}")
            # A rank that is killed after the others have ended finds no other process; the results are complete then.
            if restarts and killed == "rank" and ended[0].code != 0:
                raise Deviation(f"command {rank} has restarts and ends after the kill of a rank: {end}")
        return all(end.code == 0 for end in ended)


def moment(life, kind, place, draw, seconds, deadline):
    """Waits for a moment. Returns false when the run ends before."""
    metrics, checkpoints = place / "run" / "metrics.jsonl", place / "run" / "checkpoints"
    trained = lambda: metrics.read_text().count("\n") if metrics.exists() else 0
    if kind == "start":
        time.sleep(draw.uniform(0, 0.25))
        return life.running()
    if kind == "any time":
        time.sleep(draw.uniform(0, seconds))
        return life.running()
    if kind == "checkpoint":
        # The folder changes when a temporary file appears, and when it gets its name.
        changes, state = draw.randrange(1, 2 * EPOCHS), lambda: os.stat(checkpoints).st_mtime_ns if checkpoints.exists() else 0
        last = [state(), 0]

        def changed():
            now = state()
            if now != last[0]:
                last[:] = [now, last[1] + 1]
            return last[1] >= changes

        met = life.wait_for(changed, deadline)
        time.sleep(draw.choice([0, 0, 0.0005, 0.002]))
        return met
    number = EPOCHS if kind == "inference" else draw.randrange(1, EPOCHS)
    met = life.wait_for(lambda: trained() >= number, deadline)
    time.sleep(draw.uniform(0, 0.15 if kind == "inference" else 0.03))
    return met


def main():
    given = options(__doc__, count=100, minutes=20.0)
    campaign = Campaign("kills", given)
    dump, bare = generate(campaign), generate(campaign, features=0, name="bare")
    kinds, seconds = [*SCHEDULES, "learned rows"], {}
    references = {}
    for kind, within in [(kind, within) for kind in kinds for within in (False, True) if not within or kind in WITHIN]:
        place = campaign.folder(f"reference-{kind.replace(' ', '-')}" + "-5-steps" * within)
        every = "'5 steps'" if within else "1"
        train = SCHEDULES["mini-batch" if kind == "learned rows" else kind] + f"checkpoint_every = {every}\n"
        learned = kind == "learned rows"
        pipeline(place / "p.toml", bare if learned else dump, train, model="embedding = { dim = 8 }\n" if learned else "", partition="", epochs=EPOCHS)
        if learned:
            text = (place / "p.toml").read_text().replace("halo = 'features'\n", "")
            (place / "p.toml").write_text(text)
        campaign.succeed(place, "run", "p.toml", "--quiet", "--run-dir", "run")
        begin = time.monotonic()
        campaign.succeed(place, "run", "p.toml", "--quiet", "--run-dir", "again", "--processes", 2)
        seconds[kind] = time.monotonic() - begin
        must_equal(place / "again", place / "run")
        references[kind, within] = place
    killed_counts = collections.Counter()
    print(f"references: {({kind: round(value, 2) for kind, value in seconds.items()})}", flush=True)

    for number, draw in campaign.cases():
        kind, processes, hosts = draw.choice(kinds), draw.choice([2, 4]), draw.random() < 0.4
        restarts = draw.choice([0, 0, 2])
        within = kind in WITHIN and draw.random() < 0.5
        lives, fresh = draw.choice([1, 1, 2, 3]), draw.random() < 0.3
        reference, place = references[kind, within], campaign.folder("case")
        what = f"{kind}, {processes} processes by --{'hosts' if hosts else 'processes'}, {restarts} restarts, {lives} lives" + ", 5 steps" * within + ", prepares" * fresh

        def case():
            (place / "tmp").mkdir()
            shutil.copy(reference / "p.toml", place)
            if not fresh:
                shutil.copytree(reference / "dataset", place / "dataset")
            settings = [f"cluster.restarts={restarts}", "cluster.start_timeout=20s"]
            landed = 0
            for life in range(lives):
                count = processes if life == 0 else draw.choice([2, 4])
                running = Life(campaign, place, settings, count, hosts, life > 0, draw)
                try:
                    when = "any time" if fresh and life == 0 else draw.choice(MOMENTS)
                    victim = draw.choice(["rank", "rank", "parent"] if not (hosts and restarts) else ["rank"] * 5 + ["parent"])
                    killed = None
                    if moment(running, when, place, draw, 1.2 * seconds[kind] + (0.5 if fresh else 0), given.deadline):
                        killed = running.kill(victim, draw)
                    if killed:
                        landed += 1
                        killed_counts[f"{kind}: {killed}, {when}"] += 1
                    complete = running.end(restarts, killed, given.deadline + (60 if hosts and restarts else 0))
                finally:
                    for member in running.members:
                        member.kill()
                if (place / "run").exists():
                    must_be_whole(place / "run")
                if (place / "dataset").exists():
                    must_be_whole(place / "dataset")
                if complete:
                    break
            if not complete:
                ended = run(campaign.binary, place, ["run", "p.toml", "--quiet", "--run-dir", "run", "--resume", "--processes", draw.choice([1, 2, 4]), *sets(settings)],
                            given.deadline, temporary=place / "tmp")
                must_succeed(ended, "the resumed run")
            must_equal(place / "run", reference / "run")
            must_have_names(place / "run", reference / "run", "the run folder")
            must_be_same_dataset(place / "dataset", reference / "dataset", "the dataset")
            must_be_empty(place / "tmp", "the temporary folder")
            beside = sorted(path.name for path in place.iterdir() if path.name not in {"tmp", "p.toml", "hosts", "run", "dataset"})
            if beside:
                raise Deviation(f"files are left beside the run folder: {beside}")
            return f"equal after {landed} kills" if landed else "no kill before the end"

        campaign.try_case(number, what, case, [place])
    campaign.figures["kills"] = dict(sorted(killed_counts.items()))
    campaign.figures["landed"] = sum(killed_counts.values())
    campaign.finish()


if __name__ == "__main__":
    main()
