"""Common code of the fault campaigns: options, cases with seeds, processes with deadlines, comparison of folders, and the result file."""
import argparse, collections, hashlib, json, os, pathlib, random, re, resource, shutil, signal, socket, subprocess, sys, tempfile, time, uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from program import about, build, sets, write  # noqa: E402

MARK = "GNNFLOW_FAULTS_CASE"
# Words that only a panic prints.
PANIC = re.compile(r"panicked|RUST_BACKTRACE|internal error|this is a bug")
# Exit codes that are never right.
NEVER = {70, 101, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE}
SCHEDULES = {
    "mini-batch": "batch = 10\nfanouts = [5, 3]\n",
    "partition-parallel": "batch = 10\nfanouts = [5, 3]\nschedule = 'partition-parallel'\n",
    "full-graph": "schedule = 'full-graph'\n",
    "tensor-parallel": "schedule = 'tensor-parallel'\n",
}


class Deviation(Exception):
    """A case does not end as it must."""


def options(document, count, minutes, **more):
    """Reads the options that all campaigns have. `more` has defaults of further options."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=count, help="number of cases")
    parser.add_argument("--minutes", type=float, default=minutes, help="no case begins after this time")
    parser.add_argument("--only", type=int, help="one case, by its number; its folder is kept")
    parser.add_argument("--deadline", type=float, default=60, help="seconds after which a command hangs")
    parser.add_argument("--out", help="file of the result")
    for name, value in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    read = parser.parse_args()
    if read.count < 1 or read.minutes <= 0 or read.deadline <= 0:
        parser.error("--count, --minutes and --deadline must be positive")
    return read


class Campaign:
    """Runs cases, counts what they return, and writes the result."""

    def __init__(self, name, options):
        self.name, self.options, self.binary = name, options, build()
        self.begin, self.done = time.monotonic(), 0
        self.outcomes, self.deviations, self.figures = collections.Counter(), [], {}
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix=f"faults-{name}-", dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")))
        # A shell may have started this in the background, where SIGINT is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: ended by SIGTERM"))

    def folder(self, name):
        """Makes an empty folder."""
        path = self.scratch / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def cases(self, kinds=None):
        """Returns number and generator of random numbers of each case. `--only` chooses one."""
        numbers = range(self.options.count) if self.options.only is None else [self.options.only]
        for number in numbers:
            if time.monotonic() - self.begin > 60 * self.options.minutes:
                return
            yield number, random.Random(f"{self.name} {self.options.seed} {number}")

    def try_case(self, number, what, case, keep=()):
        """Calls `case`, which returns an outcome, or raises a deviation. Folders in `keep` are kept after a deviation."""
        begin = time.monotonic()
        try:
            outcome = case()
        except Deviation as deviation:
            outcome = "DEVIATION"
            kept = self.folder(f"kept-{number}")
            for folder in keep:
                if folder.exists():
                    shutil.copytree(folder, kept / folder.name, symlinks=True, dirs_exist_ok=True)
            text = str(deviation).replace(f"{self.scratch}/", "").replace(str(self.binary), "gnnflow")
            self.deviations.append({"case": number, "what": what.replace(f"{self.scratch}/", ""), "deviation": text})
            print(f"case {number}: {what}\n    DEVIATION: {deviation}\n    kept: {kept}", flush=True)
        self.done += 1
        self.outcomes[outcome] += 1
        if self.options.only is not None:
            print(f"case {number}: {what}: {outcome}; {time.monotonic() - begin:.1f} s", flush=True)
        return outcome

    def finish(self):
        """Writes the result and ends the program: with 1 after deviations."""
        version = subprocess.run([self.binary, "--version"], stdout=subprocess.PIPE, text=True).stdout.strip()
        built_from = os.environ.get("GNNFLOW_BINARY_COMMIT")
        result = about(f"faults/{self.name}") | ({"binary_commit": built_from} if built_from else {}) | {
            "binary": version, "seed": self.options.seed, "minutes": round((time.monotonic() - self.begin) / 60, 2), "cases": self.done,
            "outcomes": dict(sorted(self.outcomes.items())), "deviations": self.deviations,
        } | self.figures
        print(json.dumps(result["outcomes"]), f"{result['minutes']} min, {len(self.deviations)} deviations")
        if self.options.only is None:
            print(write(result, f"faults-{self.name}", self.options.out))
        if not self.deviations and self.options.only is None:
            shutil.rmtree(self.scratch, ignore_errors=True)
        else:
            print(f"folders: {self.scratch}")
        sys.exit(1 if self.deviations else 0)

    def succeed(self, folder, *arguments, **more):
        """Runs a command that must succeed in the preparation of a campaign."""
        ended = run(self.binary, folder, arguments, self.options.deadline * 5, **more)
        if ended.code:
            sys.exit(f"error: {' '.join(map(str, arguments))}: exit code {ended.code}: {ended.stderr}")
        return ended


class Ended:
    """Exit code and output of a command."""

    def __init__(self, code, stdout, stderr):
        self.code, self.stdout, self.stderr = code, stdout, stderr

    def __str__(self):
        return f"exit code {self.code}: {self.stderr.strip()[-1500:]}"


class Started:
    """A started command, with all its processes. They are found by a mark in their environment."""

    def __init__(self, binary, folder, arguments, temporary=None, env=None, **more):
        self.mark = uuid.uuid4().hex
        self.arguments = [str(word) for word in arguments]
        env = os.environ | {MARK: self.mark} | ({"TMPDIR": str(temporary)} if temporary else {}) | (env or {})
        self.output, self.errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            [str(binary), *self.arguments], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.errors, start_new_session=True, **more
        )

    @property
    def pid(self):
        return self.process.pid

    def others(self):
        """Returns the other living processes of the command."""
        return [pid for pid in marked(self.mark) if pid != self.pid]

    def stderr(self):
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), size, 0).decode(errors="replace")

    def running(self):
        return self.process.poll() is None

    def send(self, number):
        if self.running():
            self.process.send_signal(number)

    def wait(self, deadline):
        """Waits for the end of the command. After the deadline, its processes are described and killed."""
        try:
            code = self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            stacks = {pid: describe(pid) for pid in marked(self.mark)}
            stderr = self.stderr()
            self.kill()
            raise Deviation(f"hangs: still running after {deadline:.0f} s: {' '.join(self.arguments)}: {stacks}: {stderr[-1000:]}") from None
        size = os.fstat(self.output.fileno()).st_size
        return Ended(code, os.pread(self.output.fileno(), size, 0).decode(errors="replace"), self.stderr())

    def gone(self, within=10):
        """Checks that all processes of the command have ended."""
        until = time.monotonic() + within
        while left := marked(self.mark):
            if time.monotonic() > until:
                stacks = {pid: describe(pid) for pid in left}
                self.kill()
                raise Deviation(f"processes are left {within} s after the end: {stacks}")
            time.sleep(0.02)

    def kill(self):
        for pid in marked(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()


def marked(mark):
    """Returns the living processes with a mark in their environment."""
    found = []
    needle = f"{MARK}={mark}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if needle not in file.read():
                    continue
            with open(f"/proc/{entry}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] not in "ZX":
                    found.append(int(entry))
        except OSError:
            continue
    return sorted(found)


def describe(pid):
    """Returns the command line of a process, and what its threads wait for."""
    try:
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        threads = [f"{read(task / 'comm')}:{read(task / 'wchan')}" for task in sorted(pathlib.Path(f"/proc/{pid}/task").iterdir())]
        return f"{command} [{' '.join(threads)}]"
    except OSError:
        return "ended"


def read(path):
    try:
        return path.read_text().strip()
    except OSError:
        return "?"


def run(binary, folder, arguments, deadline, **more):
    """Runs a command to its end, and checks that no process is left."""
    started = Started(binary, folder, arguments, **more)
    ended = started.wait(deadline)
    started.gone()
    return ended


def must_be_clear(ended, what="the command", attempts=1):
    """Checks that a failed command has one error of its own for each attempt, and no panic. Lines of its processes begin with `[rank N]`; that a signal has killed one of them is a line with
    `gnnflow:`."""
    if ended.code in NEVER or PANIC.search(ended.stderr):
        raise Deviation(f"{what} panics: {ended}")
    lines = ended.stderr.splitlines()
    own = [line for line in lines if line.startswith("error:")] or [line for line in lines if line.startswith("gnnflow:")]
    # A pipeline file may have several errors.
    if not 1 <= len(own) <= attempts and not (own and ended.code == 2):
        raise Deviation(f"{what} has {len(own)} errors on stderr instead of one: {ended}")


def must_succeed(ended, what="the command"):
    if ended.code != 0:
        raise Deviation(f"{what} fails: {ended}")


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names(folder):
    """Returns the names of all files and folders below a folder. Event files have one name."""
    found = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    return sorted({"events.out.tfevents" if pathlib.Path(name).name.startswith("events.out.tfevents") else name for name in found})


def epochs(folder):
    """Returns the epochs of a run, without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "seconds" not in key} for line in lines]


