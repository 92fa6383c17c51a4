#!/bin/sh
# bootstrap.sh [PYTHON]: make .venv and install requirements.txt into it, once.
# .venv/.installed is written last, so whatever was interrupted is not taken for finished.
set -u
cd "$(dirname "$0")/.." || exit 1
trap 'exit 130' INT TERM

python=${1:-python3}
wanted=$(cat requirements.txt pyproject.toml | cksum)

fail() { echo "$1" >&2; exit 1; }
identity() { "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null; }

usable() { # .venv is whole, works, was made here, and with the interpreter asked for, if one was
    [ ! -e .venv/.installing ] && inside=$(identity .venv/bin/python) &&
        grep -qF "$PWD/.venv" .venv/bin/activate && { [ -z "$1" ] || [ "$(identity "$1")" = "$inside" ]; }
}

if usable "${1-}"; then
    [ "$(cat .venv/.installed 2>/dev/null)" = "$wanted" ] && exit 0
    python=.venv/bin/python # only the requirements have changed: bring it up to date
else
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
        fail "There is no working '$python' here: install Python 3.10 or newer, or name it: make PYTHON=/path/to/python3"
    case $version in 2.* | 3.?)
        fail "The book needs Python 3.10 or newer, and '$python' is $version: name another: make PYTHON=python3.12" ;;
    esac
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "'$python' has no venv module: install it (Debian, Ubuntu: apt install python3-venv) or name another: make PYTHON=python3.12"
    rm -rf .venv
    "$python" -m venv .venv || fail "'$python' could not make the environment .venv."
    python=.venv/bin/python
fi

# The caller's settings of pip decide where packages come from (PIP_INDEX_URL), not where they go.
unset PIP_TARGET PIP_PREFIX PIP_ROOT PIP_NO_DEPS
echo "Installing the book's requirements into .venv: some minutes, some GB (progress: tail -f .venv/install.log)"
touch .venv/.installing
if ! PIP_USER=0 "$python" -m pip install --no-input --disable-pip-version-check -r requirements.txt >.venv/install.log 2>&1; then
    rm .venv/.installing # pip has given up in order and left nothing half done
    reason=$(sed -n 's/^ *ERROR: //p' .venv/install.log | tail -n 1 | cut -c 1-200)
    fail "The requirements could not be installed (is there a network?); pip says '$reason', and more in .venv/install.log"
fi
echo "$wanted" >.venv/.installed && rm .venv/.installing
