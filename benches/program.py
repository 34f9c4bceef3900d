"""What benches in Python share: the program, built, and a result file that says where and on what it was measured."""
import datetime, json, os, pathlib, platform, subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
CORES = os.cpu_count()


def build():
    """The program, built as users build it."""
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "gnnflow"


def sets(settings):
    """Arguments that set keys."""
    return [word for setting in settings for word in ("--set", setting)]


def about(bench):
    """The first lines of a result: what, when, of which commit, on which machine."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()
    return {"bench": bench, "date": datetime.date.today().isoformat(), "commit": commit,
            "machine": {"cores": CORES, "architecture": platform.machine()}, "load_after": os.getloadavg()[0]}


def write(result, name, out=None):
    """Writes a result to `out`, else to benches/runs/<date>-<name>.json; where it is."""
    path = pathlib.Path(out or ROOT / "benches" / "runs" / f"{result['date']}-{name}.json")
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path
