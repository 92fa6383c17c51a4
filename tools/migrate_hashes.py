# ruff: noqa
"""One time: records' hashes move from the old rule to the new one, where git proves that nothing
that now counts has changed since the record was made.

For each record: C is the last commit that changed its file. There the old rule must give the
record's hash (it was fresh), and the new rule must give the same text at C as now.
"""

import ast
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
WRITE = "--write" in sys.argv
BASE = "28562ee"  # the last commit with the old rule
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    m = importlib.util.module_from_spec(spec)
    sys.modules[name] = m
    spec.loader.exec_module(m)
    return m


old = load(Path(__file__).with_name("old_fingerprint.py"), "old_fingerprint")
from utils import fingerprint as new
from utils.experiment import load_record, save_record


def git(*a):
    return subprocess.run(["git", "-C", ROOT, *a], check=True, capture_output=True).stdout


def tree(commit, cache={}):
    if commit not in cache:
        d = Path(tempfile.mkdtemp())
        tarfile.open(fileobj=io.BytesIO(git("archive", commit, "book", "utils"))).extractall(
            d, filter="data"
        )
        cache[commit] = d
    return cache[commit]


def experiments(root, cache={}):
    if root not in cache:
        found = {}
        for p in sorted((root / "book").glob("*.ipynb")):
            cells = []
            for c in json.loads(p.read_text())["cells"]:
                if c["cell_type"] != "code":
                    continue
                s = "".join(c["source"])
                cells.append(s)
                for node in ast.parse(s).body:
                    for d in getattr(node, "decorator_list", []):
                        f = getattr(d, "func", d)
                        if isinstance(f, ast.Name) and f.id == "experiment":
                            assert node.name not in found
                            found[node.name] = list(cells)
        cache[root] = found
    return cache[root]


def at(root, name):
    old.SCRIPTS = new.SCRIPTS = root / "book" / "scripts"
    new.UTILS = root / "utils"
    cells = experiments(root)[name]
    return old.fingerprint(name, cells), new.source_of(name, cells), new.fingerprint(name, cells)


used = set()
same, changed, broken = [], [], []
for path in sorted((ROOT / "book" / "records").glob("*.json")):
    name = path.stem
    relative = str(path.relative_to(ROOT))
    assert not git("diff", BASE, "--", relative), f"{relative} differs from {BASE}"
    record = json.loads(path.read_text())
    # the earliest commit, going back, that holds this very measurement (only its ledger may differ)
    commit = None
    for c in git("log", "--format=%h", BASE, "--", relative).decode().split():
        r = json.loads(git("show", f"{c}:{relative}"))
        if any(r[k] != record[k] for k in ("result", "provenance", "seconds", "code", "needs")):
            break
        commit = c
    assert commit
    used.add(commit)
    was_old, was, _ = at(tree(commit), name)
    now_old, now, code = at(ROOT, name)
    if was_old != record["code"]:
        broken.append((name, commit, now_old == record["code"]))
    elif was != now:
        changed.append((name, commit))
    else:
        same.append(name)
        if WRITE:
            r = load_record(path)
            r["code"] = code
            save_record(r, path)
print(
    len(same), "proved;", "changed:", changed, sorted(used), "; not fresh at their commit:", broken
)
