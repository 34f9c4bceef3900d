#!/usr/bin/env python3
"""Creates stubs of the CUDA libraries that a binary is linked against: link_stubs.py FOLDER

candle links the driver, cuBLAS, cuRAND and NVRTC dynamically, so an ordinary build does not start on a machine without them. Static
archives of the same names replace them. FOLDER/lib64 contains one per library, with a trampoline for each function that the crate
cudarc declares. The first call opens the real library and looks up the function; later calls jump to it. If the library or the
function is missing, the call returns an error code of the library (for the driver: no device), or a text for functions that
return text.

The search order is: the folders in $GNNFLOW_CUDA_LIB_DIR (separated by colons), the system's loader, /usr/local/cuda/lib64. Linux on
x86-64 only. Does nothing if FOLDER is up to date.
"""

import json
import pathlib
import re
import subprocess
import sys

# name: (module of cudarc, file names in search order, error code if the library is missing)
LIBRARIES = {
    "cuda": ("driver", ["libcuda.so.1"], 100),  # CUDA_ERROR_NO_DEVICE
    "cublas": ("cublas", ["libcublas.so.13", "libcublas.so.12"], 1),  # CUBLAS_STATUS_NOT_INITIALIZED
    "cublasLt": ("cublaslt", ["libcublasLt.so.13", "libcublasLt.so.12"], 1),
    "curand": ("curand", ["libcurand.so.10"], 101),  # CURAND_STATUS_NOT_INITIALIZED
    "nvrtc": ("nvrtc", ["libnvrtc.so.13", "libnvrtc.so.12"], 7),  # NVRTC_ERROR_BUILTIN_OPERATION_FAILURE
}

DECLARATION = re.compile(r'extern "C" \{\s*fn (\w+)\([^;]*?\)\s*(->\s*[^;{]+)?;')

# Registers for arguments, which the lookup must preserve. The ABI uses al for variadic functions.
INTEGER = ["rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax"]


def trampolines(prefix, names):
    """Returns assembly in which every function jumps to its entry in a table, after a lookup on the first call."""
    lines = [".text"]
    for index, name in enumerate(names):
        lines += [
            f".globl {name}",
            f".type {name}, @function",
            f"{name}:",
            "  endbr64",
            f"  movq {prefix}_table+{8 * index}(%rip), %r11",
            "  testq %r11, %r11",
            "  je 1f",
            "  jmp *%r11",
            f"1: pushq ${index}",
            f"  jmp {prefix}_first",
            f".size {name}, .-{name}",
        ]
    lines += [f"{prefix}_first:"]
    lines += [f"  pushq %{register}" for register in INTEGER]
    # The stack holds the return address, the index and seven registers. With 136 more bytes, calls are aligned to 16.
    lines += ["  subq $136, %rsp"]
    lines += [f"  movups %xmm{k}, {16 * k}(%rsp)" for k in range(8)]
    lines += [f"  movq {136 + 8 * len(INTEGER)}(%rsp), %rdi", f"  call {prefix}_find", "  movq %rax, %r11"]
    lines += [f"  movups {16 * k}(%rsp), %xmm{k}" for k in range(8)]
    lines += ["  addq $136, %rsp"]
    lines += [f"  popq %{register}" for register in reversed(INTEGER)]
    lines += ["  addq $8, %rsp", "  jmp *%r11"]
    lines += [".data", ".p2align 3", f".globl {prefix}_table", f".hidden {prefix}_table"]
    lines += [f"{prefix}_table: .fill {len(names)}, 8, 0", '.section .note.GNU-stack, "", @progbits', ""]
    return "\n".join(lines)


FINDER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))
extern HIDDEN void *@P@_table[];
static const struct { const char *name; char text; } functions[] = {@FUNCTIONS@};
static const char *const files[] = {@FILES@};

static long absent(void) { return @ABSENT@; }
static const char *absent_text(void) { return "@LIBRARY@ is not on this machine"; }

static void *open_in(const char *folder, size_t length, const char *file) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, file);
    return length > 0 && n > 0 && (size_t)n < sizeof path ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
}

static void *library(void) {
    /* If two threads open it, only its reference count differs. */
    static void *handle;
    const char *folders = getenv("GNNFLOW_CUDA_LIB_DIR");
    for (size_t i = 0; i < sizeof files / sizeof *files && !handle; i++) {
        for (const char *at = folders; at && *at && !handle;) {
            size_t length = strcspn(at, ":");
            handle = open_in(at, length, files[i]);
            at += length + (at[length] == ':');
        }
        if (!handle) handle = dlopen(files[i], RTLD_NOW | RTLD_GLOBAL);
        if (!handle) handle = open_in("/usr/local/cuda/lib64", strlen("/usr/local/cuda/lib64"), files[i]);
    }
    return handle;
}

HIDDEN void *@P@_find(long index) {
    void *handle = library();
    void *function = handle ? dlsym(handle, functions[index].name) : NULL;
    if (!function) return functions[index].text ? (void *)absent_text : (void *)absent;
    @P@_table[index] = function;
    return function;
}
"""


def cudarc():
    """Returns the source folder of the workspace's cudarc."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--features", "cuda"]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    for package in metadata["packages"]:
        if package["name"] == "cudarc":
            return pathlib.Path(package["manifest_path"]).parent
    sys.exit("link_stubs.py: the workspace does not depend on cudarc")


def make(folder, source, library):
    """Builds one archive. Returns its number of functions."""
    module, files, absent = LIBRARIES[library]
    declarations = dict(DECLARATION.findall((source / "src" / module / "sys" / "mod.rs").read_text()))
    if not declarations:
        sys.exit(f"link_stubs.py: no declarations in cudarc's {module}; this version of cudarc has a different layout")
    names = sorted(declarations)
    prefix = f"gnnflow_{library}"
    functions = ", ".join(f'{{"{name}", {int("c_char" in declarations[name])}}}' for name in names)
    finder = FINDER.replace("@P@", prefix).replace("@FUNCTIONS@", functions).replace("@ABSENT@", str(absent))
    finder = finder.replace("@FILES@", ", ".join(f'"{name}"' for name in files)).replace("@LIBRARY@", files[0])
    objects = []
    for name, text in ((f"{library}.S", trampolines(prefix, names)), (f"{library}.c", finder)):
        (folder / name).write_text(text)
        objects.append(str(folder / f"{name}.o"))
        subprocess.run(["cc", "-c", "-O2", "-fPIC", "-o", objects[-1], str(folder / name)], check=True)
    archive = folder / "lib64" / f"lib{library}.a"
    archive.unlink(missing_ok=True)
    subprocess.run(["ar", "rcs", str(archive), *objects], check=True)
    return len(names)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder, source = pathlib.Path(sys.argv[1]), cudarc()
    stamp, wanted = folder / "made-of.txt", f"{source.name}\n{pathlib.Path(__file__).read_text()}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    (folder / "lib64").mkdir(parents=True, exist_ok=True)
    counts = [f"{library} {make(folder, source, library)}" for library in LIBRARIES]
    print("functions of the CUDA libraries that are loaded on the first call:", ", ".join(counts), file=sys.stderr)
    stamp.write_text(wanted)


if __name__ == "__main__":
    main()
