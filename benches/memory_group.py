"""A memory limit that the kernel enforces; needs root."""
import pathlib, subprocess, sys, time


class Group:
    """A memory control group."""

    def __init__(self, limit):
        if pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists():
            self.path, names = pathlib.Path("/sys/fs/cgroup/gnnflow-bench"), ("memory.max", "memory.peak")
        else:
            self.path = pathlib.Path("/sys/fs/cgroup/memory/gnnflow-bench")
            names = ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
        self.limit, self.peak = names
        if self.path.exists():
            self.path.rmdir()
        self.path.mkdir()
        (self.path / self.limit).write_text(str(limit))

    def inside(self, command):
        return ["bash", "-c", f"echo $$ > '{self.path}/cgroup.procs'; exec \"$@\"", "-", *map(str, command)]

    def until(self, command, done, deadline):
        """Runs a command, and ends it when `done` returns true or after `deadline` seconds. Returns seconds and peak bytes."""
        begin = time.perf_counter()
        running = subprocess.Popen(self.inside(command), stderr=subprocess.DEVNULL)
        while not done() and running.poll() is None and time.perf_counter() - begin < deadline:
            time.sleep(0.2)
        seconds, peak = time.perf_counter() - begin, int((self.path / self.peak).read_text())
        running.terminate()
        running.wait()
        time.sleep(0.5)
        self.path.rmdir()
        return seconds, peak

    def run(self, command):
        inside = self.inside(command)
        begin = time.perf_counter()
        done = subprocess.run(inside, stderr=subprocess.PIPE, text=True)
        seconds, peak = time.perf_counter() - begin, int((self.path / self.peak).read_text())
        self.path.rmdir()
        if done.returncode:
            sys.exit(f"error: {' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr.strip()}")
        return seconds, peak


def size(text):
    for unit, scale in [("GiB", 30), ("MiB", 20)]:
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * 2**scale)
    sys.exit(f"error: {text} is no size in MiB or GiB")
