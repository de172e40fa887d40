# Shared by the scripts here: messages, a usable Python, a virtual environment, an up-to-date install.
# Sourced, never run. Needs bash, coreutils and a Python >= 3.11; neither root nor a compiler.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

say() {
    if [ -t 1 ]; then printf '\033[1m==>\033[0m %s\n' "$*"; else printf '==> %s\n' "$*"; fi
}
die() {
    printf 'error: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '       %s\n' "$@" >&2
    exit 1
}

# The first Python that is new enough; $PYTHON alone if it is set.
find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
            die "PYTHON=$PYTHON is not a Python 3.11 or newer that this user can run."
        printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "rgpu needs Python 3.11 or newer, and none was found." \
        "Install one (Debian, Ubuntu: apt install python3 python3-venv), or name it: PYTHON=/path/to/python3.11 $0"
}

# Where environment $1 goes: in the checkout, or in the user's cache when the checkout is read-only.
environment_path() {
    if [ -w "$root" ]; then
        printf '%s\n' "$root/$1"
    else
        printf '%s\n' "${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/rgpu/${1#.}"
    fi
}

# A virtual environment at $1, made once.
make_environment() {
    local where=$1 python
    if "$where/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(find_python) || exit 1
    say "making an environment in $where ($("$python" --version))"
    rm -rf "$where"
    mkdir -p "$(dirname "$where")"
    "$python" -m venv "$where" >"$where.log" 2>&1 ||
        { rm -rf "$where" && "$python" -m virtualenv "$where" >>"$where.log" 2>&1; } ||
        { rm -rf "$where" && uv venv --seed --python "$python" "$where" >>"$where.log" 2>&1; } ||
        die "$python cannot make a virtual environment (its words: $where.log)." \
            "Debian and Ubuntu keep that part in a package of its own: apt install python3-venv" \
            "Without root: $python -m pip install --user --break-system-packages virtualenv, and run this again."
    rm -f "$where.log"
}

# Installs the checkout with the extras $2 (and the packages $3...) into the environment $1,
# unless exactly these sources are there already.
install_rgpu() {
    local where=$1 extras=$2 stamp
    shift 2
    stamp=$(cd "$root" && {
        printf '%s\n' "$extras" "$@"
        find pyproject.toml README.md csrc src -type f ! -name '*.pyc' ! -name '*.so' -print0 | sort -z | xargs -0 sha256sum
    } | sha256sum)
    if [ "$stamp" = "$(cat "$where/rgpu.stamp" 2>/dev/null)" ]; then
        return
    fi
    say "installing rgpu[$extras]${*:+ and $*}"
    rm -f "$where/rgpu.stamp"
    "$where/bin/python" -m pip install --quiet --disable-pip-version-check "${root}[$extras]" "$@" ||
        die "the installation failed; pip's own words are above." \
            "Without a network: PIP_FIND_LINKS=/directory/of/wheels PIP_NO_INDEX=1 $0"
    printf '%s\n' "$stamp" >"$where/rgpu.stamp"
    "$where/bin/python" - <<'PY'
from rgpu import _native
if _native.COMPILED not in _native.AVAILABLE:
    print("    (no working C compiler: this is the pure-Python build, slower and otherwise the same)")
PY
}
