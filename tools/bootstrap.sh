#!/bin/sh
# bootstrap.sh [PYTHON [cpu]]: make .venv and install requirements.txt into it, once.
# With "cpu", torch and torchvision come without CUDA's packages, from PyTorch's own index or a copy
# of it that TORCH_CPU_INDEX names.
# .venv/.installed is written last, so whatever was interrupted is not taken for finished.
set -u
cd "$(dirname "$0")/.." || exit 1
trap 'exit 130' INT TERM

python=${1:-python3}
build=${2-} # of torch: "cpu", or nothing for the registry's, which on Linux is the one with CUDA
cpu_index=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
wanted=$(cat requirements.txt pyproject.toml | cksum)
made_with=$(cat .venv/.build 2>/dev/null)

fail() { echo "$1" >&2; exit "${2:-1}"; }
identity() { "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null; }

usable() { # .venv is whole, works, was made here, for this torch, and with the interpreter asked for, if one was
    [ ! -e .venv/.installing ] && inside=$(identity .venv/bin/python) && [ "$made_with" = "$build" ] &&
        grep -qF "$PWD/.venv" .venv/bin/activate && { [ -z "$1" ] || [ "$(identity "$1")" = "$inside" ]; }
}

install() { # what `pip install` is to install, as its arguments
    PIP_USER=0 "$python" -m pip install --no-input --disable-pip-version-check "$@" >>.venv/install.log 2>&1 && return
    rm .venv/.installing # pip has given up in order and left nothing half done
    grep -q 'No space left' .venv/install.log && fail "The disk is full: the requirements need $size in $PWD/.venv, and while they are unpacked some in ${TMPDIR:-/tmp}."
    reason=$(sed -n 's/^ *ERROR: //p' .venv/install.log | tail -n 1 | cut -c 1-200)
    fail "The requirements could not be installed (is there a network?); pip says '$reason', and more in .venv/install.log"
}

case $build in
'') size="6.5 GB" space=6500000 ;;
cpu) size="2.5 GB" space=2500000 ;;
*) fail "TORCH=$build is not known: write TORCH=cpu for a torch without CUDA, or leave TORCH out." 2 ;;
esac

if usable "${1-}"; then
    [ "$(cat .venv/.installed 2>/dev/null)" = "$wanted" ] && exit 0
    python=.venv/bin/python # only the requirements have changed: bring it up to date
else
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) && [ -n "$version" ] ||
        fail "There is no working '$python' here: install Python 3.10 or newer, or name it: make PYTHON=/path/to/python3"
    case $version in 2.* | 3.?)
        fail "The book needs Python 3.10 or newer, and '$python' is $version: name another: make PYTHON=python3.12" ;;
    esac
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "'$python' has no venv module: install it (Debian, Ubuntu: apt install python3-venv) or name another: make PYTHON=python3.12"
    if [ -e .venv/.installed ] && [ "$made_with" != "$build" ]; then
        [ -n "$build" ] && echo "Making .venv anew, for a torch without CUDA" ||
            echo "Making .venv anew, for a torch with CUDA (TORCH=cpu keeps the one without)"
    fi
    rm -rf .venv
    free=$(df -Pk . | awk 'NR == 2 { print $4 }')
    [ "${free:-$space}" -ge "$space" ] || fail "The disk has $((free / 1000)) MB free here, and the requirements need $size."
    "$python" -m venv .venv || fail "'$python' could not make the environment .venv."
    echo "$build" >.venv/.build
    python=.venv/bin/python
fi

# The caller's settings of pip decide where packages come from (PIP_INDEX_URL), not where they go.
unset PIP_TARGET PIP_PREFIX PIP_ROOT PIP_NO_DEPS
echo "Installing the book's requirements into .venv: some minutes, $size (progress: tail -f .venv/install.log)"
touch .venv/.installing
: >.venv/install.log
both() { grep -E '^torch(vision)?([^a-z]|$)'; } # of some packages: torch and torchvision
if [ -n "$build" ]; then # what is there already is not taken from the registry, which has the other torch
    both <requirements.txt >.venv/torch.txt
    (PIP_EXTRA_INDEX_URL=$cpu_index && export PIP_EXTRA_INDEX_URL && # instead of one in the caller's settings
        install --index-url "$cpu_index" -r .venv/torch.txt) || exit
    "$python" -m pip list --format=freeze 2>/dev/null | both >.venv/torch.txt
fi
install -r requirements.txt ${build:+--constraint .venv/torch.txt}
echo "$wanted" >.venv/.installed && rm .venv/.installing