RESULTS = ["model.safetensors", "optimizer.safetensors", "predictions.parquet", "embeddings.parquet", "node_embeddings.parquet"]


def results(folder):
    """Returns the hashes of the results in a folder."""
    return {name: digest(folder / name) for name in RESULTS if (folder / name).is_file()}


def must_equal(folder, expected, what="results"):
    """Checks that the results in a folder are those of another one, and that there are no other names."""
    if (found := results(folder)) != (wanted := results(expected)):
        differing = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        raise Deviation(f"{what} differ: {', '.join(differing)}")
    if (folder / "metrics.jsonl").exists() and epochs(folder) != epochs(expected):
        raise Deviation(f"{what} differ: metrics.jsonl")


def must_have_names(folder, expected, what):
    """Checks that a folder has the files of another one, and no others. A run that is resumed without a checkpoint begins anew, and keeps the files of the earlier one."""
    if (found := [name for name in names(folder) if name.split("/")[0] != "earlier"]) != (wanted := names(expected)):
        raise Deviation(f"{what} has other files: more {sorted({*found} - {*wanted})}, fewer {sorted({*wanted} - {*found})}")


def must_be_same_dataset(folder, expected, what):
    """Checks that a dataset has the bytes of another one. `partition.json` has times."""
    must_have_names(folder, expected, what)
    for path in sorted(expected.rglob("*")):
        if path.is_file() and path.name != "partition.json" and digest(path) != digest(folder / path.relative_to(expected)):
            raise Deviation(f"{what} differs: {path.relative_to(expected)}")


