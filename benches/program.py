"""Common code of the Python benches: the built program, and result files with machine, commit and date."""
import datetime, json, os, pathlib, platform, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parents[1]
CORES = os.cpu_count()


def build(*options):
    """Builds the release program and returns its path; GNNFLOW_BINARY names one that is already built."""
    if binary := os.environ.get("GNNFLOW_BINARY"):
        return pathlib.Path(binary).resolve()
    subprocess.run(["cargo", "build", "--release", "--quiet", *options], cwd=ROOT, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "gnnflow"


def timed(binary, *arguments):
    """Runs the program, which must succeed. Returns its seconds and its stdout."""
    begin = time.perf_counter()
    done = subprocess.run([binary, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(map(str, arguments))}: exit code {done.returncode}: {done.stderr.strip()}")
    return time.perf_counter() - begin, done.stdout


def sets(settings):
    """Returns `--set` arguments for settings."""
    return [word for setting in settings for word in ("--set", setting)]


def about(bench):
    """Returns the first fields of a result: bench, date, commit, machine."""
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()
    return {"bench": bench, "date": datetime.date.today().isoformat(), "commit": commit,
            "machine": {"cores": CORES, "architecture": platform.machine(), "cpu": names[0] if names else None}, "load_after": os.getloadavg()[0]}


def write(result, name, out=None):
    """Writes a result to `out`, or to benches/runs/<date>-<name>.json. Returns the path."""
    path = pathlib.Path(out or ROOT / "benches" / "runs" / f"{result['date']}-{name}.json")
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path
