#!/bin/sh
# Runs everything in this folder on the GPU (TCUDA_BACKEND says otherwise) and prints a table. Ends with 0 if all passed.
#
#   sh run.sh               plain
#   sh run.sh --sanitize[=TOOL]      under NVIDIA's compute-sanitizer, which must be installed: memcheck, racecheck, initcheck or synccheck
#   sh run.sh [--sanitize[=TOOL]] NAME...    only these
#   sh run.sh overlap [MINUTES [THREADS]]    threads whose live blocks must not overlap, for some minutes: 2 and 16 unless said otherwise
#   sh run.sh jit [--quick]          functions compiled at run time, their speed beside a copy on the device
#   sh run.sh watch [--quick]        what traces, the synchronization debug mode and the sanitizer cost a call
#   sh run.sh many [--quick]         what a request for memory costs beside many streams, threads, pools, graphs, blocks
#   sh run.sh random [compare|bench|start]   random numbers beside torch's: every bit, GB/s, the first calls (benches/torch_random.py)
#   sh run.sh comm [--quick]         collectives beside torch and NCCL on two GPUs and more: every way, every bit (benches/torch_comm.py)
#   sh run.sh clients [--rounds N] [--quick]   PyTorch over its own allocator and tcuda's, in turn (benches/clients)
#   sh run.sh [--sanitize[=TOOL]] cuda   a program with kernels of its own, cuFFT, cuBLAS, Thrust and CUB (examples_c/cuda), compiled here by nvcc
#   sh run.sh libraries              CuPy, Numba and RMM over tcuda, those that are installed (benches/clients)
#   sh run.sh dlpack                 torch's tensors in tcuda's generators and collectives, by capsules (benches/clients/dlpack_client.py)
#   sh run.sh communicators [--quick] [N]    ranks of N processes over NCCL: start, memory, speed, and what the others hear of one that is killed
#   sh run.sh bench [--quick] [--rows WORD...]   the table of `make bench` instead; it needs a C++ compiler and python3 (benches/run.py)

cd "$(dirname "$0")" || exit 2
export TCUDA_BACKEND="${TCUDA_BACKEND:-cuda}"
logs=${OUT:-.}/logs
mkdir -p "$logs" || exit 2

if [ "$1" = bench ]; then
    shift
    exec python3 benches/run.py --out "${OUT:-.}/bench" --work work "$@"
fi

if [ "$1" = jit ]; then
    shift
    exec speed/jit "$@"
fi

if [ "$1" = watch ]; then
    shift
    exec speed/watch "$@"
fi

if [ "$1" = many ]; then
    shift
    exec speed/many "$@"
fi

if [ "$1" = random ]; then
    exec python3 benches/torch_random.py "$(ls "$PWD"/lib/libtcuda.so.*)" "${2:-compare}"
fi

if [ "$1" = comm ]; then
    shift
    exec python3 benches/torch_comm.py "$(ls "$PWD"/lib/libtcuda.so.*)" "$@"
fi

if [ "$1" = clients ]; then
    shift
    exec python3 benches/clients/run.py "$(ls "$PWD"/lib/libtcuda.so.*)" "$@"
fi

if [ "$1" = libraries ]; then
    failed=0
    for name in cupy numba rmm; do
        # In this folder is one of librmm's.
        if ! python3 -c "import $name; $name.__version__" 2>/dev/null; then
            echo "$name: not installed"
        else
            python3 "benches/clients/${name}_client.py" "$(ls "$PWD"/lib/libtcuda.so.*)" || failed=$((failed + 1))
        fi
    done
    echo "libraries: $failed failed"
    exit $failed
fi

if [ "$1" = dlpack ]; then
    exec python3 benches/clients/dlpack_client.py "$(ls "$PWD"/lib/libtcuda.so.*)"
fi

if [ "$1" = communicators ]; then
    shift
    exec speed/communicators "$@"
fi

if [ "$1" = overlap ]; then
    exec tests/test_overlap "${2:-2}m" "${3:-16}"