def must_be_empty(folder, what):
    if left := names(folder):
        raise Deviation(f"{what} has files: {left}")


def must_be_whole(folder):
    """Checks that files with final names are complete. Temporary files and folders are hidden. A trace is written while the run goes on."""
    for path in folder.rglob("*"):
        if not path.is_file() or "/." in f"/{path.relative_to(folder)}" or path.parent.name == "trace":
            continue
        content = path.read_bytes()
        if path.suffix == ".safetensors":
            length = int.from_bytes(content[:8], "little")
            header = json.loads(content[8:8 + length]) if 8 + length <= len(content) else {}
            ends = [about["data_offsets"][1] for name, about in header.items() if name != "__metadata__"]
            whole = 8 + length + max(ends, default=-1) == len(content)
        elif path.suffix == ".parquet":
            whole = content[:4] == content[-4:] == b"PAR1"
        elif path.suffix == ".arrow":
            whole = content[:6] == content[-6:] == b"ARROW1"
        elif path.suffix == ".json":
            try:
                json.loads(content)
                whole = True
            except ValueError:
                whole = False
        else:
            continue
        if not whole:
            raise Deviation(f"{path} is half written")


def pipeline(path, dump, train, dataset="dataset", model="", graph="", partition="", infer="predictions = true\nembeddings = true\n", more="", epochs=6):
    """Writes a pipeline file over a dump."""
    path.write_text(
        f"[graph]\nnodes = '{dump}/nodes.parquet'\nedges = '{dump}/edges.parquet'\nundirected = true\n{graph}"
        f"[partition]\nparts = 4\nmethod = 'random'\nhalo = 'features'\nout = '{dataset}'\n{partition}"
        f"[model]\nkind = 'sage'\nhidden = 16\n{model}[train]\nepochs = {epochs}\nseed = 3\n{train}[infer]\n{infer}{more}"
    )
    return path


def generate(campaign, nodes=3000, edges=20000, features=16, name="dump", seed=7):
    """Writes a planted graph and returns its folder."""
    dump = campaign.scratch / name
    campaign.succeed(campaign.scratch, "generate", "planted", "--out", dump, "--nodes", nodes, "--edges", edges, "--features", features, "--classes", 5, "--seed", seed, "--quiet")
    return dump


def addresses(draw, count):
    """Returns addresses on different loopback hosts, with free ports."""
    found = []
    for rank in range(count):
        host = f"127.{draw.randrange(1, 250)}.{draw.randrange(1, 250)}.{rank + 1}"
        with socket.socket() as free:
            free.bind((host, 0))
            found.append((host, free.getsockname()[1]))
    return found


def listening(ports):
    """Returns those of the ports at which somebody listens."""
    found = set()
    for table in ["/proc/net/tcp", "/proc/net/tcp6"]:
        try:
            for line in open(table).read().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    found.add(int(fields[1].rsplit(":", 1)[1], 16))
        except OSError:
            pass
    return sorted(found & set(ports))


def usage(pid):
    """Returns RSS in KiB (all, and without mapped files), numbers of descriptors and of threads of a process; nothing if it has ended."""
    try:
        status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status").read().splitlines())
        return {"rss": int(status["VmRSS"].split()[0]), "anonymous": int(status["RssAnon"].split()[0]), "descriptors": len(os.listdir(f"/proc/{pid}/fd")), "threads": int(status["Threads"])}
    except (OSError, KeyError):
        return None


def raise_descriptor_limit():
    """Raises the limit of descriptors of this process as far as possible, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
