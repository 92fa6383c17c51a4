"""Give every record the hash of today's rules, where its code is proved to be what was measured.

    python tools/migrate_hashes.py

For each record: at the commit that wrote its hash, the fingerprint of that commit must give the
stored hash, and the statements that today's rules cover there must be those that they cover here,
but for the names in :data:`RENAMED` and the statements in :data:`ALONG`. What was measured on a CPU
may instead be run here, and must give the stored result to the last digit. Nothing else of a record
changes, and one record that cannot be proved leaves all as they were.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from utils.record import RECORDS, load_record, save_record  # noqa: E402
from utils.record import fingerprint as rules  # noqa: E402

RENAMED = {"weigh": "peak_and_time"}
# What two modules that have become one bring along: what the first does when it is imported, and a
# function of the second that has the name of a variable of the first.
ALONG = {
    'logging . getLogger ( "torch.utils.cpp_extension" ) . setLevel ( logging . ERROR )',
    "logging = logging",
    'def digits ( x ) :\n    return float ( f"{x:.4g}" )',
}
MEASURED_THEN = ("timing", "stopwatch", "models", "data", "memory", "weighing")
THERE = """
import json, sys
sys.path.insert(0, ".")
from utils.fingerprint import fingerprint
wanted = json.load(sys.stdin)
print(json.dumps({name: fingerprint(name, cells) for name, cells in wanted.items()}))
"""


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def experiments(root: Path) -> dict[str, list[str]]:
    """The cells up to each experiment, itself included, by its name."""
    found = {}
    for path in sorted(root.glob("book/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
        for at, cell in enumerate(code, 1):
            defined = r"^@experiment\([^\n]*(?:\n(?!def )[^\n]*)*\ndef (\w+)\("
            found |= dict.fromkeys(re.findall(defined, cell, re.MULTILINE), code[:at])
    return found


def statements(root: Path, measuring: tuple[str, ...], name: str, cells: list[str]) -> list[str]:
    """What today's rules cover in the tree ``root``, by today's names."""
    here = rules.UTILS, rules.SCRIPTS, rules.MEASURING
    rules.UTILS, rules.SCRIPTS = root / "utils", root / "book" / "scripts"
    rules.MEASURING = measuring
    try:
        found = rules.covered(name, cells)
    finally:
        rules.UTILS, rules.SCRIPTS, rules.MEASURING = here
    for old, new in RENAMED.items():
        found = [re.sub(rf"\b{old}\b", new, text) for text in found]
    return sorted(set(found) - ALONG)


def written_at(name: str, code: str) -> str:
    """The commit that wrote the hash ``code`` into the record of ``name``, its page beside it."""
    log = ("log", "--reverse", "--format=%H")
    record, *_ = git(*log, f"-S{code}", "--", f"book/records/{name}.json").decode().split()
    if b"def %s(" % name.encode() in git("grep", "-h", "-e", "def ", record, "--", "book/*.ipynb"):
        return record
    later = git(*log, f"-Sdef {name}(", f"{record}..", "--", "book/*.ipynb").decode().split()
    return later[0]  # the page landed after its measurements


def unproved(commit: str, records: dict[str, dict], now: dict[str, list[str]]) -> dict[str, str]:
    """Why records whose hashes ``commit`` wrote cannot be migrated, by name."""
    with tempfile.TemporaryDirectory() as folder:
        archive = git("archive", commit, "utils", "book")
        subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)
        then = experiments(Path(folder))
        wanted = json.dumps({name: then[name] for name in records if name in then})
        run = [sys.executable, "-W", "ignore", "-c", THERE]
        done = subprocess.run(run, cwd=folder, input=wanted.encode(), capture_output=True)
        hashes = json.loads(done.stdout)
        why = {}
        for name, record in records.items():
            if hashes.get(name) != record["code"]:
                why[name] = f"at {commit[:7]} the code is not the code of its hash"
                continue
            was = statements(Path(folder), MEASURED_THEN, name, then[name])
            is_ = statements(ROOT, rules.MEASURING, name, now[name])
            other = [
                text.splitlines()[0] for text in (*was, *is_) if (text in was) + (text in is_) < 2
            ]
            if other:
                why[name] = f"{len(other)} statements differ: {'; '.join(other)[:300]}"
    return why


def results_here(page: Path) -> dict[str, object]:
    """What the experiments of a page give when they run on this machine, by name."""
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "utils.record", "--allow-cpu", "--keep-going", "--to", folder]
        subprocess.run([*run, str(page)], cwd=ROOT, capture_output=True, check=True)
        return {path.stem: load_record(path)["result"] for path in Path(folder).glob("*.json")}


def main() -> int:
    """Migrate; return the exit status."""
    records = {path.stem: load_record(path) for path in sorted(RECORDS.glob("*.json"))}
    now = experiments(ROOT)
    codes = {name: rules.fingerprint(name, now[name]) for name in records}
    stale = {name: record for name, record in records.items() if record["code"] != codes[name]}
    commits: dict[str, dict[str, dict]] = {}
    for name, record in stale.items():
        commits.setdefault(written_at(name, record["code"]), {})[name] = record
    why: dict[str, str] = {}
    for commit, those in commits.items():
        why |= unproved(commit, those, now)
    cpu = [name for name in why if records[name]["needs"] == ["cpu"]]
    for page in sorted(ROOT.glob("book/*.ipynb")):
        if any(f"def {name}(" in page.read_text(encoding="utf-8") for name in cpu):
            for name, result in results_here(page).items():
                if name in cpu and result == records[name]["result"]:
                    print(f"{name}: run here, with the stored result ({why.pop(name)})")
    for name, reason in why.items():
        print(f"{name}: {reason}")
    if not why:
        for name, record in stale.items():
            del record["checksum"]
            save_record({**record, "code": codes[name]}, RECORDS / f"{name}.json")
    print(
        f"{len(stale)} of {len(records)} hashes differ, {len(why)} unproved; "
        f"{'nothing changed' if why else 'all others migrated'}"
    )
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
