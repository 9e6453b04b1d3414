#!/bin/sh
# dev_test.sh SOURCE_DIR: what `./dev` promises without building anything.
set -eu
cd "$1"

fail() {
  echo "dev: $*" >&2
  exit 1
}

# Every command that `./dev help` lists explains itself, both ways.
names=$(./dev help | sed -n 's/^  \([a-z-]*\) .*/\1/p')
[ "$(echo "$names" | wc -w)" -ge 10 ] || fail 'help lists too few commands'
for name in $names; do
  ./dev help "$name" | grep -q "^usage: ./dev $name" || fail "no help for $name"
  [ "$name" = compare ] || ./dev "$name" --help | grep -q "^usage: ./dev $name" ||
    fail "$name --help does not explain it"
done

# A mistake is one line and exit code 2.
for mistake in nonsense 'help nonsense' 'build nonsense' 'sanitize nonsense' 'setup nonsense' \
  'stress nonsense' 'memcheck nonsense' 'bench --peers nonsense'; do
  code=0
  # shellcheck disable=SC2086  # two words
  lines=$(./dev $mistake 2>&1) || code=$?
  [ "$code" = 2 ] || fail "$mistake: exit $code"
  [ "$(printf '%s\n' "$lines" | wc -l)" = 1 ] || fail "$mistake: not one line: $lines"
done

# What is missing is said before anything is built.
folder=$(mktemp -d)
cp dev "$folder"
code=0
lines=$("$folder/dev" bench --peers torch 2>&1) || code=$?
rm -r "$folder"
case "$code $lines" in
  '2 dev: bench --peers torch needs PyTorch: ./dev eval-setup'*) ;;
  *) fail "bench --peers torch without .venv: exit $code: $lines" ;;
esac

# Works from another folder, and names no host: packages come from where the system gets them.
(cd / && "$OLDPWD/dev" help >/dev/null) || fail 'does not run from another folder'
! grep -nE 'https?://|ftp://|mirror|proxy' dev .ci/run || fail 'names a host'

# Colours only on a terminal.
! ./dev nonsense 2>&1 | grep -q "$(printf '\033')" || fail 'colours in a file'
echo "dev: $(echo "$names" | wc -w) commands, all explained"
