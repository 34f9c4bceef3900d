#!/usr/bin/env python3
"""Fills the file system at random moments of commands. They must say so, and must go on when there is space again.

    benches/faults/disk_full.py [--seed 1] [--count 40] [--minutes 15] [--only CASE]

Needs `unshare -rm` (a namespace in which a tmpfs can be mounted). A case runs prepare, run (also with learned rows, in several processes, and with layers in files), infer, refresh, update, follow,
export or generate in a small tmpfs, with all temporary files. Either the free space is a random share of what the command needs, or a file takes all free space at a random moment. The command must end with exit code 4 and
one error that names a path. Then the space is freed, and the same command (`run` with --resume) must have the results and files of an undisturbed one. The result is written to benches/runs/<date>-faults-disk-full.json.
"""
import collections, os, shutil, subprocess, sys, time

INSIDE = "GNNFLOW_FAULTS_NAMESPACE"
if __name__ == "__main__" and INSIDE not in os.environ and not {"-h", "--help"} & set(sys.argv):
    os.execvpe("unshare", ["unshare", "-rm", sys.executable, *sys.argv], os.environ | {INSIDE: "1"})

from bits import batches  # noqa: E402
from common import (Campaign, Deviation, SCHEDULES, Started, digest, generate, must_be_clear, must_be_whole, must_succeed, names,  # noqa: E402
                    options, pipeline)

LARGE = 1 << 30


class Disk:
    """A small file system, and a file that takes its space."""

    def __init__(self, path):
        self.path, self.ballast = path, path / "ballast"
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={LARGE}", "tmpfs", path], check=True)

    def used(self):
        of = os.statvfs(self.path)
        return (of.f_blocks - of.f_bfree) * of.f_frsize

    def leave(self, free):
        """Takes all space but `free` bytes."""
        with open(self.ballast, "wb") as file:
            while True:
                room = os.statvfs(self.path)
                take = room.f_bfree * room.f_frsize - free
                if take <= 0:
                    return
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, take)
                except OSError:
                    # The program has just taken some.
                    continue

    def clear(self):
        for path in self.path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


class Work:
    """A command, the folders that it begins with, and how it continues."""

    def __init__(self, name, command, needs=(), again=()):
        self.name, self.command, self.needs, self.again = name, command, needs, again


def works():
    run = ["run", "p.toml", "--quiet", "--run-dir", "run"]
    traced = ["--set", "train.trace=true", "--set", "train.checkpoint_every=1"]
    for schedule in SCHEDULES:
        path = ["run", f"{schedule}.toml", "--quiet", "--run-dir", "run", *traced]
        yield Work(f"run {schedule}", path, ["dataset"], ["--resume"])
        yield Work(f"run {schedule}, 2 processes", [*path, "--processes", "2"], ["dataset"], ["--resume"])
    yield Work("run with layers in files", ["run", "mini-batch.toml", "--quiet", "--run-dir", "run", "--set", "train.memory=128MiB"], ["dataset"], ["--resume"])
    yield Work("run with preparation", ["run", "prepare.toml", "--quiet", "--run-dir", "run"], [], ["--resume"])
    for more in [[], ["--processes", "2"]]:
        text = ", 2 processes" if more else ""
        yield Work(f"run learned rows{text}", ["run", "learned.toml", "--quiet", "--run-dir", "run", "--set", "train.checkpoint_every=1", *more], ["learned-dataset"], ["--resume"])
        yield Work(f"prepare{text}", ["prepare", "prepare.toml", "--quiet", *more])
        yield Work(f"prepare with little memory{text}", ["prepare", "prepare.toml", "--quiet", "--set", "partition.memory=96MiB", *more])
        yield Work(f"infer{text}", ["infer", "model", "--dataset", "dataset", "--out", "out", "--set", "infer.embeddings=true", "--quiet", *more], ["dataset", "model"])
        yield Work(f"first refresh{text}", ["refresh", "model", "--dataset", "dataset", "--out", "out", "--quiet", *more], ["dataset", "model"])
        yield Work(f"refresh{text}", ["refresh", "model", "--dataset", "dataset", "--out", "out", "--quiet", *more], ["dataset", "dataset.layers", "model", "out"])
        yield Work(f"follow{text}", ["follow", "model", "--changes", "incoming", "--dataset", "dataset", "--out", "followed", "--once", "--store-every", "2", "--quiet", *more], ["plain/dataset", "incoming", "model"])
    yield Work("update", ["update", "dataset", "--batches", "incoming", "--quiet"], ["plain/dataset", "incoming"])
    yield Work("update to another folder", ["update", "dataset", "--batches", "incoming", "--out", "updated", "--quiet"], ["plain/dataset", "incoming"])
    yield Work("export", ["export", "dataset", "--out", "out", "--quiet"], ["dataset"])
    yield Work("generate", ["generate", "planted", "--out", "out", "--nodes", "3000", "--edges", "20000", "--features", "16", "--quiet"])
    yield Work("import", ["import", "text", "edges.txt", "--out", "out", "--header", "no", "--quiet"], ["edges.txt"])


