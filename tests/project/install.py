"""Installs a finished build and uses it as a stranger would.

    install.py BUILD_DIR SOURCE_DIR CXX VERSION

Installs into a temporary prefix, moves the prefix (an installed tree may be moved), compiles each
installed header alone, then builds and runs a small project through find_package and pkg-config.
"""

import os
import pathlib
import subprocess
import sys
import tempfile


def run(*command, **kwargs):
    print("$", *command, flush=True)
    return subprocess.run([str(word) for word in command], check=True, text=True, **kwargs)


def output_of(*command, **kwargs):
    return run(*command, stdout=subprocess.PIPE, **kwargs).stdout.strip()


def compile_headers(prefix, cxx):
    """-inl.h files live inside a Highway target and xtensor.h needs its package: not alone."""
    include = prefix / "include"
    headers = [p.relative_to(include) for p in sorted((include / "kvsieve").rglob("*.h"))]
    alone = [h for h in headers if not h.name.endswith("-inl.h") and h.name != "xtensor.h"]
    assert alone, "no header was installed"
    for header in alone:
        is_c = header.name.endswith("_c.h")
        run(cxx, *(["-x", "c++", "-std=c++20"] if not is_c else ["-x", "c++"]), "-Wall", "-Wextra",
            "-Werror", "-fsyntax-only", f"-I{include}", "-",
            input=f'#include "{header}"\n#include "{header}"\n')


def use_find_package(prefix, source, build, cxx):
    has_eval = (prefix / "include/kvsieve/eval").is_dir()
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={cxx}",
        f"-DEXPECT_EVAL={'ON' if has_eval else 'OFF'}", stdout=subprocess.DEVNULL)
    run("cmake", "--build", build)
    run(build / "consumer")
    if has_eval:
        run(build / "eval_consumer")


def use_pkg_config(prefix, source, build, cxx, version):
    environment = {**os.environ, "PKG_CONFIG_PATH": str(next(prefix.rglob("pkgconfig")))}
    assert output_of("pkg-config", "--modversion", "kvsieve", env=environment) == version
    flags = output_of("pkg-config", "--cflags", "--libs", "kvsieve", env=environment).split()
    program = build / "consumer_pc"
    run(cxx, "-std=c++20", f'-DEXPECTED_VERSION="{version}"', source / "main.cc", "-o", program,
        *flags)
    run(program)


def main(build_dir, source_dir, cxx, version):
    with tempfile.TemporaryDirectory() as folder:
        first, prefix = pathlib.Path(folder, "first"), pathlib.Path(folder, "moved")
        run("cmake", "--install", build_dir, "--prefix", first, stdout=subprocess.DEVNULL)
        first.rename(prefix)
        consumer = pathlib.Path(source_dir, "tests/project/consumer")
        build = pathlib.Path(folder, "build")
        compile_headers(prefix, cxx)
        use_find_package(prefix, consumer, build, cxx)
        use_pkg_config(prefix, consumer, build, cxx, version)


if __name__ == "__main__":
    main(*sys.argv[1:])
