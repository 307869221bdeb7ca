#!/bin/sh
# The long form of the tests of the order between streams, on a GPU: no corruption in many rounds, the time and the memory beside torch's
# allocator (where torch and g++ are installed), and many threads for a while.
#
#   sh order.sh [ROUNDS [ROUNDS_COMPARED [SECONDS]]]     1000, 100 and 120 unless said otherwise

cd "$(dirname "$0")" || exit 2
export TCUDA_BACKEND="${TCUDA_BACKEND:-cuda}"
rounds=${1:-1000}
compared=${2:-100}
seconds=${3:-120}
failed=0

# run LABEL PROGRAM ARGUMENT...
run() {
    label=$1
    shift
    said=$("$@" 2>&1)
    code=$?
    echo "$label: $(echo "$said" | grep -E '^(order|overlap):')"
    if [ $code -ne 0 ]; then
        failed=$((failed + 1))
        echo "$said" | tail -n 12
    fi
}

# An iteration of the recorded run has 122 events.
near=122

run "tcuda" tests/test_order "$rounds"
run "tcuda, $near ahead" tests/test_order "$rounds" 0 $near
run "planted defect, to be found" sh tests/planted_order

torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null)
places="${torch%/torch}/nvidia $(ls -d /usr/local/cuda*/ 2>/dev/null)"
headers=$(find $places -path '*/crt/host_config.h' 2>/dev/null | head -n 1)
runtime=$(find $places -name 'libcudart.so.1*' 2>/dev/null | head -n 1)
shim=$(realpath "${OUT:-.}")/torch_allocator.so
if [ -n "$torch" ] && g++ -std=c++20 -O2 -w -fPIC -shared planted/torch_allocator.cpp -I"$torch/include" -I"${headers%/crt/host_config.h}" \
    -L"$torch/lib" -Wl,--no-as-needed -ltorch_cuda -lc10 -lc10_cuda "$runtime" -Wl,-rpath,"$torch/lib:$(dirname "$runtime")" -o "$shim"; then
    for ahead in 0 $near; do
        for time in 1 2 3; do
            run "tcuda, $ahead ahead" tests/test_order "$compared" 0 $ahead
            run "tcuda that waits at the budget, $ahead ahead" \
                env TCUDA_ALLOC_CONF=stream_wait:at_budget tests/test_order "$compared" 0 $ahead
            run "torch, $ahead ahead" tests/test_order "$compared" 0 $ahead "$shim"
            run "torch with expandable segments, $ahead ahead" \
                env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True tests/test_order "$compared" 0 $ahead "$shim"
        done
    done
else
    echo "torch or g++ is not installed: no comparison"
fi

run "overlap" tests/test_overlap "$seconds" 16
echo "order: $failed failed"
[ $failed -eq 0 ]
