#!/bin/sh
# Checks what pip cannot bring: Python >= 3.10 with headers and venv, and a C++20 compiler.
# As root on Debian it installs what is missing; otherwise one line says what to install, and the exit status is 2.
#   check_machine.sh PYTHON CXX venv|none [tests]     (tests: also try to get what only tests use; never a failure)
python=$1 cxx=$2 venv=$3 extra=$4

can_install() {
  [ "$venv" != none ] && [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null
}

python_runs() { "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
headers_are_there() {
  "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null
}
venv_is_there() { [ "$venv" = none ] || "$python" -c 'import ensurepip, venv' 2>/dev/null; }
compiler_works() {
  printf '#include <atomic>\n#if __cplusplus < 202002L\n#error\n#endif\nint main() {}\n' |
    $cxx -std=c++20 -x c++ -fsyntax-only - 2>/dev/null
}

# The Debian packages that bring what is missing.
missing() {
  python_runs || echo python3 python3-dev python3-venv
  if python_runs; then
    headers_are_there || echo python3-dev
    venv_is_there || echo python3-venv
  fi
  compiler_works || echo g++
}

install() {
  echo "ringdp: apt-get install $*"
  apt-get update -qq >/dev/null 2>&1
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}

packages=$(echo $(missing))
if [ -n "$packages" ] && can_install; then
  install $packages
  packages=$(echo $(missing))
fi
if [ -n "$packages" ]; then
  echo "ringdp needs Python >= 3.10 with headers and venv ($python) and a C++20 compiler ($cxx)." \
       "Missing: $packages. On Debian or Ubuntu: sudo apt-get install $packages" >&2
  exit 2
fi
if [ "$venv" = none ] && ! "$python" -c 'import setuptools, torch' 2>/dev/null; then
  echo "VENV=none builds with what $python has, and it has no torch or no setuptools:" \
       "$python -m pip install torch==2.13.0 setuptools" >&2
  exit 2
fi
if [ "$extra" = tests ] && can_install; then
  [ -e /usr/include/gtest/gtest.h ] || install libgtest-dev ||
    echo "ringdp: libgtest-dev could not be installed; CMake will try to download GoogleTest"
  command -v ip >/dev/null || install iproute2 ||
    echo "ringdp: iproute2 could not be installed; the tests over two hosts will be skipped"
  command -v chromedriver >/dev/null || install chromium chromium-driver ||
    echo "ringdp: chromium could not be installed; the tests of pages in a browser will be skipped"
fi
exit 0