fi

sanitizer=
tool=memcheck
case "$1" in
--sanitize | --sanitize=*)
    [ "$1" = --sanitize ] || tool=${1#--sanitize=}
    shift
    for place in compute-sanitizer /usr/local/cuda/bin/compute-sanitizer /usr/local/cuda/compute-sanitizer/compute-sanitizer \
                 /usr/local/cuda-*/bin/compute-sanitizer; do
        if command -v "$place" >/dev/null 2>&1; then
            sanitizer=$place
            break
        fi
    done
    if [ -z "$sanitizer" ]; then
        echo "compute-sanitizer is not installed (looked on PATH and in /usr/local/cuda*)"
        exit 2
    fi
    ;;
esac

# On PATH or where it is installed. What it links against lies beside it.
compile_cuda() {
    nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc /usr/local/cuda-*/bin/nvcc 2>/dev/null | head -n 1)
    if [ -z "$nvcc" ]; then
        echo "nvcc is not installed (looked on PATH and in /usr/local/cuda*)"
        return 2
    fi
    export LD_LIBRARY_PATH="$PWD/lib:$(dirname "$nvcc")/../lib64:$LD_LIBRARY_PATH"
    mkdir -p work
    "$nvcc" -std=c++17 -O2 -arch=native -cudart shared -Iinclude examples_c/cuda/spectrum.cu -o work/spectrum -Xlinker lib/libtcuda.so.* -lcublas -lcufft
}

# NCCL comes with torch, in a folder that the loader does not know.
if [ -z "$TCUDA_TEST_NCCL" ]; then
    TCUDA_TEST_NCCL=$(python3 -c 'import importlib.util as u; print(u.find_spec("nvidia.nccl").submodule_search_locations[0])' 2>/dev/null)
    [ -z "$TCUDA_TEST_NCCL" ] || export TCUDA_TEST_NCCL="$TCUDA_TEST_NCCL/lib/libnccl.so.2"
fi

passed=0
failed=0
failures=

# one NAME PROGRAM: runs it, keeps its output, prints its line.
one() {
    started=$(date +%s)
    if [ -n "$sanitizer" ]; then
        "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 86 "$2" >"$logs/$1.txt" 2>&1
    else
        "$2" >"$logs/$1.txt" 2>&1
    fi
    code=$?
    # A program that never calls CUDA leaves nothing to look at.
    if grep -q 'terminated before first instrumented API call' "$logs/$1.txt" && grep -q ' 0 failed' "$logs/$1.txt"; then
        code=0
    fi
    said=$(grep -E 'passed.*failed|(ERROR|RACECHECK) SUMMARY' "$logs/$1.txt" | tail -n 2 | tr '\n' ' ' | cut -c 1-90)
    if [ $code -eq 0 ]; then
        passed=$((passed + 1))
        result=passed
    else
        failed=$((failed + 1))
        failures="$failures $1"
        result="FAILED ($code)"
    fi
    printf '%-28s %-14s %4s s  %s\n' "$1" "$result" "$(($(date +%s) - started))" "$said"
}

for program in tests/* examples/*; do
    [ -f "$program" ] || continue
    name=$(basename "$program")
    case " $* " in
    "  " | *" $name "*) one "$name" "$program" ;;
    esac
done

case " $* " in
*" cuda "*)
    compile_cuda || exit 2
    one spectrum work/spectrum
    cat "$logs/spectrum.txt"
    ;;
esac

# The same with one cudaMalloc a segment.
case "$* " in
" " | *"conformance_plain "*)
    export TCUDA_ALLOC_CONF=expandable_segments:False
    one conformance_plain tests/conformance
    unset TCUDA_ALLOC_CONF
    ;;
esac

for name in $failures; do
    echo "---- $name ----"
    tail -n 40 "$logs/$name.txt"
done
echo "gpu kit ($TCUDA_BACKEND${sanitizer:+, $tool}): $passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
