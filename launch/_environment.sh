# The virtual environment of launch/quickstart and launch/test. Sourced, never run.
#
#   DPS_TF_VENV    its folder (default: .venv in the project)
#   DPS_TF_PYTHON  the interpreter that makes it (default: a supported one on the PATH)
#
# What is installed is stamped in the environment with a hash of what it came from, so
# that running again installs only what has changed.

SUPPORTED="3.10, 3.11, 3.12 or 3.13"
EXTRAS_OF_TESTS=dev,docs,tensorboard
ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=${DPS_TF_VENV:-$ROOT/.venv}
case $VENV in /*) ;; *) VENV=$PWD/$VENV ;; esac
PYTHON=$VENV/bin/python

# Modules and environments of the user's shell must not come before this one's.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore

# say MESSAGE: prints a progress line.
say() { printf '== %s\n' "$*"; }

# die MESSAGE: ends the script with an error that the user can mend.
die() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# is_supported INTERPRETER: whether it runs and has a supported version.
is_supported() {
  "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' \
    >/dev/null 2>&1
}

# find_interpreter: prints the interpreter to make the environment with.
find_interpreter() {
  local name without_venv=
  if [ -n "${DPS_TF_PYTHON:-}" ]; then
    is_supported "$DPS_TF_PYTHON" ||
      die "DPS_TF_PYTHON=$DPS_TF_PYTHON is not a Python $SUPPORTED"
  fi
  for name in ${DPS_TF_PYTHON:-python3 python3.12 python3.11 python3.13 python3.10 python}
  do
    is_supported "$name" || continue
    # Debian has both modules in a package of their own.
    if "$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then
      printf '%s\n' "$name"
      return
    fi
    without_venv=${without_venv:-$name}
  done
  [ -z "$without_venv" ] ||
    die "$without_venv cannot make virtual environments: install its venv module" \
      "(Debian and Ubuntu: apt-get install python3-venv) and run this again"
  die "no Python $SUPPORTED on the PATH: install one, or name it in DPS_TF_PYTHON"
}

# make_environment: makes the environment, or completes one whose making was cut short.
make_environment() {
  local interpreter
  if [ -x "$PYTHON" ] && is_supported "$PYTHON" &&
    "$PYTHON" -m pip --version >/dev/null 2>&1; then
    return
  fi
  if [ ! -e "$VENV/pyvenv.cfg" ] && [ -n "$(find "$VENV" -type f 2>/dev/null)" ]; then
    die "$VENV is not a virtual environment; name another folder in DPS_TF_VENV"
  fi
  if "$PYTHON" -c '' >/dev/null 2>&1 && ! is_supported "$PYTHON"; then
    die "$VENV holds $("$PYTHON" --version), which is not supported: remove it, or" \
      "name another folder in DPS_TF_VENV"
  fi
  interpreter=$(find_interpreter) || exit
  say "making the environment $VENV with $("$interpreter" --version)"
  "$interpreter" -m venv "$VENV" || die "$interpreter could not make $VENV"
}

# update_pip: the pip that comes with Python 3.10 or 3.11 tries versions for hours.
update_pip() {
  if ! has_stamp pip updated; then
    install --upgrade "pip>=24.1"
    set_stamp pip updated
  fi
}

# watch_pip PID LOG: prints what pip is doing every ten seconds, until it ends.
watch_pip() {
  local seconds=0 doing
  while kill -0 "$1" 2>/dev/null; do
    sleep 1
    seconds=$((seconds + 1))
    if [ $((seconds % 10)) -eq 0 ]; then
      doing=$(grep -oE '(Collecting|Processing|Downloading|Building|Installing) .*' "$2" |
        tail -n 1 | cut -c 1-65) || true # nothing to tell yet
      printf '   %4d s  %s\n' "$seconds" "$doing"
    fi
  done
}

# install ARGUMENT...: pip install, up to three times, at most half an hour each.
install() {
  local attempt pid log limit=
  log=$(mktemp)
  if command -v timeout >/dev/null; then limit="timeout 1800"; fi
  for attempt in 1 2 3; do
    $limit "$PYTHON" -m pip install --progress-bar off --retries 3 --timeout 60 "$@" \
      >"$log" 2>&1 &
    pid=$!
    trap 'kill '"$pid"' 2>/dev/null; rm -f '"$log"'; exit 130' INT TERM
    watch_pip "$pid" "$log"
    if wait "$pid"; then
      trap - INT TERM
      rm -f "$log"
      return
    fi
    say "pip failed (attempt $attempt of 3):"
    grep -v '^WARNING' "$log" | tail -n 15 >&2
  done
  trap - INT TERM
  rm -f "$log"
  die "pip could not install $*"
}

# fingerprint NAME...: prints a hash of these files and folders of the tree, and of the
# version of the interpreter.
fingerprint() {
  "$PYTHON" - "$ROOT" "$@" <<'PYTHON'
import hashlib, pathlib, sys

root = pathlib.Path(sys.argv[1])
digest = hashlib.sha256(sys.version.encode())
for entry in (root / name for name in sys.argv[2:]):
    for file in [entry] if entry.is_file() else sorted(entry.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            name = str(file.relative_to(root)).encode()
            digest.update(b"%s\0%s\0" % (name, file.read_bytes()))
print(digest.hexdigest())
PYTHON
}

# has_stamp NAME VALUE: whether the environment carries this stamp.
has_stamp() { [ "$(cat "$VENV/dps_tf-$1.stamp" 2>/dev/null)" = "$2" ]; }

# set_stamp NAME VALUE: written last, so that an installation cut short is repeated.
set_stamp() { printf '%s\n' "$2" >"$VENV/dps_tf-$1.stamp"; }

# copy_source FOLDER: copies what the package is built from. Building inside the tree
# would leave a build folder there, whose stale modules end up in later wheels.
copy_source() {
  local name
  for name in setup.cfg pyproject.toml MANIFEST.in LICENSE README.md \
    dps_tf docs gin_configs launch tests .ci; do
    [ ! -e "$ROOT/$name" ] || cp -R "$ROOT/$name" "$1/" || exit
  done
}

# install_source [EXTRAS] [PIP_OPTION...]: installs dps_tf as the tree has it.
install_source() {
  local source extras=${1:-}
  shift
  source=$(mktemp -d)
  copy_source "$source"
  install "$@" "$source${extras:+[$extras]}"
  rm -rf "$source"
}

# prepare_environment [EXTRAS]: the environment, holding dps_tf[EXTRAS] of this tree.
prepare_environment() {
  local extras=${1:-} requirements package
  make_environment
  update_pip
  requirements=$(fingerprint setup.cfg pyproject.toml)
  package=$(fingerprint setup.cfg pyproject.toml dps_tf gin_configs)
  if ! has_stamp "requirements-$extras" "$requirements"; then
    say "installing dps_tf and what it needs (about 3 GB; some minutes)"
    # What is cut short below leaves the environment without a stamp.
    rm -f "$VENV"/dps_tf-requirements-*.stamp "$VENV/dps_tf-package.stamp"
    PIP_NO_COMPILE=1 install_source "$extras"
    # pip compiles with one processor. Some packages hold templates that are no Python.
    "$PYTHON" -m compileall -qq -j 0 -x '/tests?/' "$VENV/lib" || true
    # An environment with extras holds what one without them needs.
    set_stamp "requirements-" "$requirements"
    set_stamp "requirements-$extras" "$requirements"
    set_stamp package "$package"
  elif ! has_stamp package "$package"; then
    say "installing dps_tf again, as its source has changed"
    rm -f "$VENV/dps_tf-package.stamp"
    install_source "" --no-deps --force-reinstall
    set_stamp package "$package"
  fi
}
