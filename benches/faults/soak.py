#!/usr/bin/env python3
"""Lets runs go on for long: memory, file descriptors and threads of all processes must not grow.

    benches/faults/soak.py [--minutes 30] [--schedules mini-batch,full-graph] [--processes 2] [--every 5]

The time is divided among the schedules. Each run writes checkpoints, also within epochs. Every few seconds, the memory (RSS, and RSS without mapped files), descriptors and threads of each process are noted. The first quarter is
warm-up. The median of the last quarter may be larger than that of the second one by 5 % and 4 MiB of memory, and by no descriptor and no thread. At the end, the run gets SIGTERM and must leave a checkpoint and nothing else. The result is
written to benches/runs/<date>-faults-soak.json.
"""
import json, signal, statistics, time

from common import SCHEDULES, Campaign, Deviation, Started, generate, must_be_empty, must_be_whole, must_succeed, options, pipeline, run, usage


def main():
    given = options(__doc__, count=100, minutes=30.0, schedules="mini-batch,full-graph", processes=2, every=5.0)
    campaign = Campaign("soak", given)
    schedules = given.schedules.split(",")
    dump = generate(campaign)
    samples_of = {}
    given.count, minutes, given.minutes = len(schedules), given.minutes, 10.0**6
    for number, _ in campaign.cases():
        schedule, place = schedules[number], campaign.folder(schedules[number])

        def case():
            (place / "tmp").mkdir()
            every = "checkpoint_every = '25 steps'\n" if schedule == "mini-batch" else "checkpoint_every = 5\n"
            pipeline(place / "p.toml", dump, SCHEDULES[schedule] + every + "checkpoint_on_signal = true\n", epochs=1_000_000)
            started = Started(campaign.binary, place, ["run", "p.toml", "--quiet", "--run-dir", "run", "--processes", given.processes], temporary=place / "tmp")
            samples, begin = {}, time.monotonic()
            try:
                while (now := time.monotonic() - begin) < 60 * minutes / len(schedules):
                    time.sleep(min(given.every, 60 * minutes / len(schedules) - now + 0.01))
                    if not started.running():
                        raise Deviation(f"ends by itself: {started.wait(1)}")
                    for rank, pid in enumerate([started.pid, *started.others()]):
                        if seen := usage(pid):
                            samples.setdefault(f"process {rank}", []).append({"seconds": round(time.monotonic() - begin, 1)} | seen)
                started.send(signal.SIGTERM)
                ended = started.wait(given.deadline)
                started.gone()
            finally:
                started.kill()
            trained = (place / "run" / "metrics.jsonl").read_text().count("\n")
            samples_of[schedule] = {"epochs": trained, "processes": samples}
            if ended.code != 130:
                raise Deviation(f"ends with {ended.code} instead of 130 after SIGTERM: {ended}")
            must_be_empty(place / "tmp", "the temporary folder")
            must_be_whole(place / "run")
            grown = []
            for process, all_samples in samples.items():
                quarter = len(all_samples) // 4
                early, late = all_samples[quarter:2 * quarter], all_samples[-quarter:]
                if not quarter:
                    raise Deviation("too few samples; use more --minutes or a smaller --every")
                for key, room in [("rss", 4096), ("anonymous", 4096), ("descriptors", 0), ("threads", 0)]:
                    before, after = (statistics.median(sample[key] for sample in part) for part in (early, late))
                    if after > before * (1.05 if room else 1) + room:
                        grown.append(f"{process}: {key} from {before} to {after}")
                print(f"{schedule}, {process}: " + ", ".join(f"{key} {early[0][key]} to {late[-1][key]}" for key in ["rss", "anonymous", "descriptors", "threads"]), flush=True)
            if grown:
                raise Deviation("; ".join(grown))
            more = run(campaign.binary, place, ["run", "p.toml", "--quiet", "--run-dir", "run", "--resume", "--set", f"train.epochs={trained + 2}"], given.deadline, temporary=place / "tmp")
            must_succeed(more, "the resumed run")
            return "flat"

        campaign.try_case(number, schedule, case, [place])
    thin = lambda all_samples: all_samples[:: max(1, len(all_samples) // 60)]
    campaign.figures["schedules"] = {
        schedule: {"epochs": about["epochs"], "processes": {process: thin(all_samples) for process, all_samples in about["processes"].items()}} for schedule, about in samples_of.items()
    }
    campaign.finish()


if __name__ == "__main__":
    main()
