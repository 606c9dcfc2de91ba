#!/usr/bin/env bash
# Builds the wheel and the sdist of what is committed into dist/, and proves them: `make release`.
# On each Python of PYTHONS a fresh environment gets the wheel alone, serves, and takes and gives a message.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
read -ra pythons <<<"${PYTHONS:-python3.11 python3.12 python3.13}"
seconds=60
[ -z "$(git status --porcelain)" ] || { echo "commit first: a release is what is committed"; exit 1; }
for python in "${pythons[@]}"; do
    command -v "$python" >/dev/null || { echo "$python is missing: install it, or set PYTHONS"; exit 1; }
done
scratch=$(mktemp -d)
served=
# shellcheck disable=SC2317
leave() {
    [ -z "$served" ] || kill "$served" 2>/dev/null || true
    wait
    rm -rf "$scratch"
}
trap leave EXIT

mkdir "$scratch/source" "$scratch/dist"
git archive HEAD | tar -x -C "$scratch/source"
"${pythons[0]}" -m venv "$scratch/build"
"$scratch/build/bin/pip" --disable-pip-version-check install -q 'build~=1.3' 'twine~=6.2'
# The wheel is built from the sdist, which proves that this holds everything.
"$scratch/build/bin/python" -m build --outdir "$scratch/dist" "$scratch/source" >"$scratch/build.log" 2>&1 ||
    { tail -n 20 "$scratch/build.log"; exit 1; }
"$scratch/build/bin/twine" check --strict "$scratch"/dist/*

free_port() { "$scratch/build/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

for python in "${pythons[@]}"; do
    home=$scratch/$python
    "$python" -m venv "$home"
    "$home/bin/pip" --disable-pip-version-check install -q -c deploy/constraints.txt "$scratch"/dist/*.whl
    port=$(free_port)
    (cd "$home" && exec bin/router serve --port "$port" >serve.log 2>&1) &
    served=$!
    url=http://127.0.0.1:$port
    curl -s --retry "$seconds" --retry-delay 1 --retry-all-errors -o /dev/null "$url/ready"
    curl -sf -m "$seconds" -H 'Content-Type: text/plain' -d "hello from $python" "$url/events/hello" >/dev/null
    given=$(curl -sf -m "$seconds" "$url/events/hello/group/1?from=earliest")
    kill "$served"
    wait "$served" || true
    served=
    [ "$given" = "[\"hello from $python\"]" ] || { echo "$python: the poll answered $given"; tail -n 20 "$home/serve.log"; exit 1; }
    echo "$python: installed, served, published and polled"
done
mkdir -p dist
cp "$scratch"/dist/* dist/
ls dist
