"""Installs a finished build and uses it as a stranger would.

    install.py BUILD_DIR SOURCE_DIR CC CXX VERSION

Installs into a temporary prefix, moves the prefix (an installed tree may be moved), compiles each
installed header alone, then builds and runs small projects, one in C++ and one in C, through
find_package and pkg-config.
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


# Both languages as strict as a stranger may have them.
CXX_FLAGS = ["-x", "c++", "-std=c++20", "-Wall", "-Wextra", "-Werror"]
C_FLAGS = ["-x", "c", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]


def compile_headers(prefix, cc, cxx):
    """-inl.h files live inside a Highway target and xtensor.h needs its package: not alone."""
    include = prefix / "include"
    headers = [p.relative_to(include) for p in sorted((include / "kvsieve").rglob("*.h"))]
    alone = [h for h in headers if not h.name.endswith("-inl.h") and h.name != "xtensor.h"]
    assert alone, "no header was installed"
    compilers = [(cxx, CXX_FLAGS, header) for header in alone]
    compilers += [(cc, C_FLAGS, header) for header in alone if header.name.endswith("_c.h")]
    assert len(compilers) > len(alone), "no C header was installed"
    for compiler, flags, header in compilers:
        run(compiler, *flags, "-fsyntax-only", f"-I{include}", "-",
            input=f'#include "{header}"\n#include "{header}"\n')


def build_project(prefix, source, build, *settings):
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        *settings, stdout=subprocess.DEVNULL)
    run("cmake", "--build", build)


def use_find_package(prefix, sources, folder, cc, cxx):
    has_eval = (prefix / "include/kvsieve/eval").is_dir()
    build = folder / "build"
    build_project(prefix, sources / "consumer", build, f"-DCMAKE_CXX_COMPILER={cxx}",
                  f"-DEXPECT_EVAL={'ON' if has_eval else 'OFF'}")
    run(build / "consumer")
    if has_eval:
        run(build / "eval_consumer")
    build = folder / "c_build"
    build_project(prefix, sources / "c_consumer", build, f"-DCMAKE_C_COMPILER={cc}")
    run(build / "c_consumer")


def use_pkg_config(prefix, sources, folder, cc, cxx, version):
    pkgconfig = next(prefix.rglob("pkgconfig"))
    environment = {**os.environ, "PKG_CONFIG_PATH": str(pkgconfig),
                   "LD_LIBRARY_PATH": str(pkgconfig.parent)}
    for package, compiler, flags, source in [
            ("kvsieve", cxx, CXX_FLAGS, sources / "consumer/main.cc"),
            ("kvsieve-c", cc, C_FLAGS, sources / "c_consumer/main.c")]:
        assert output_of("pkg-config", "--modversion", package, env=environment) == version
        words = output_of("pkg-config", "--cflags", "--libs", package, env=environment).split()
        program = folder / package
        run(compiler, *flags, f'-DEXPECTED_VERSION="{version}"', source, "-o", program,
            "-x", "none", *words)
        run(program, env=environment)


def main(build_dir, source_dir, cc, cxx, version):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        first, prefix = folder / "first", folder / "moved"
        run("cmake", "--install", build_dir, "--prefix", first, stdout=subprocess.DEVNULL)
        first.rename(prefix)
        sources = pathlib.Path(source_dir, "tests/project")
        compile_headers(prefix, cc, cxx)
        use_find_package(prefix, sources, folder, cc, cxx)
        use_pkg_config(prefix, sources, folder, cc, cxx, version)


if __name__ == "__main__":
    main(*sys.argv[1:])
