#!/usr/bin/env python3
"""Starts and stops commands hundreds of times in a row: nothing may be left, and exit codes must be right.

    benches/faults/start_stop.py [--seed 1] [--count 300] [--minutes 20] [--only CASE]

A case runs a schedule in 1, 2 or 4 processes or on two hosts, prepares, infers, follows, or starts a tensor worker. It ends by itself, or by SIGTERM or SIGINT at a random moment: to the command alone, to all
its processes as by Ctrl-C, or to one host. The receiver must end with 130, another host with 5 (or 0 if it was done), and a command that ends by itself with 0. Before the program has set up its handler,
in its first milliseconds, a signal ends it as any other program; such ends are counted. Processes, listening ports and half-written files may not be left, nor temporary files after the next start of the same command. The result is written to
benches/runs/<date>-faults-start-stop.json.
"""
import collections, os, signal, time

from common import (Campaign, Deviation, SCHEDULES, Started, addresses, generate, listening, must_be_clear, must_be_empty, must_be_whole, must_equal, must_succeed, names, options, pipeline, run)

KINDS = [*SCHEDULES, "hosts", "hosts", "prepare", "infer", "follow", "tensor worker"]
LONG = "train.epochs=100000"
# A signal within this time after the start may come before the handler.
EARLY = 0.25


def main():
    given = options(__doc__, count=300, minutes=20.0)
    campaign = Campaign("start-stop", given)
    dump = generate(campaign)
    world = campaign.folder("world")
    for schedule, train in SCHEDULES.items():
        pipeline(world / f"{schedule}.toml", dump, train + "checkpoint_every = 1\n", dataset=world / "dataset")
        campaign.succeed(world, "run", f"{schedule}.toml", "--quiet", "--run-dir", f"run-{schedule}")
    (world / "incoming").mkdir()
    codes, leftovers = collections.Counter(), collections.Counter()

    def temporary(place):
        """Returns the temporary files in the folder of a case. A later preparation continues with those of an earlier one."""
        return [name for name in names(place) if "/.tmp" in f"/{name}" or "/.gnnflow-" in f"/{name}" or "scratch" in name or ".out.tmp" in name]

    def commands(kind, draw, place, endless):
        """Returns arguments and environment of each command, and the ports. The commands take long if they are `endless`."""
        out, secret = place / "out", {"GNNFLOW_SECRET": "a secret of the campaign"}
        long = ["--set", LONG] if endless else []
        if kind in SCHEDULES:
            return [(["run", world / f"{kind}.toml", "--quiet", "--run-dir", out, "--processes", draw.choice([1, 2, 4]), *long], {})], []
        if kind == "hosts":
            lines = addresses(draw, 2)
            (place / "hosts").write_text("".join(f"{host}:{port}\n" for host, port in lines))
            long += ["--set", f"cluster.restarts={draw.choice([0, 2])}", "--set", "cluster.start_timeout=10s"]
            command = ["run", world / "mini-batch.toml", "--quiet", "--run-dir", out, *long, "--hosts", place / "hosts"]
            return [([*command, "--rank", rank], secret) for rank in range(2)], [port for _, port in lines]
        if kind == "prepare":
            return [(["prepare", world / "mini-batch.toml", "--quiet", "--out", out, "--processes", draw.choice([1, 2])], {})], []
        if kind == "infer":
            return [(["infer", world / "run-mini-batch", "--dataset", world / "dataset", "--out", out, "--quiet", "--processes", draw.choice([1, 2])], {})], []
        if kind == "follow":
            once = [] if endless else ["--once"]
            command = ["follow", world / "run-mini-batch", "--changes", world / "incoming", "--dataset", world / "dataset", "--layers", place / "layers", "--out", out, "--quiet", *once]
            return [(command, {})], []
        [(_, port)] = addresses(draw, 1)
        return [(["tensor-worker", "--listen", f"127.0.0.1:{port}", "--quiet"], secret)], [port]

    for number, draw in campaign.cases():
        kind = draw.choice(KINDS)
        ends = kind != "tensor worker" and draw.random() < 0.25
        number_sent, target, pause = draw.choice([signal.SIGTERM, signal.SIGINT]), draw.choice(["command", "command", "group", "one"]), draw.choice([draw.uniform(0, 0.4), draw.uniform(0, 1.5)])
        endless = not ends and kind not in ("prepare", "infer")
        place = campaign.folder("case")
        what = f"{kind}: " + ("ends" if ends else f"{number_sent.name} to {target} after {pause:.3f} s")

        def case():
            (place / "tmp").mkdir()
            todo, ports = commands(kind, draw, place, endless)
            started = [Started(campaign.binary, place, words, temporary=place / "tmp", env=env) for words, env in todo]
            receivers = []
            try:
                if not ends:
                    time.sleep(pause)
                    receivers = started[:1] if target == "one" else started
                    for one in receivers:
                        if target == "group":
                            try:
                                os.killpg(one.pid, number_sent)
                            except ProcessLookupError:
                                pass
                        else:
                            one.send(number_sent)
                ended = [one.wait(given.deadline) for one in started]
                for one in started:
                    one.gone()
            finally:
                for one in started:
                    one.kill()
            early, silent = False, []
            for one, end in zip(started, ended):
                codes[f"{'ends' if ends else 'receiver' if one in receivers else 'other host'}: {end.code}"] += 1
                if end.code == 0 and (ends or not endless):
                    continue
                if not ends and end.code == -number_sent and pause < EARLY:
                    early = True
                    continue
                wanted = {130} if one in receivers else {5, 130}
                if ends or end.code not in wanted:
                    raise Deviation(f"ends with {end.code} instead of {0 if ends else sorted(wanted)}: {end}")
                if end.code == 130 and not end.stderr:
                    silent.append(one)
                else:
                    must_be_clear(end, attempts=3)
            if left := listening(ports):
                raise Deviation(f"ports are open after the end: {left}")
            must_be_empty(place / "tmp", "the temporary folder")
            must_be_whole(place)
            left = temporary(place)
            if left:
                # A signal leaves them only until the next start.
                words, env = todo[0]
                again = ["train.epochs=2" if word == LONG else word for word in map(str, words)]
                again += ["--once"] * (kind == "follow" and endless)
                if kind == "hosts":
                    at = again.index("--hosts")
                    again = [*again[:at], *again[at + 2:-2]]
                must_succeed(run(campaign.binary, place, again, given.deadline, temporary=place / "tmp", env=env), "the next start")
                if after := temporary(place):
                    raise Deviation(f"temporary files are left after the next start: {after}")
                leftovers[f"{kind}: {'early' if early else 'later'}"] += 1
            if ends and kind in SCHEDULES:
                must_equal(place / "out", world / f"run-{kind}")
            return "early" if early else "stopped without a line" if silent else "ended" if all(end.code == 0 for end in ended) else "stopped"

        campaign.try_case(number, what, case, [place])
    campaign.figures["codes"] = dict(sorted(codes.items()))
    campaign.figures["temporary_files_until_the_next_start"] = dict(leftovers)
    campaign.finish()


if __name__ == "__main__":
    main()