def prepare_world(campaign):
    world = campaign.folder("world")
    succeed = lambda *arguments: campaign.succeed(world, *arguments)
    dump, bare = generate(campaign), generate(campaign, features=0, name="bare")
    for name, source, model in [("prepare", dump, ""), ("learned-first", bare, "embedding = { dim = 16 }\n")]:
        pipeline(world / f"{name}.toml", source, SCHEDULES["mini-batch"], dataset="learned-dataset" if model else "dataset", model=model, epochs=4)
    text = (world / "learned-first.toml").read_text().replace("halo = 'features'\n", "")
    (world / "learned-first.toml").write_text(text)
    succeed("prepare", "prepare.toml", "--quiet")
    succeed("prepare", "learned-first.toml", "--quiet")
    (world / "learned.toml").write_text("[graph]\ndataset = 'learned-dataset'\n[model]" + text.split("[model]", 1)[1])
    for schedule, train in SCHEDULES.items():
        pipeline(world / "all.toml", dump, train, epochs=8)
        (world / f"{schedule}.toml").write_text("[graph]\ndataset = 'dataset'\n[model]" + (world / "all.toml").read_text().split("[model]", 1)[1])
    succeed("run", "mini-batch.toml", "--quiet", "--run-dir", "model")
    shutil.copytree(world / "dataset", world / "plain" / "dataset")
    batches(world, dump)
    succeed("refresh", "model", "--dataset", "dataset", "--out", "out", "--quiet")
    succeed("update", "dataset", "--edges", "incoming/0001/edges.parquet", "--quiet")
    (world / "edges.txt").write_text("".join(f"{number} {number * number % 9973}\n" for number in range(40000)))
    return world


def content(place):
    """Returns the hashes of all files that do not depend on times."""
    words = {"summary.json", "status.json", "metrics.jsonl", "report.html", "partition.html", "affected.parquet", "ballast", "manifest.json", "partition.json", "p.toml"}
    found = {}
    for path in place.rglob("*"):
        name = str(path.relative_to(place))
        if path.is_file() and path.name not in words and not path.name.startswith("events.out") and not name.startswith(("temporary", "dataset.layers", "run/trace", "run/earlier", "run/checkpoints")) and path.suffix != ".toml":
            found[name] = digest(path)
    return found


def main():
    given = options(__doc__, count=40, minutes=15.0)
    campaign = Campaign("disk-full", given)
    world, disk = prepare_world(campaign), Disk(campaign.scratch / "disk")
    all_works, undisturbed, paths = list(works()), {}, collections.Counter()

    def set_up(work):
        disk.clear()
        (disk.path / "temporary").mkdir()
        for name in work.needs:
            source = world / name
            shutil.copytree(source, disk.path / source.name) if source.is_dir() else shutil.copy(source, disk.path)
        for path in world.glob("*.toml"):
            shutil.copy(path, disk.path)

    def start(command):
        return Started(campaign.binary, disk.path, command, temporary=disk.path / "temporary")

    def measure(work):
        """Returns the space before, the most space, the seconds, and the results of an undisturbed command."""
        if work.name in undisturbed:
            return undisturbed[work.name]
        set_up(work)
        before = most = disk.used()
        begin, started = time.monotonic(), start(work.command)
        while started.running():
            most = max(most, disk.used())
            time.sleep(0.0005)
        ended = started.wait(given.deadline)
        if ended.code:
            sys.exit(f"error: {work.name} fails without a disturbance: {ended}")
        seconds = time.monotonic() - begin
        undisturbed[work.name] = before, max(most, disk.used()), seconds, content(disk.path), names(disk.path)
        return undisturbed[work.name]

    for number, draw in campaign.cases():
        # All commands before one of them is repeated.
        work = all_works[number % len(all_works)]
        at_once = draw.random() < 0.6
        share = draw.uniform(0.0, 0.97)
        what = f"{work.name}: " + (f"{share:.2f} of the space" if at_once else f"full after {share:.2f} of the time")

        def case():
            before, most, seconds, right, right_names = measure(work)
            set_up(work)
            if at_once:
                disk.leave(int(share * (most - before)))
            started = start(work.command)
            if not at_once:
                time.sleep(share * seconds)
                disk.leave(0)
            ended = started.wait(given.deadline)
            started.gone()
            full = ended.code != 0
            if full:
                must_be_clear(ended)
                if ended.code != 4:
                    raise Deviation(f"ends with {ended.code} instead of 4: {ended}")
                if "No space left" not in ended.stderr and "space" not in ended.stderr:
                    raise Deviation(f"does not say that there is no space: {ended}")
                if "/" not in ended.stderr.replace("gnnflow/", ""):
                    raise Deviation(f"names no path: {ended}")
                paths[ended.stderr.split("error:", 1)[1].strip().replace(str(disk.path), "").split(":")[0][:80]] += 1
            disk.ballast.unlink(missing_ok=True)
            if full:
                must_be_whole(disk.path)
                if left := names(disk.path / "temporary"):
                    raise Deviation(f"temporary files are left: {left}")
                again = start([*work.command, *work.again])
                ended = again.wait(given.deadline)
                again.gone()
                must_succeed(ended, "the command with free space")
            if (found := content(disk.path)) != right:
                differing = sorted(key for key in {*found, *right} if found.get(key) != right.get(key))
                raise Deviation(f"other results: {', '.join(differing)[:500]}")
            # Without a checkpoint, --resume begins anew, and keeps the files of the failed run.
            if (found := [name for name in names(disk.path) if not name.startswith("run/earlier")]) != right_names:
                raise Deviation(f"other files: more {sorted({*found} - {*right_names})}, fewer {sorted({*right_names} - {*found})}")
            return "full, then equal" if full else "not full"

        campaign.try_case(number, what, case, [disk.path])
    campaign.figures["commands"] = len(all_works)
    campaign.figures["paths"] = dict(paths.most_common(40))
    subprocess.run(["umount", disk.path], check=True)
    campaign.finish()


if __name__ == "__main__":
    main()
